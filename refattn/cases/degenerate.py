"""Chapter degenerate: sizes of zero, rows that see nothing, and other ends of the definition."""

from __future__ import annotations

from functools import partial

from ..masks import Causal, Dense, Padding
from ..rotary import Rotary
from .row import BF16, F16, F32, F64, GRAD, row

__all__ = ["CASES"]

_row = partial(row, "degenerate")
_TL, _BR = Causal("top_left"), Causal("bottom_right")

CASES = (
    _row("no-batch-f32", "B = 0.",
         "zero_length", (0, 3, 3, 5, 7, 8, 8), F32, "normal"),
    _row("no-queries-f32", "Lq = 0: empty outputs of the right shape.",
         "zero_length", (2, 3, 3, 0, 7, 8, 8), F32, "normal"),
    _row("no-keys-f32", "Lk = 0: out 0, lse -inf.",
         "zero_length empty_lse empty_rows_nan", (2, 3, 3, 5, 0, 8, 8), F32, "normal"),
    _row("no-keys-sinks-bf16", "Lk = 0 and a sink: out 0, lse the sink.",
         "sinks_dropped empty_rows_nan", (2, 3, 3, 5, 0, 16, 16), BF16, "normal", sinks="normal"),
    _row("no-keys-grad-f32", "Lk = 0: dq is 0, dk and dv are empty.",
         "zero_length empty_rows_nan", (2, 3, 3, 5, 0, 8, 8), F32, "normal", want=GRAD),
    _row("d0-f32", "D = 0: every score is 0, out the mean of v.",
         "head_dim_zero scale_from_d", (2, 3, 3, 5, 7, 0, 8), F32, "normal"),
    _row("d0-grad-f64", "D = 0: dv is not 0.",
         "head_dim_zero", (2, 3, 3, 5, 7, 0, 8), F64, "normal", want=GRAD),
    _row("dv0-f32", "Dv = 0: out is empty, lse is not.",
         "head_dim_zero dv_is_d", (2, 3, 3, 5, 7, 8, 0), F32, "normal"),
    _row("all-masked-f32", "Every row empty, NaN in all that is hidden.",
         "empty_rows_nan empty_rows_mean empty_lse", (2, 3, 3, 9, 17, 8, 8), F32, "poisoned", mask=Padding((0, 0))),
    _row("some-rows-masked-bf16", "Single rows without a key between others that have some.",
         "empty_rows_nan empty_rows_mean empty_lse", (2, 3, 3, 5, 7, 32, 32), BF16, "peaked",
         mask=Dense(("xx.x.xx", ".......", "..x....", ".......", "x.x.x.x"))),
    _row("k-lens-0-f32", "One sequence of the batch is empty.",
         "zero_length empty_lse lengths_ignored", (3, 2, 2, 5, 19, 16, 16), F32, "poisoned", k_lens=(19, 0, 6)),
    _row("k-lens-0-sinks-br-f16", "The same with sinks: lse there is the sink's logit.",
         "sinks_in_lse zero_length", (3, 2, 2, 5, 19, 32, 32), F16, "poisoned", k_lens=(3, 0, 19), mask=_BR,
         sinks="normal"),
    _row("k-lens-0-sinks-minus-inf-f32", "A sink of -inf is none: lse of an empty sequence is -inf, not NaN.",
         "empty_rows_nan empty_lse zero_length", (3, 2, 2, 7, 21, 16, 16), F32, "poisoned", k_lens=(5, 0, 21),
         sinks="minus_inf"),
    _row("k-lens-0-sinks-minus-inf-grad-f64", "And its dsinks is 0, whether its rows see a key or none.",
         "dlse_empty empty_rows_nan", (3, 2, 2, 6, 22, 8, 8), F64, "poisoned", k_lens=(22, 0, 4),
         sinks="minus_inf", want=GRAD | {"lse", "dsinks"}),
    _row("rotary-no-keys-f32", "Room for queries, none of which is there, and no keys: no position to rotate by.",
         "zero_length", (2, 3, 3, 5, 0, 16, 16), F32, "peaked", q_lens=(0, 0), rotary=Rotary(16, True)),
    _row("value-of-all-f32", "An infinite value that every row sees stays in its column and head.",
         "hidden_pairs_nan", (2, 3, 3, 11, 25, 16, 16), F32, "poisoned_pairs"),
    _row("q-lens-0-bf16", "One sequence has no queries, another no keys.",
         "zero_length rows_past_end_backward", (3, 2, 2, 7, 11, 32, 32), BF16, "poisoned", q_lens=(0, 7, 5),
         k_lens=(11, 0, 9)),
    _row("empty-rows-grad-f32", "More queries than keys, aligned at the last: gradients of empty rows are 0.",
         "dlse_empty empty_rows_nan negative_block_bound", (2, 3, 3, 37, 21, 16, 16), F32, "peaked", mask=_BR,
         want=GRAD | {"lse"}),
    _row("empty-rows-sinks-grad-f64", "Rows that see a sink alone: dsinks gets dlse, all else 0.",
         "dlse_empty dsinks_not_reduced sinks_dropped", (2, 3, 3, 13, 7, 8, 8), F64, "peaked", mask=_BR,
         sinks="normal", want=GRAD | {"lse", "dsinks"}),
    _row("k-lens-0-grad-bf16", "An empty sequence and poison, backward.",
         "zero_length rows_past_end_backward", (3, 8, 2, 9, 19, 64, 64), BF16, "poisoned",
         k_lens=(19, 0, 6), q_lens=(9, 5, 0), want=GRAD),
)  # fmt: skip
