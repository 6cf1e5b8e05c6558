"""Bugs of splits, sinks, dropout and of what bounds tiles, planted, are named: what the first line has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refattn.case import Case
from refattn.cases import CASES
from refattn.masks import Causal, Window
from tests import backward_kernel
from tests import planted_splits as planted
from tests.patient import named_of_some, patient  # noqa: F401
from tests.unseen.engine.kernel import Engine, make, supports

MOST = 4
"""so many cases of a kind are run"""
OUT = frozenset({"out", "lse"})
OWN = [
    *(Case(f"group-{n}", "A group of heads that share keys, causal.", H=4, Hkv=2, Lq=n, Lk=n + 8,
           mask=Causal("top_left"), want=OUT) for n in (17, 23, 38)),
    *(Case(f"sink-{n}", "A window that is not in the first split, and a sink.", H=2, Hkv=2, Lq=3, Lk=n, sinks="normal",
           mask=Window(6, 0, "bottom_right"), want=OUT) for n in (37, 50, 61)),
    Case("sink-seen", "A sink, and keys in all splits.", H=2, Hkv=2, Lq=3, Lk=50, sinks="normal", want=OUT),
    *(Case(f"far-sink-{n}", "A sink far above all keys.", H=4, Hkv=4, Lq=n, Lk=20, family="all_negative_logits",
           sinks="normal", want=OUT) for n in (9, 12)),
    *(Case(f"tiles-{n}", "Whole tiles, or one that is not.", H=2, Hkv=2, Lq=20, Lk=n, want=OUT) for n in (40, 64, 70)),
    *(Case(f"first-is-shorter-{n}", "An entry that has more keys than the first.", B=2, H=2, Hkv=2, Lq=9, Lk=n,
           k_lens=(20, n), want=OUT) for n in (50, 61, 77)),
    Case("tiles-causal", "A diagonal that ends within a tile.", H=2, Hkv=2, Lq=40, Lk=64, mask=Causal("top_left"),
         want=OUT),
]
"""of a kind of which there are few among the usual ones"""
USUAL = [c for c in CASES if c.scores < 2**13 and supports(c) is None] + OWN

FOUND: dict[type[Engine], tuple[Callable[[Case], bool], str]] = {
    planted.ChunkTowardsZero: (
        lambda c: repr(c.mask).startswith("Chunked(") and c.Lq > c.Lk, "by a division that rounds to 0"),
    planted.RowOverGroup: (
        lambda c: c.id.startswith("group-"), "found by the query divided by the size of its group"),
    planted.SinkInFirstSplit: (
        lambda c: c.id.startswith("sink-"), "The sink joins twice where an entry sees nothing in the first split"),
    planted.SinkNotInMaximum: (lambda c: c.id.startswith("far-sink-"), "joins the sum and not the maximum"),
    planted.WholeSplits: (
        lambda c: c.Lq <= 8 and c.mask is None and not c.backward, "// 4 or 0 keys, or so many of 4: those past them"),
    planted.WholeTiles: (
        lambda c: c.id.startswith("tiles-"), "queries go over is rounded down, with a mask or without any"),
    planted.EndsAsFirst: (
        lambda c: c.id.startswith("first-is-shorter-"), "ends, for all entries, where that of the first does"),
    planted.Renormalised: (
        lambda c: bool(c.dropout) and c.sinks is None, "What dropout keeps of a row is brought to"),
    planted.HalfBlocksBack: (
        lambda c: c.backward and repr(c.mask).startswith("BlockSparse("), "of keys half as large, in the backward"),
}  # fmt: skip


@pytest.mark.parametrize("bug", FOUND, ids=lambda bug: bug.__name__)
def test_it_is_named_first(bug: type[Engine]) -> None:
    chosen, words = FOUND[bug]
    assert words in named_of_some(make(bug, bug.__name__), [c for c in USUAL if chosen(c)], MOST)


def test_the_sign_that_says_what_is_dropped_is_lost() -> None:
    """ds is p delta where a weight was dropped, as if its p were negative there."""
    delta = "delta[b, h, i0:i1, None]"
    ds = f"ds = p * (dp - {delta})"
    change = f"{ds} if keep is None else p * np.where(mask, dp - {delta}, {delta})"
    kernel = backward_kernel.planted("sign lost", (ds, change))
    cases = [c for c in USUAL if c.dropout and c.backward and backward_kernel.supports(c) is None]
    assert "p (dp - delta), and p delta where it is dropped" in named_of_some(kernel, cases, MOST)
