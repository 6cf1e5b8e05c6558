"""Bugs that somebody who has not seen the catalogue thinks real kernels have; each is one wrong line of `Kernel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from refattn.case import Case
from refattn.implementation import Function
from refattn.masks import And, Causal, Dense, Documents, Mask, Not, Or, Padding, Prefix, SinkTokens, Window
from refattn.patterns import Chunked
from tests.foreign_kernel import Kernel, made

Array = np.ndarray[Any, Any]
Space = SimpleNamespace
BUGS: dict[str, tuple[Function, str]] = {}
honest = made(Kernel(), "honest")


def bug(name: str, sentence: str, **wrong: Any) -> None:
    """The kernel with other attributes, or methods, than the honest one's."""
    function = made(type(name, (Kernel,), wrong)(), name)
    BUGS[name] = (function, sentence)
    globals()[name] = function


def masks(name: str, sentence: str, change: Callable[[Mask], Mask | None]) -> None:
    """The kernel takes each leaf of the mask for another; None: for no mask."""

    def walk(m: Mask) -> Mask | None:
        if isinstance(m, And | Or):
            left, right = walk(m.left), walk(m.right)
            return (left or right) if left is None or right is None else type(m)(left, right)
        if isinstance(m, Not):
            inner = walk(m.mask)
            return None if inner is None else Not(inner)
        return change(m)

    def believe(self: Kernel, case: Case) -> Case:
        return case if case.mask is None else dataclasses.replace(case, mask=walk(case.mask))

    bug(name, sentence, believe=believe)


def aligned(m: Mask, kinds: Any, align: str) -> Mask:
    return dataclasses.replace(m, align=align) if isinstance(m, kinds) else m  # type: ignore[call-arg]


def window(m: Mask, change: Callable[[Window], Mask]) -> Mask:
    return change(m) if isinstance(m, Window) else m


def own(x: Space, keys: slice) -> tuple[Array, Array]:
    """Row and column indices of a tile, for broadcasting."""
    return np.arange(x.case.Lq)[:, None], np.arange(x.case.Lk)[keys]


# geometry
masks("upper_left", "causal ignores that there are more keys than queries", lambda m: aligned(m, Causal, "top_left"))
masks("lower_right", "causal is always aligned at the last key", lambda m: aligned(m, Causal, "bottom_right"))
masks("window_upper_left", "a window is placed as if query 0 stood at key 0", lambda m: aligned(m, Window, "top_left"))
masks("window_short", "the window counts the query's own key: left keys become left - 1",
      lambda m: window(m, lambda w: dataclasses.replace(w, left=w.left - 1) if w.left else w))  # fmt: skip
masks("window_zero_off", "a window of 0 to the left is taken for no limit (truthiness)",
      lambda m: window(m, lambda w: dataclasses.replace(w, left=w.left or None)))  # fmt: skip
masks("window_right_lost", "the right side of the window is ignored",
      lambda m: window(m, lambda w: dataclasses.replace(w, right=None)))  # fmt: skip
masks("strictly_causal", "a query does not see its own key: j < i",
      lambda m: Window(None, 0, m.align) & ~Window(0, 0, m.align) if isinstance(m, Causal) else m)  # fmt: skip
masks("polarity", "a boolean mask is read as True = hidden", lambda m: Not(m) if isinstance(m, Dense) else m)
masks("prefix_lost", "prefix-LM is computed as plain causal",
      lambda m: Causal(m.align) if isinstance(m, Prefix) else m)  # fmt: skip
masks("chunk_is_window", "chunked attention is computed as a sliding window of the chunk's size",
      lambda m: Window(m.size - 1, None, m.align) if isinstance(m, Chunked) else m)  # fmt: skip
masks("first_documents", "the document ids of batch entry 0 are used for all entries",
      lambda m: Documents(m.q_ids[:1] * 9, m.k_ids and m.k_ids[:1] * 9)
      if isinstance(m, Documents) and m.q_ids and isinstance(m.q_ids[0], tuple) else m)  # fmt: skip
masks("one_sink_token_less", "one sink token fewer is kept than asked for",
      lambda m: SinkTokens(m.n - 1) if isinstance(m, SinkTokens) and m.n else m)  # fmt: skip
masks("padding_lost", "the key padding mask is accepted and not applied",
      lambda m: None if isinstance(m, Padding) else m)  # fmt: skip
bug("mask_of_head_0", "all heads use the mask of head 0",
    seen=lambda self, x, keys: np.repeat(x.case.visibility.tile(keys=keys)[:, :1], x.case.H, 1))  # fmt: skip
bug("mask_of_entry_0", "all batch entries use the mask of entry 0",
    seen=lambda self, x, keys: np.repeat(x.case.visibility.tile(keys=keys)[:1], x.case.B, 0))  # fmt: skip


def padded_diagonal(self: Kernel, x: Space, keys: slice) -> Array:
    case = x.case
    wide = dataclasses.replace(case.visibility, q_lens=None, k_lens=None)
    real = dataclasses.replace(case.visibility, mask=None)
    return wide.tile(keys=keys) & real.tile(keys=keys)


bug("padded_diagonal", "the diagonal is aligned by the padded lengths, not by each entry's own", seen=padded_diagonal)


def early_end(self: Kernel, x: Space, keys: slice) -> Array:
    seen = x.case.visibility.tile(keys=keys).copy()
    for start in range(0, x.case.Lq if "Causal(" in repr(x.case.mask) else 0, self.rows):
        if not seen[:, :, start].any():
            seen[:, :, start : start + self.rows] = False
    return seen


bug("early_end", "causal blocks of 64 rows leave out each tile of keys of which their first row sees none",
    seen=early_end)  # fmt: skip
bug("one_key_more", "key lengths are compared with <=: the first key of the padding is seen",
    believe=lambda self, c: c if c.k_lens is None else
    dataclasses.replace(c, k_lens=tuple(min(n + 1, c.Lk) for n in c.k_lens)))  # fmt: skip

# heads
bug("heads_tiled", "key heads are tiled over the query heads, not each repeated",
    heads=lambda self, c: np.arange(c.H) % max(1, c.Hkv))  # fmt: skip
bug("head_0", "every query head reads key and value head 0", heads=lambda self, c: np.zeros(c.H, int))
bug("v_tiled", "values are tiled over the heads while keys are repeated",
    v_heads=lambda self, c: np.arange(c.H) % max(1, c.Hkv))  # fmt: skip


def tiled_gradient(self: Kernel, x: Space, y: Array, heads: Array) -> Array:
    return Kernel.group(self, x, y, np.arange(x.case.H) % max(1, x.case.Hkv))


def overwritten(self: Kernel, x: Space, y: Array, heads: Array) -> Array:
    last = np.zeros((y.shape[0], x.case.Hkv, *y.shape[2:]), y.dtype)
    last[:, heads] = y
    return last


bug("gradient_tiled", "dk and dv of a query head go to key head h % Hkv, in the backward only", group=tiled_gradient)
bug("gradient_overwritten", "dk and dv are those of the last head of the group, not the sum", group=overwritten)
bug("lse_swapped", "lse is written with group and key head swapped",
    lse=lambda self, x: Kernel.lse(self, x).reshape(x.case.B, x.case.Hkv, x.case.H // max(1, x.case.Hkv), x.case.Lq)
    .swapaxes(1, 2).reshape(x.case.B, x.case.H, x.case.Lq))  # fmt: skip

# scale, softcap, bias
bug("scale_unused", "the scale argument is not used", scale=lambda self, c: max(c.D, 1) ** -0.5)
bug("scale_of_v", "the default scale comes from the size of a value",
    scale=lambda self, c: c.Dv**-0.5 if c.scale is None else c.scale)  # fmt: skip
bug("scale_zero", "a scale of 0 is taken for the default", scale=lambda self, c: c.scale or max(c.D, 1) ** -0.5)
bug("softcap_unused", "softcap is accepted and not applied", cap=lambda self, x, s: s)
bug("softcap_first", "softcap is applied to q·k, and the scale afterwards",
    cap=lambda self, x, s: x.factor * x.case.softcap * np.tanh(s / x.factor / x.case.softcap))  # fmt: skip
bug("softcap_small", "tanh is not multiplied by softcap again", cap=lambda self, x, s: np.tanh(s / x.case.softcap))


def capped_last(self: Kernel, x: Space, s: Array, keys: slice) -> Array:
    if x.case.softcap is None:
        return Kernel.add_bias(self, x, s, keys)
    raw = x.case.softcap * np.arctanh(np.clip(s / x.case.softcap, -1 + 1e-7, 1 - 1e-7))
    return Kernel.cap(self, x, raw + self.bias(x, keys))


bug("bias_capped", "the bias is added before softcap", add_bias=capped_last)
bug("bias_scaled", "the bias is added before the scale is applied",
    add_bias=lambda self, x, s, keys: s + self.bias(x, keys) * x.factor)  # fmt: skip
bug("bias_base_2", "scores are brought to base 2, the bias is not",
    add_bias=lambda self, x, s, keys: s + self.bias(x, keys) * x.acc(np.log(2)))  # fmt: skip
bug("bias_of_head_0", "all heads read the bias of head 0",
    bias=lambda self, x, keys: Kernel.bias(self, x, keys)[:, :1])  # fmt: skip
bug("bias_of_entry_0", "all batch entries read the bias of entry 0",
    bias=lambda self, x, keys: Kernel.bias(self, x, keys)[:1])  # fmt: skip

# sinks, empty rows, lse
bug("sink_base_2", "scores are brought to base 2, the sink is not",
    sink=lambda self, x: Kernel.sink(self, x) * x.acc(np.log(2)))  # fmt: skip
bug("sink_scaled", "the sink is multiplied by the scale", sink=lambda self, x: Kernel.sink(self, x) * x.factor)
bug("sink_unused", "sinks are accepted and not applied", join_sink=lambda self, x: None)
bug("sink_not_in_lse", "lse is that of the keys alone, without the sink",
    lse=lambda self, x: Kernel.lse(self, x) if x.sinks is None else
    (self.safe(x.m) + np.log(x.l - np.exp(self.sink(x) - self.safe(x.m))))[..., 0])  # fmt: skip
bug("empty_nan", "a row that sees nothing is 0 / 0: NaN", empty=lambda self, x, out: out)
bug("empty_mean", "a row that sees nothing gets the mean of all values", empty=lambda self, x, out: np.where(
    x.l == 0, np.where(np.isfinite(x.v), x.v, 0).sum(2, keepdims=True) / max(1, x.case.Lk), out))  # fmt: skip
bug("empty_lse_plus", "lse of a row that sees nothing is +inf",
    lse=lambda self, x: np.where(x.l[..., 0] == 0, np.inf, Kernel.lse(self, x)))  # fmt: skip
bug("lse_base_2", "lse is a logarithm of base 2", lse=lambda self, x: Kernel.lse(self, x) / x.acc(np.log(2)))
bug("lse_without_max", "lse lacks the row's maximum", lse=lambda self, x: np.log(x.l)[..., 0])
bug("lse_16_bits", "lse is rounded to the inputs' 16-bit dtype on its way",
    lse=lambda self, x: Kernel.lse(self, x).astype(x.weights))  # fmt: skip

# online softmax, tails, precision
bug("output_not_rescaled", "the running output is not rescaled when the maximum grows",
    rescale=lambda self, total, acc, shrink: (total * shrink, acc))  # fmt: skip
bug("sum_not_rescaled", "the running sum is not rescaled when the maximum grows",
    rescale=lambda self, total, acc, shrink: (total, acc * shrink))  # fmt: skip
bug("max_reset", "after a tile in which a row sees nothing its running maximum is 0, not -inf",
    keep_max=lambda self, m: self.safe(m))  # fmt: skip
bug("tail_dropped", "the keys of a last, partial tile of 32 are left out",
    tiles=lambda self, x: [slice(n, n + 32) for n in range(0, x.case.Lk // 32 * 32, 32)])  # fmt: skip


def padded_tail(self: Kernel, x: Space, p: Array, keys: slice) -> Array:
    return p.sum(-1, keepdims=True) + (-p.shape[-1] % 32) * np.exp(-self.safe(x.now))


bug("tail_counted", "a partial tile is filled up with scores of 0 that count in the denominator",
    row_sum=padded_tail)  # fmt: skip
bug("output_in_16_bits", "the running output is kept in the 16-bit dtype between tiles",
    accumulated=lambda self, x, acc: acc.astype(x.weights).astype(x.acc))  # fmt: skip
bug("scores_in_16_bits", "scores are rounded to the 16-bit dtype before softmax",
    scaled=lambda self, x, s: (s * x.factor).astype(x.weights).astype(x.acc))  # fmt: skip

# dropout and backward
bug("dropped_sum", "the denominator adds the weights after dropout",
    row_sum=lambda self, x, p, keys: self.dropped(x, p, keys).sum(-1, keepdims=True))  # fmt: skip
bug("dropout_not_scaled", "what dropout keeps is not divided by 1 - p", factor_kept=lambda self, x: 1.0)
bug("dropout_not_in_dp", "the backward forgets the keep mask in dp",
    dp=lambda self, x, dp, keys: dp * x.acc(self.factor_kept(x)))  # fmt: skip
bug("no_delta", "the backward lacks the row sum of out · dout", delta=lambda self, x: np.zeros_like(x.l))
bug("dlse_sign", "dlse enters the backward with the wrong sign",
    incoming=lambda self, x: -(0 if x.dlse is None else x.dlse[..., None]) - self.delta(x))  # fmt: skip
bug("dq_unscaled", "dq is not multiplied by the scale", q_factor=lambda self, x: x.acc(1))
bug("dk_scaled_twice", "dk is multiplied by the scale twice", k_factor=lambda self, x: x.factor * x.factor)
bug("softcap_gradient", "the backward lacks softcap's slope", bend=lambda self, x, s: np.ones_like(s))
bug("dsinks_sign", "dsinks has the wrong sign", dsinks=lambda self, x, g: -Kernel.dsinks(self, x, g))
bug("dbias_first", "dbias of a broadcast bias is that of the first batch entry, not the sum over entries",
    reduce_bias=lambda self, x, dt: Kernel.reduce_bias(self, x, dt[:1] if x.bias.shape[0] == 1 else dt))  # fmt: skip

# memory and what comes before attention
bug("table_of_entry_0", "all batch entries read the first row of the block table", page=lambda self, x, b, token, size:
    x.given["block_table"][0, np.minimum(token // size, x.given["block_table"].shape[1] - 1)])  # fmt: skip
bug("table_unused", "pages are read in their order in memory, not through the block table",
    page=lambda self, x, b, token, size: token // size)  # fmt: skip
bug("q_starts_for_k", "packed keys are found by the offsets of the queries",
    starts=lambda self, x, of: x.given["cu_seqlens_q"])  # fmt: skip
bug("pairing", "rotary pairs neighbours where halves are meant, and the reverse",
    interleaved=lambda self, c: not Kernel.interleaved(self, c))  # fmt: skip
bug("queries_from_0", "rotary counts the queries from 0, not from lk - lq",
    positions=lambda self, c: np.arange(c.Lq)[None] + np.zeros((c.B, 1), int))  # fmt: skip
bug("v_scale_lost", "the codes of v are not multiplied by their scale", code_scale=lambda self, x, name:
    np.ones_like(Kernel.code_scale(self, x, name)) if name == "v" else Kernel.code_scale(self, x, name))  # fmt: skip
bug("scale_of_head_0", "all heads of quantised k and v use the code scale of head 0", code_scale=lambda self, x, name:
    np.repeat(Kernel.code_scale(self, x, name)[:, :1], Kernel.code_scale(self, x, name).shape[1], 1))  # fmt: skip
bug("dsinks_dtype", "dsinks is right, and returned in float32 where the sinks have 16 bits", store=lambda self, x, n, y:
    np.asarray(y, x.acc) if n == "dsinks" else Kernel.store(self, x, n, y))  # fmt: skip
