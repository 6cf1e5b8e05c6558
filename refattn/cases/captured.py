"""Chapter captured: q, k and v as a model computed them; `refattn/inputs/data/README.md` says which and how.

Two sentences of 65 and 40 tokens, the shorter one padded; 6 heads of size 32 of the layers 0 and 2.  In layer 0 one
head looks at one token alone, with scores up to 43; in layer 2 the first and last tokens draw half the weight of some
heads.
"""

from __future__ import annotations

from functools import partial

from ..case import Packed, Paged
from ..masks import Causal, Padding, SinkTokens, Window
from .row import BF16, E4M3, F16, F32, F64, GRAD, row

__all__ = ["CASES"]

_row = partial(row, "captured")
_LAYER0, _LAYER2 = "captured:minilm#layer0", "captured:minilm#layer2"
_WHOLE = (2, 6, 6, 65, 65, 32, 32)
_TL, _BR = Causal("top_left"), Causal("bottom_right")

CASES = (
    _row("captured-layer0-f32", "A padded batch as an encoder runs it, with scores from -51 to 43.",
         "lengths_ignored large_logits", _WHOLE, F32, _LAYER0, k_lens=(65, 40)),
    _row("captured-layer0-bf16", "The same in bfloat16: one head looks at one token, others are nearly flat.",
         "lengths_ignored scores_16_bit", _WHOLE, BF16, _LAYER0, k_lens=(65, 40)),
    _row("captured-layer0-f16", "Every token of a sentence sees every other one.",
         "large_logits head_dropped", _WHOLE, F16, _LAYER0),
    _row("captured-layer0-causal-gqa-bf16", "Three heads share the keys of one, causal, as decoders have it.",
         "gqa_group gqa_tiled causal_ignored", (1, 6, 2, 65, 65, 32, 32), BF16, _LAYER0, mask=_TL),
    _row("captured-layer0-softcap-f32", "A cap of 30 on scores that reach 53.",
         "softcap_dropped", _WHOLE, F32, _LAYER0, softcap=30.0),
    _row("captured-layer2-f64", "Half the weight of some heads lies on the first and last token.",
         "float64_demoted", _WHOLE, F64, _LAYER2),
    _row("captured-layer2-padding-f32", "[PAD] tokens with keys and values of their own, hidden by a mask.",
         "finite_mask_value polarity", (2, 6, 6, 33, 65, 32, 32), F32, _LAYER2, mask=Padding((65, 40))),
    _row("captured-layer2-causal-f16", "An encoder's layer made causal.",
         "causal_off_by_one last_tile", _WHOLE, F16, _LAYER2, mask=_TL),
    _row("captured-layer2-streaming-bf16", "A window of 16 tokens, and the first one, as streaming decoders keep it.",
         "mask_union window_off_by_one", _WHOLE, BF16, _LAYER2, mask=(SinkTokens(1) | Window(15, 0, "top_left")) & _TL),
    _row("captured-layer2-decode-mqa-bf16", "One step of decoding: the last token against all keys of one head.",
         "gqa_group lengths_ignored", (2, 6, 1, 1, 65, 32, 32), BF16, _LAYER2, k_lens=(65, 40)),
    _row("captured-layer2-drafts-f32", "Nine drafted tokens at the end of a paged cache.",
         "causal_top_left page_size", (2, 6, 6, 9, 65, 32, 32), F32, _LAYER2, mask=_BR, storage=Paged(16)),
    _row("captured-layer2-packed-f16", "The two sentences packed without padding.",
         "packed_leak tail_queries", _WHOLE, F16, _LAYER2, q_lens=(65, 40), k_lens=(65, 40), storage=Packed()),
    _row("captured-layer2-e4m3", "In float8, as quantised models run it.",
         "lengths_ignored", _WHOLE, E4M3, _LAYER2, k_lens=(65, 40)),
    _row("captured-layer0-grad-f32", "Gradients where one head's rows are one-hot and others are flat.",
         "delta_missing tail_backward", _WHOLE, F32, _LAYER0, want=GRAD, k_lens=(65, 40)),
    _row("captured-layer2-grad-gqa-bf16", "Gradients summed over three heads, causal.",
         "gqa_backward group_not_summed", (1, 6, 2, 65, 65, 32, 32), BF16, _LAYER2, want=GRAD | {"lse"}, mask=_TL),
    _row("captured-layer2-grad-f64", "The gradients of a layer, in float64.",
         "float64_demoted grad_scale", _WHOLE, F64, _LAYER2, want=GRAD, k_lens=(65, 40)),
)  # fmt: skip
