"""The keys that rows see, as intervals or as bits in strips: each mask and its algebra against its own predicate."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_masks import B, H
from test_masks import kinds as rules
from test_patterns import kinds as patterns

pytest.importorskip("numba", reason="needs numba: pip install 'refattn[cpu]'")

from refattn.flash.geometry import spans, strips
from refattn.masks import (
    BlockSparse,
    Causal,
    Chunked,
    Dilated,
    Documents,
    Mask,
    Padding,
    Prefix,
    SinkTokens,
    Visibility,
    Window,
)
from refattn.streaming.arguments import Arguments

Array = np.ndarray[Any, Any]
thorough = settings(max_examples=300, deadline=None, derandomize=True, database=None)
TOP, BOTTOM = Causal("top_left"), Causal("bottom_right")

every_kind = rules | patterns
any_mask = st.recursive(
    every_kind,
    lambda m: st.builds(lambda a, b: a & b, m, m) | st.builds(lambda a, b: a | b, m, m) | st.builds(lambda a: ~a, m),
    max_leaves=4,
)


@st.composite
def visibilities(draw: st.DrawFn, masks: st.SearchStrategy[Any] = any_mask) -> Visibility:
    """Masks over up to 5 queries and 7 keys, some of which may not exist."""
    Lq, Lk = draw(st.sampled_from((5, 4, 3, 2, 1, 0))), draw(st.sampled_from((7, 5, 6, 4, 3, 2, 1, 0)))
    lens = (draw(st.none() | st.tuples(*[st.integers(0, most)] * B)) for most in (Lq, Lk))
    return Visibility(draw(masks), B, H, Lq, Lk, *lens)


def shape_of(seen: Visibility) -> tuple[int, int, int, int]:
    return seen.B, seen.H, seen.Lq, seen.Lk


def arguments(mask: Any, shape: tuple[int, int, int, int]) -> Arguments:
    (B, H, Lq, Lk), options = shape, dict.fromkeys(("bias", "scale", "softcap", "sinks"))
    q, k = np.zeros((B, H, Lq, 1)), np.zeros((B, H, Lk, 1))
    return Arguments(q, k, k, mask=mask, **options, dtype=q.dtype)  # type: ignore[arg-type]


def between(lo: Array, hi: Array, Lk: int) -> Array:
    j = np.arange(Lk)
    return np.asarray((lo[..., None] <= j) & (j < hi[..., None]))


def check_spans(found: tuple[Array, Array], dense: Array) -> None:
    lo, hi = found
    assert lo.dtype == hi.dtype == np.int64 and lo.shape == hi.shape == dense.shape[:3]
    np.testing.assert_array_equal(between(lo, hi, dense.shape[3]), dense)
    empty = ~dense.any(-1)
    assert not lo[empty].any() and not hi[empty].any() and (lo >= 0).all() and (hi <= dense.shape[3]).all()


def are_intervals(dense: Array) -> bool:
    edges = np.diff(dense.astype(np.int8), axis=-1, prepend=0)
    return bool(((edges == 1).sum(-1) <= 1).all())


@thorough
@given(visibilities())
def test_spans_of_masks(seen: Visibility) -> None:
    found = spans(seen, shape_of(seen))
    if found is not None:
        check_spans(found, seen.tile())


@thorough
@given(visibilities())
def test_spans_of_arrays(seen: Visibility) -> None:
    dense = seen.tile()
    found = spans(dense, shape_of(seen))
    assert (found is not None) == are_intervals(dense)
    if found is not None:
        check_spans(found, dense)


by_rule = st.sampled_from(["top_left", "bottom_right"]).flatmap(
    lambda align: st.one_of(
        st.none(),
        st.just(Causal(align)),
        st.builds(Window, st.none() | st.integers(0, 8), st.none() | st.integers(0, 8), st.just(align)),
        st.builds(Prefix, st.integers(0, 8) | st.tuples(*[st.integers(0, 8)] * B), st.just(align)),
        st.builds(Chunked, st.integers(1, 9), st.just(align)),
        st.builds(Padding, st.tuples(*[st.integers(0, 9)] * B)),
        st.builds(SinkTokens, st.integers(0, 9)),
        st.builds(Documents, st.lists(st.integers(-1, 2), min_size=7, max_size=7).map(sorted)),
        st.builds(lambda q, k: Documents(q, sorted(k, reverse=True)), *[st.tuples(*[st.integers(0, 3)] * 7)] * 2),
    )
)
intersections = st.builds(lambda x, y: x if y is None else y if x is None else x & y, by_rule, by_rule)


@thorough
@given(visibilities(intersections))
def test_spans_are_known_of_rules_and_of_what_they_share(seen: Visibility) -> None:
    found = spans(seen, shape_of(seen))
    assert found is not None
    check_spans(found, seen.tile())


@thorough
@given(visibilities(st.builds(lambda x, y: x if y is None else y if x is None else x | y, by_rule, by_rule)))
def test_spans_are_known_of_unions_without_gaps(seen: Visibility) -> None:
    found, dense = spans(seen, shape_of(seen)), seen.tile()
    assert (found is not None) == are_intervals(dense)
    if found is not None:
        check_spans(found, dense)


@pytest.mark.parametrize(
    "mask",
    [
        BOTTOM & Padding((3, 7)),
        Window(2**62, 2**62, "bottom_right") & Chunked(2**62, "bottom_right") & Prefix(2**62, "top_left"),
        Documents(((0, 0, 1, 1, 2), (4, 4, 4, 4, 4)), (7, 0, 0, 4, 1, 1, 3)),
        (Documents((0, 1, 1, 3, 3, 3, 9)) & TOP) | SinkTokens(1) & Documents((0, 0, 9, 9, 9, 9, 9)),
        Window(1, 0, "top_left") | TOP,
        Padding((3, 7, 1)) & Prefix((1, 2, 3), "top_left"),  # a table may be longer than the batch
        Documents(((0,) * 7, (1,) * 7, (2,) * 7), (1,) * 7),
        ~TOP & Padding((0, 0)) | ~TOP,
    ],
    ids=repr,
)
def test_examples(mask: Mask) -> None:
    seen = Visibility(mask, B, H, 5, 7, (5, 2), (7, 6))
    found = spans(seen, shape_of(seen))
    if "~" in repr(mask):
        assert found is None
    else:
        assert found is not None
        check_spans(found, seen.tile())


def test_an_array_is_read_once_for_all_that_share_it() -> None:
    dense = np.broadcast_to(np.tri(4, 6, dtype=bool), (2, 3, 4, 6))
    lo, hi = spans(dense, (2, 3, 4, 6)) or (None, None)
    assert lo is not None and hi is not None and lo.strides[:2] == hi.strides[:2] == (0, 0)
    check_spans((lo, hi), dense)


def test_documents_that_come_back_are_no_intervals() -> None:
    for ids, lens, known in (
        ((0, 1, 0), None, False),
        ((0, 1, 0), (2,), True),  # the run that comes back does not exist
        ((2, 2, 0), None, True),
        ((5, -1, 7), None, True),
    ):
        seen = Visibility(Documents(ids), 1, 1, 3, 3, lens, lens)
        found = spans(seen, (1, 1, 3, 3))
        assert (found is not None) == known, ids
        if found is not None:
            check_spans(found, seen.tile())


@thorough
@given(visibilities(), st.integers(0, 40), st.booleans())
def test_strips(seen: Visibility, budget: int, as_array: bool) -> None:
    dense = seen.tile()
    x = arguments(dense if as_array else seen, shape_of(seen))
    got = np.full(dense.shape, 7, np.uint8)
    last = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("refattn.flash.geometry.ROWS", 2)
        found = list(strips(x, budget))
    for b, h, rows, lo, hi, bits in found:
        n = rows.stop - rows.start
        assert bits.dtype == np.uint8 and bits.shape == (n, seen.Lk) and bits.flags.c_contiguous
        assert n <= 2 or bits.nbytes <= budget
        assert n % 2 == 0 or rows.stop == seen.Lq
        check_hull(lo, hi, bits)
        assert (got[b, h, rows] == 7).all()
        got[b, h, rows] = bits
        assert last is None or last < (b, rows.start, h), "by batch entry, then by rows, then by head"
        last = b, rows.start, h
    np.testing.assert_array_equal(got, dense)


def check_hull(lo: Array, hi: Array, bits: Array) -> None:
    assert lo.dtype == hi.dtype == np.int64
    for a, z, row in zip(lo, hi, bits, strict=True):
        at = np.flatnonzero(row)
        assert (a, z) == ((at[0], at[-1] + 1) if at.size else (0, 0))


def test_strips_go_by_blocks_and_share_what_heads_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refattn.flash.geometry.BLOCK", 400)
    shape = 2, 3, 300, 130
    rng = np.random.default_rng(0)
    masks: list[tuple[Any, bool]] = [
        (Dilated(3, 2, "top_left") & Padding((100, 130)), True),
        (Dilated(3, (1, 2, 3), "top_left"), False),
        (rng.random((2, 1, 300, 130)) < 0.2, True),
        (rng.random((3, 300, 1)) < 0.2, False),
        (rng.random((300, 130)) < 0.2, True),
    ]
    for mask, shared in masks:
        x = arguments(mask, shape)
        dense = x.mask.tile() if isinstance(x.mask, Visibility) else x.mask
        found = list(strips(x, 130 * 130))
        assert len({id(bits) for *_, bits in found}) == 2 * 3 * (1 if shared else 3), mask
        assert {(rows.start, rows.stop) for _, _, rows, *_ in found} == {(0, 128), (128, 256), (256, 300)}
        for b, h, rows, lo, hi, bits in found:
            np.testing.assert_array_equal(bits, dense[b, h, rows])
            check_hull(lo, hi, bits)


def test_without_a_mask_there_are_no_strips() -> None:
    assert list(strips(arguments(None, (1, 1, 2, 3)))) == []


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Padding((2,)), "must hold one value for each of B=2"),
        (Documents((0, 1)), "is too small"),
        (BOTTOM & Documents((0,) * 6), "is too small"),
        (BlockSparse((("x",),) * 2, 1, 1), "none for head 2"),
    ],
    ids=repr,
)
def test_masks_that_do_not_fit_are_refused(mask: Mask, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spans(Visibility(mask, 2, 3, 5, 7), (2, 3, 5, 7))


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="k_lens"):
        spans(Visibility(None, 2, 3, 5, 7, k_lens=(8, 1)), (2, 3, 5, 7))


N = 1 << 16
LONG: dict[str, Mask | None] = {
    "none": None,
    "causal": TOP,
    "window and padding": Window(4096, 0, "bottom_right") & Padding((N - 7,)),
    "prefix or window": Prefix(100, "top_left") | Window(5, 0, "top_left"),
    "chunks": Chunked(8192, "bottom_right") & BOTTOM,
    "documents": Documents(tuple(range(0, N)[i // 1000] for i in range(N))) & BOTTOM,
}


@pytest.mark.parametrize("name", LONG)
def test_spans_of_long_contexts_are_cheap(name: str) -> None:
    seen = Visibility(LONG[name], 1, 32, N, N)
    spans(seen, shape_of(seen))  # a table of ids is made once
    seconds = min(timed(seen) for _ in range(3))
    assert seconds < 0.05, seconds
    tracemalloc.start()
    lo, hi = spans(seen, shape_of(seen)) or (None, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lo is not None and hi is not None and lo.strides[1] == 0
    assert peak < 200 * N, peak  # some arrays of 8 bytes a row; the mask itself would be N * N


def timed(seen: Visibility) -> float:
    start = time.perf_counter()
    assert spans(seen, shape_of(seen)) is not None
    return time.perf_counter() - start


def test_a_strip_holds_its_budget() -> None:
    x = arguments(Dilated(50, 3, "top_left"), (1, 1, 4096, 4096))
    peaks = []
    for budget in (1 << 20, 1 << 23):
        tracemalloc.start()
        for *_, bits in strips(x, budget):
            del bits
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    temporary = 10 << 20  # of BLOCK pairs at a time
    assert peaks[0] < (2 << 20) + temporary and peaks[1] < (2 << 23) + temporary, peaks
