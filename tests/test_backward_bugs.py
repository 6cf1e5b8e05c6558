"""Bugs planted in a backward: a hypothesis of the kind explains what is returned, and some are named first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refattn.calling import Local
from refattn.case import BiasSpec, Case
from refattn.cases import CASES
from refattn.conform import examine, run
from refattn.diagnose.hypothesis import hypotheses
from refattn.diagnose.trial import Trial
from tests.backward_kernel import planted, supports
from tests.patient import first_named, patient  # noqa: F401

MOST = 5
"""so many cases of a kind are run"""
USUAL = [c for c in CASES if c.scores < 2**12 and c.backward and supports(c) is None]
OWN = [
    Case("few-keys", "More tiles of queries than of keys.", B=2, H=2, Lq=37, Lk=5, want=frozenset({"dq", "dk", "dv"})),
    Case("bias-of-keys", "A bias that all queries share, and several tiles of these.", B=2, H=2, Lq=61, Lk=11,
         bias=BiasSpec("HK"), want=frozenset({"dq", "dk", "dv", "dbias"})),
]  # fmt: skip
"""of a kind that is not among the usual ones"""
NAMED = ("lse in float32", "output of delta", "delta in tiles", "dlse scaled", "dscale of the last", "unseen keys",
         "grid of dq", "dbias stored by rows")
"""of these it is shown that nothing else is named before them"""


def _any(case: Case) -> bool:
    return case.mask is None and min(case.lengths[0]) > 0


def _wants(name: str) -> Callable[[Case], bool]:
    return lambda case: name in case.want


def _tiles(case: Case) -> bool:
    return case.Lk > 32 and "lse" not in case.want


def _dropped(case: Case) -> bool:
    return bool(case.dropout) and "dq" in case.want


def _tile_unseen(case: Case) -> bool:
    """Whether in some entry no query sees the second tile of keys."""
    return 32 < case.Lk <= 64 and not case.visibility.tile()[..., 32:].any((1, 2, 3)).all()


def _rows(case: Case) -> bool:
    return case.Lq > 16


def _biased(case: Case) -> bool:
    return case.bias is not None and case.bias_shape[0] != case.bias_shape[1]


def _cut(of: str) -> str:
    return f"({of}.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)"


LSE, DELTA = "lse = np.where(lse == -np.inf, 0, lse)", "delta = (out * dout).sum(-1)"
DELTA_READ = "delta[b, h, i0:i1, None]"
STORES = "dk[b, hkv, j0:j1], dv[b, hkv, j0:j1] = dk_tile * scale, dv_tile"
DQ = "dq[b, h, i0:i1] += ds @ k[b, hkv, j0:j1] * scale"
SEEN = "seen = every[b, hkv * group : (hkv + 1) * group, :lq, j0:j1].any((0, 1))[:, None]\n            "
DBIAS = "+= full.sum(axes, keepdims=True)[0, 0]"
Row = tuple[Callable[[Case], bool], str, str, str]
"""(cases, text of the source, what it is replaced by, words of the hypothesis)"""
FOUND: dict[str, Row] = {
    "lse in 16 bits": (lambda c: c.dtype in ("float16", "bfloat16"), LSE, LSE + ".astype(x['q'].dtype).astype(acc)",
                       "lse by which the backward computes the weights is rounded to the 16 bits of the inputs"),
    "lse in float32": (lambda c: c.dtype == "float64", LSE, LSE + ".astype(np.float32).astype(acc)",
                       "The lse by which the backward computes the weights"),
    "lse padded": (_any, LSE, LSE + "\n    lse = np.pad(lse, ((0, 0), (0, 0), (0, -case.Lq % 16))).ravel()[:lse.size]"
                   ".reshape(lse.shape)", "reads lse as if rows of a head, padded to a multiple of 16"),
    "lse with two maxima": (_any, LSE, "lse = np.where(lse == -np.inf, 0, 2 * lse - np.log(sums))",
                            "the maximum is added once more"),
    "lse of the keys alone": (
        lambda c: c.sinks == "normal" and c.mask is None, LSE,
        LSE + "\n    lse = lse if sinks is None else lse + np.log1p(-np.exp(sinks[:, None].astype(acc) - lse))",
        "from the sum of the keys alone, without the sink; the weight of the sink too"),
    "output of delta": (lambda c: c.dtype == "float32" == c.out_dtype, DELTA,
                        "delta = (round_to(out, 'bfloat16').astype(acc) * dout).sum(-1)",
                        "The output that delta is made of is rounded to bfloat16"),
    "delta in tiles": (_rows, DELTA_READ, "delta[b, h, : i1 - i0, None]", "delta at a row's place in its tile of 16"),
    "delta of keys": (_tiles, DELTA_READ, "(p * dp).sum(-1, keepdims=True)", "each tile of 32 keys delta is the sum"),
    "delta not cleared": (_any, DELTA, "delta = (out * dout).sum(-1).cumsum(1)", "it goes on over heads"),
    "delta in columns": (lambda c: c.Dv == 24, DELTA, "delta = (out * dout)[..., :16].sum(-1)",
                         "of whole blocks of 16 columns alone"),
    "dlse scaled": (_wants("lse"), "delta - dlse", "delta - dlse * scale", "is multiplied by the scale"),
    "lse for dlse": (_wants("lse"), "delta - dlse", "delta - lse", "lse is added in the place of dlse"),
    "lse in delta": (_any, DELTA, "delta = (out * dout).sum(-1) - lse", "lse is subtracted from delta"),
    "delta dropped": (_dropped, "np.where(mask, dp * kept, 0)",
                      f"np.where(mask, (dp - {DELTA_READ}) * kept, 0) + {DELTA_READ}", "dropout falls on dp - delta"),
    "keep of head 0": (_dropped, "np.where(mask, dp", "np.where(keep[b, 0, i0:i1, j0:j1], dp",
                       "What dropout keeps of gradients of weights is those of head 0"),
    "dscale of logits": (lambda c: "dscale" in c.want and c.softcap is not None, "(ds * qk).sum()",
                         "(ds * cap * np.tanh(s / cap)).sum()", "dscale is the sum of ds and capped scores"),
    "dscale of the last": (_wants("dscale"), "dscale += ", "dscale = ", "of the last head of the last entry"),
    "dsoftcap of 1": (_wants("dsoftcap"), "tanh - s / cap * slope", "tanh - s / cap", "ds times tanh(z) - z, z ="),
    "dsoftcap of s": (_wants("dsoftcap"), "tanh - s / cap", "tanh - s", "a z that is s, not divided by softcap"),
    "dq scaled": (_tiles, DQ, "dq[b, h, i0:i1] = (dq[b, h, i0:i1] + ds @ k[b, hkv, j0:j1]) * scale",
                  "multiplied by the scale after each tile of 32"),
    "dq of group": (lambda c: c.H > c.Hkv, "dq[b, h, i0:i1] +=", "dq[b, hkv * group, i0:i1] +=", "group's first head"),
    "stale dout": (_rows, "dropped.T @ dout[b, h, i0:i1]", "dropped.T @ dout[b, h, : i1 - i0]",
                   "rows of dout in dv = pᵀ dout are those of the first tile, tiles of 16"),
    "unseen keys": (lambda c: c.mask is not None, STORES,
                    SEEN + "dk[b, hkv, j0:j1] = np.where(seen, dk_tile * scale, np.nan)\n            "
                    "dv[b, hkv, j0:j1] = np.where(seen, dv_tile, np.nan)", "of keys that no query sees stay NaN"),
    "keys of the tile before": (
        _tile_unseen, STORES,
        SEEN + "dk_tile, dv_tile = last = (dk_tile, dv_tile) if seen.any() or not j0 else "
        "tuple(x[: j1 - j0] for x in last)\n            " + STORES,
        "of tiles of 32 keys that no query sees are those of the tile before"),
    "dbias stored": (lambda c: _biased(c) and c.bias_shape[2] == 1, DBIAS,
                     DBIAS[1:].replace("full.sum(axes", "full[:, :, i1 - 1 : i1].sum(axes"), "dbias: stored, not"),
    "bias of the first rows": (
        lambda c: c.bias is not None and c.bias_shape[2] > 16, "scores(b, h, slice(i0, i1), slice(j0, j1))",
        "scores(b, h, slice(i0, i1), slice(j0, j1))\n                t = t if bias is None else "
        "t - bias[b, h, i0:i1, j0:j1] + bias[b, h, : i1 - i0, j0:j1]", "the bias is read at the place in a tile of 16"),
    "dbias elsewhere": (_biased, "b % case.bias_shape[0], h %", "h % case.bias_shape[0], b %", "entry h and head b"),
    "dbias stored by rows": (
        lambda c: c.id == "bias-of-keys", DBIAS, DBIAS + " * (i1 == lq)",
        "by each tile of 16 rows of all heads and entries that the bias"),
    "grid of dq": (lambda c: c.id == "few-keys", DQ, DQ + " * (i0 < lk)",
                   "dq has as many tiles of 16 queries as there are of keys"),
    "grid of dk and dv": (lambda c: c.Lk > 32 >= c.Lq, STORES, f"if j0 < lq:\n                {STORES}",
                          "dk and dv has as many tiles of 32 keys as there are of queries"),
    "keep of another tile": (
        _dropped, "keep[b, h, i0:i1, j0:j1]", "keep[b, h, np.arange(2 * i0, i0 + i1) % case.Lq, j0:j1]",
        "16 queries is taken for one of 32, by its number: what is past the end"),
    "dout in TF32": (lambda c: c.dtype == "float32", "dp = dout[b, h, i0:i1] @", f"dp = {_cut('dout[b, h, i0:i1]')} @",
                     "In the backward dout in dp = dout vᵀ is cut to the ten bits of TF32"),
}  # fmt: skip


def _kernel(name: str) -> tuple[Any, list[Case]]:
    chosen, old, new, _ = FOUND[name]
    return planted(name, (old, new)), [c for c in USUAL if chosen(c)] or [c for c in OWN if chosen(c)]


def test_the_kernel_is_right() -> None:
    assert run(planted("honest"), USUAL[::4]).counts()["failed"] == 0


@pytest.mark.parametrize("name", FOUND)
def test_a_hypothesis_explains_it(name: str) -> None:
    kernel, cases = _kernel(name)
    found = (examine(Local(kernel), c) for c in cases[:: -(-len(cases) // (2 * MOST))])
    trials = [Trial(v) for v in found if v.status == "failed"]
    trials = trials[:: -(-len(trials) // MOST)]
    those = [h for h in hypotheses() if FOUND[name][3] in h.what]
    assert trials and those
    assert max(sum(t.match(h).nearly for t in trials) for h in those) > len(trials) / 2


@pytest.mark.parametrize("name", NAMED)
def test_it_is_named_first(name: str) -> None:
    kernel, cases = _kernel(name)
    assert FOUND[name][3] in first_named(kernel, cases[:: -(-len(cases) // MOST)])
