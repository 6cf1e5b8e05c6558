"""The set of golden vectors that is committed, docs/vectors: what small cases cover in less than 5 MB.

It lies beside the package and not in it: who reads it needs no Python, and who has Python writes what he wants.  Every
feature is in it, and every chapter but the long and the captured ones; its cases fail 155 of the 160 catalogued bugs
that cases of up to 230 kB are for and can fail.  The flags of UNCOVERED need larger cases.  It was chosen by a greedy
cover and is kept as it is, so that the files change when a case does and not when one is added.
"""

from __future__ import annotations

__all__ = ["CURATED", "UNCOVERED"]

CURATED: tuple[str, ...] = tuple("""
    alibi-5-heads-f32 bias-1e9-negative-f64 bias-keys-f32 bias-queries-f32 bias-strided-f32 biased-minus-10000-bf16
    blocks-x-rotary-f16 cache-alone-bf16 cache-not-causal-f32 cache-rotary-f64 causal-br-1x2-f32 causal-f16
    causal-tiny-f32 chunks-x-lse-bf16 d0-f32 d3-f32 dbias-alone-f64 dilated-x-bias-f32 dilated-x-dropout-f16
    dk-alone-f16 drawn-f32 drawn-per-batch-f16 dropout-mask-per-head-f64 dropout-one-key-f32 dropout-tree-grad-f32
    dscale-f32 dsoftcap-bias-causal-f16 dsoftcap-f32 dsoftcap-mod-f32 dv0-f32 e4m3-paged-1-bf16 e5m2-packed-f32
    empty-rows-sinks-grad-f64 far-bias-f16 far-poisoned-f64 first-x-decode-bf16 full-f32 gathered-x-paged-bf16
    global-x-negative-f16 gqa-2x2-f32 gqa-6-speculative-f16 grad-scale-0-f32 hbld-rotary-mod-f32 int8-scores-f32
    longformer-f32 lse-alone-alibi-signed-bf16 lse-alone-empty-e4m3 lse-alone-f16 lse-alone-sinks-f64
    mask-lowest-grad-f32 mod-bias-padding-f32 mod-distance-packed-gap-f32 mod-hides-f32 mod-k-lens-decode-f16
    mod-softcap-bias-bf16 mod-softsign-large-bf16 negative-window-f32 no-keys-sinks-bf16 one-query-top-left-f32
    one-token-f32
    packed-lse-grad-f64 padding-f32 padding-x-softcap-bf16 paged-16-decode-bf16 paged-e5m2 paged-tree-bf16
    prefix-x-lse-e4m3 q-k-lens-br-f32 q-lens-0-bf16 q8-gqa-6-bf16 rotary-documents-f32 rotary-ragged-grad-f64
    rotary-two-f64 scores-bias-minus-inf-f16 scores-e4m3 scores-f16-out-bf16 scores-softcap-bias-window-bf16
    shared-scale-e5m2 sinks-f32 sinks-one-key-f16 small-2x1-bf16 some-rows-masked-bf16 tail-62-bf16 tiny-f32
    tree-then-causal-f32 tree-x-q4-bf16 value-of-all-f32 weights-dropout-sinks-bf16 window-0-0-f32 window-1-0-f32
    window-decode-f32
""".split())

UNCOVERED: frozenset[str] = frozenset("""
    accumulator_16_bit bias_nan global_not_causal grad_16_bit grad_overflow merge_empty merge_plain position_bits
    pv_fp16 rescale_underflow rotary_far row_sum_fp16 sinks_per_split tf32
""".split())
