"""Bugs planted in a backward are named first: the words that the first line of the diagnosis has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refattn.case import Case
from refattn.cases import CASES
from refattn.conform import run
from tests.backward_kernel import planted, supports
from tests.patient import first_named, patient  # noqa: F401

MOST = 6
"""so many cases of a kind are run"""
USUAL = [c for c in CASES if c.B * c.H * c.Lq * c.Lk < 2**12 and c.backward and supports(c) is None]


def _any(case: Case) -> bool:
    return case.mask is None and min(case.lengths[0]) > 0


def _wants(name: str) -> Callable[[Case], bool]:
    return lambda case: name in case.want


def _tiles(case: Case) -> bool:
    return case.Lk > 32 and "lse" not in case.want


def _rows(case: Case) -> bool:
    return case.Lq > 16


def _broadcast(case: Case) -> bool:
    return case.bias is not None and 1 in case.bias_shape


def _cut(of: str) -> str:
    return f"({of}.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)"


LSE, DELTA = "lse = np.where(lse == -np.inf, 0, lse)", "delta = (out * dout).sum(-1)"
DBIAS = "+= full.sum(axes, keepdims=True)[0, 0]"
FOUND: dict[str, tuple[Callable[[Case], bool], tuple[str, str], str]] = {
    "lse is stored in 16 bits": (
        lambda c: c.dtype in ("float16", "bfloat16"), (LSE, LSE + ".astype(x['q'].dtype).astype(acc)"),
        "The lse by which the backward computes the weights is rounded to the 16 bits of the inputs"),
    "lse is stored in float32": (
        lambda c: c.dtype == "float64", (LSE, LSE + ".astype(np.float32).astype(acc)"),
        "The lse by which the backward computes the weights"),
    "lse is padded, and read as if it were not": (
        _any, (LSE, LSE + "\n    lse = np.pad(lse, ((0, 0), (0, 0), (0, -case.Lq % 16))).ravel()[:lse.size]"
               ".reshape(lse.shape)"), "The backward reads lse as if rows of a head, padded to a multiple of 16"),
    "lse has the maximum twice": (
        _any, (LSE, "lse = np.where(lse == -np.inf, 0, 2 * lse - np.log(sums))"), "the maximum is added once more"),
    "the output of delta is rounded": (
        lambda c: c.dtype == "float32" == c.out_dtype,
        (DELTA, "delta = (round_to(out, 'bfloat16').astype(acc) * dout).sum(-1)"),
        "The output that delta is made of is rounded to bfloat16"),
    "delta is read at the place in the tile": (
        _rows, ("delta[b, h, i0:i1, None]", "delta[b, h, : i1 - i0, None]"), "reads delta at a row's place in its tile"),
    "delta is that of the tile": (
        _tiles, ("delta[b, h, i0:i1, None]", "(p * dp).sum(-1, keepdims=True)"), "of that tile alone"),
    "delta is not cleared": (
        _any, (DELTA, "delta = (out * dout).sum(-1).cumsum(1)"), "delta is not set back to 0: it goes on over heads"),
    "dlse is scaled": (_wants("lse"), ("delta - dlse", "delta - dlse * scale"), "multiplied by the scale"),
    "lse for dlse": (_wants("lse"), ("delta - dlse", "delta - lse"), "lse is added in the place of dlse"),
    "lse in delta": (_any, (DELTA, "delta = (out * dout).sum(-1) - lse"), "lse is subtracted from delta"),
    "dropout falls on dp - delta": (
        lambda c: c.dropout is not None, ("dp * kept, 0)", "(dp - delta[b, h, i0:i1, None]) * kept, 0) + "
                                          "delta[b, h, i0:i1, None]"), "where dropout falls on dp - delta"),
    "dp is dropped as head 0": (
        lambda c: bool(c.dropout), ("np.where(mask, dp", "np.where(keep[b, 0, i0:i1, j0:j1], dp"),
        "What dropout keeps of gradients of weights is those of head 0"),
    "dscale of scaled scores": (_wants("dscale"), ("(ds * qk).sum()", "(ds * s).sum()"), "the sum of ds and scaled"),
    "dscale of the last": (_wants("dscale"), ("dscale += ", "dscale = "), "that of the last head of the last entry"),
    "dsoftcap of tanh": (_wants("dsoftcap"), ("tanh - s / cap * slope", "tanh"), "the sum of ds times tanh(z), z"),
    "dsoftcap of s": (_wants("dsoftcap"), ("tanh - s / cap", "tanh - s"), "a z that is s, not divided by softcap"),
    "dq is scaled in the loop": (
        _tiles, ("dq[b, h, i0:i1] += ds @ k[b, hkv, j0:j1] * scale",
                 "dq[b, h, i0:i1] = (dq[b, h, i0:i1] + ds @ k[b, hkv, j0:j1]) * scale"),
        "multiplied by the scale after each tile of 32"),
    "dq of the group's heads": (
        lambda c: c.H > c.Hkv, ("dq[b, h, i0:i1] +=", "dq[b, hkv * group, i0:i1] +="), "in the group's first head"),
    "dv by stale dout": (
        _rows, ("dropped.T @ dout[b, h, i0:i1]", "dropped.T @ dout[b, h, : i1 - i0]"),
        "rows of dout in dv = pᵀ dout are those of the first tile, tiles of 16"),
    "dk and dv of unseen keys": (
        lambda c: c.mask is not None, ("dk[b, hkv, j0:j1], dv[b, hkv, j0:j1] = dk_tile * scale, dv_tile",
        "seen = every[b, hkv * group : (hkv + 1) * group, :lq, j0:j1].any((0, 1))[:, None]\n"
        "            dk[b, hkv, j0:j1] = np.where(seen, dk_tile * scale, np.nan)\n"
        "            dv[b, hkv, j0:j1] = np.where(seen, dv_tile, np.nan)"),
        "dk and dv of keys that no query sees stay NaN"),
    "dbias is stored": (
        _broadcast, (DBIAS, "= np.where(full.sum(axes, keepdims=True) == 0, dbias[b % case.bias_shape[0], "
                     "h % case.bias_shape[1]], full.sum(axes, keepdims=True))[0, 0]"), "dbias: stored, not added"),
    "dbias of another head": (
        lambda c: c.bias is not None and c.bias_shape[0] != c.bias_shape[1],
        ("b % case.bias_shape[0], h % case.bias_shape[1]", "h % case.bias_shape[0], b % case.bias_shape[1]"),
        "added to that of entry h and head b"),
    "dout is cut to TF32": (
        lambda c: c.dtype == "float32", ("dp = dout[b, h, i0:i1] @", f"dp = {_cut('dout[b, h, i0:i1]')} @"),
        "In the backward dout"),
}  # fmt: skip


def test_the_kernel_is_right() -> None:
    assert run(planted("honest"), USUAL[::4]).counts()["failed"] == 0


@pytest.mark.parametrize("name", FOUND)
def test_it_is_named_first(name: str) -> None:
    chosen, change, words = FOUND[name]
    cases: Any = [c for c in USUAL if chosen(c)]
    assert words in first_named(planted(name, change), cases[:: -(-len(cases) // MOST)])
