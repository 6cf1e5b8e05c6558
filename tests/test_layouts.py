"""Layouts, packed sequences and pages: there and back, lengths of 0, and nothing read that is not there."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.layouts import cu_seqlens, from_layout, pack, pack_lse, page, to_layout, unpack, unpack_lse, unpage

Array = np.ndarray[Any, Any]
quick = settings(max_examples=80, deadline=None, derandomize=True, database=None)
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


def numbered(shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
    """Every number another, as far as the dtype has them, none of them NaN or 0."""
    n = np.arange(np.prod(shape, dtype=int))
    return np.asarray((n % 240 if np.dtype(dtype).itemsize == 1 else n) + 1).reshape(shape).astype(dtype)


@st.composite
def ragged(draw: st.DrawFn) -> tuple[Array, list[int]]:
    """An array (B, heads, L, D) of any dtype and sizes from 0 on, and lengths, some of them 0."""
    B, heads, L, D = (draw(st.integers(0, n)) for n in (4, 3, 9, 4))
    x = numbered((B, heads, L, D), draw(st.sampled_from(DTYPES)))
    lens = draw(st.lists(st.integers(0, L) | st.just(0), min_size=B, max_size=B))
    return (np.asfortranarray(x) if draw(st.booleans()) else x), lens


def existing(x: Array, lens: list[int], fill: float = 0.0) -> Array:
    """x with `fill` where no token is, element by element."""
    y = x.copy()
    for b, n in enumerate(lens):
        for token in range(n, x.shape[2]):
            y[b, :, token] = fill
    return y


@pytest.mark.parametrize("layout", ["BHLD", "BLHD", "LBHD", "SBHD", "BSHD", "BHSD", "DLHB", "HDBS"])
def test_layouts(layout: str) -> None:
    x = numbered((2, 3, 4, 5), ml_dtypes.bfloat16)[::-1]
    y = to_layout(x, layout)
    sizes = {"B": 2, "H": 3, "L": 4, "S": 4, "D": 5}
    assert y.shape == tuple(sizes[letter] for letter in layout) and y.flags.c_contiguous and y.dtype == x.dtype
    back = from_layout(y, layout)
    np.testing.assert_array_equal(back.astype(float), x.astype(float))
    assert back.flags.c_contiguous and not np.shares_memory(y, x) and not np.shares_memory(back, y)
    index = dict(zip("BHLD", (1, 2, 3, 4), strict=True))
    at = tuple(index["L" if letter == "S" else letter] for letter in layout)
    assert float(y[at]) == float(x[1, 2, 3, 4])


def test_cu_seqlens() -> None:
    for gap, expected in ((0, [0, 3, 3, 7, 7]), (2, [0, 5, 7, 13, 15])):
        starts = cu_seqlens((3, 0, 4, 0), gap)
        assert starts.tolist() == expected and starts.dtype == np.int32
    assert cu_seqlens(()).tolist() == [0] and cu_seqlens(np.array([2, 1])).tolist() == [0, 2, 3]
    assert cu_seqlens((2**31 - 1,)).tolist() == [0, 2**31 - 1]


def test_pack_by_hand() -> None:
    x = np.array([[[[1], [2]], [[3], [4]]], [[[5], [6]], [[7], [8]]]], dtype=np.float32)  # (2, 2, 2, 1)
    packed = pack(x, (1, 2), gap=1)
    np.testing.assert_array_equal(packed[..., 0], np.float32([[1, 3], [np.nan] * 2, [5, 7], [6, 8], [np.nan] * 2]))
    np.testing.assert_array_equal(pack(x, (0, 2))[..., 0], [[5, 7], [6, 8]])
    np.testing.assert_array_equal(pack_lse(x[..., 0], (1, 2), 1), packed[..., 0].T)


@quick
@given(ragged(), st.integers(0, 3), st.booleans(), st.sampled_from([0.0, np.nan, 2.0]))
def test_pack_and_back(drawn: tuple[Array, list[int]], gap: int, own_length: bool, fill: float) -> None:
    x, lens = drawn
    packed = pack(x, lens, gap, fill)
    starts = cu_seqlens(lens, gap)
    assert packed.dtype == x.dtype and packed.shape == (starts[-1], x.shape[1], x.shape[3])
    used = np.zeros(len(packed), dtype=bool)
    for b, n in enumerate(lens):
        used[starts[b] : starts[b] + n] = True
        np.testing.assert_array_equal(packed[starts[b] : starts[b] + n].astype(float), x[b, :, :n].swapaxes(0, 1))
    rest = packed[~used].astype(float)
    assert (np.isnan(rest) if np.isnan(fill) else rest == fill).all()
    L = x.shape[2] if own_length else max(lens, default=0)
    back = unpack(packed, lens, gap, L if own_length else None)
    np.testing.assert_array_equal(back.astype(float), existing(x, lens)[:, :, :L].astype(float))
    assert back.dtype == x.dtype and not np.shares_memory(back, packed)


@quick
@given(ragged(), st.integers(0, 2))
def test_pack_lse_and_back(drawn: tuple[Array, list[int]], gap: int) -> None:
    x, lens = drawn
    if x.shape[3] == 0:
        return
    lse = x[..., 0]
    packed = pack_lse(lse, lens, gap)
    np.testing.assert_array_equal(packed.astype(float), pack(x, lens, gap)[..., 0].T.astype(float))
    assert packed.shape == (x.shape[1], cu_seqlens(lens, gap)[-1]) and packed.flags.c_contiguous
    back = unpack_lse(packed, lens, gap, x.shape[2], fill=np.nan)
    np.testing.assert_array_equal(back.astype(float), existing(lse[..., None], lens, np.nan)[..., 0].astype(float))


@quick
@given(
    ragged(), st.integers(1, 5), st.integers(0, 50), st.integers(0, 3), st.sampled_from([np.nan, 0.0]), st.booleans()
)
def test_page_and_back(
    drawn: tuple[Array, list[int]], page_size: int, seed: int, spare: int, fill: float, poisoned: bool
) -> None:
    x, lens = drawn
    poisoned = poisoned and spare > 0
    pages, table = page(x, lens, page_size, seed, spare, fill, "poisoned" if poisoned else "-1")
    needed = [-(-n // page_size) for n in lens]
    B, heads, L, D = x.shape
    assert pages.shape == (sum(needed) + spare, page_size, heads, D) and pages.dtype == x.dtype
    assert table.shape == (B, -(-L // page_size)) and table.dtype == np.int32
    # each page belongs to one place of one entry; slots beyond hold the fill, and unused entries show nothing else
    free = np.ones(pages.shape[:2], dtype=bool)
    for b, n in enumerate(lens):
        for token in range(n):
            at = table[b, token // page_size], token % page_size
            assert free[at]
            free[at] = False
            np.testing.assert_array_equal(pages[at].astype(float), x[b, :, token].astype(float))
        for entry in table[b, needed[b] :]:
            assert (entry == -1) != poisoned
            assert entry == -1 or free[entry].all()
    rest = pages[free].astype(float)
    assert (np.isnan(rest) if np.isnan(fill) else rest == 0).all()
    back = unpage(pages, table, lens, L)
    np.testing.assert_array_equal(back.astype(float), existing(x, lens).astype(float))
    assert unpage(pages, table, lens).shape[2] == max(lens, default=0)


@quick
@given(ragged(), st.integers(1, 4), st.integers(0, 50), st.integers(0, 2))
def test_k_and_v_share_a_table(drawn: tuple[Array, list[int]], page_size: int, seed: int, spare: int) -> None:
    k, lens = drawn
    v = numbered((*k.shape[:1], 1, k.shape[2], 7))
    tables = [page(x, lens, page_size, seed, spare)[1] for x in (k, v)]
    np.testing.assert_array_equal(*tables)


def test_pages_are_shuffled() -> None:
    """Never in order if there are two, whatever the seed, and another seed is another order."""
    x = numbered((3, 1, 8, 1))
    tables = [page(x, (8, 5, 7), 2, seed)[1].ravel() for seed in range(200)]
    for table in tables:
        assert (np.diff(table[table >= 0]) < 0).any()
    assert len({tuple(t) for t in tables}) > 190
    for seed in range(20):
        assert page(x[:1, :, :2], (2,), 1, seed)[1].tolist() == [[1, 0]]


def test_pages_do_not_depend_on_numpy() -> None:
    """Six words of Philox4x64 in ascending order, computed once: the same pages on every machine."""
    assert page(numbered((2, 1, 6, 1)), (6, 3), 2, seed=3, spare=1)[1].tolist() == [[1, 5, 2], [4, 3, -1]]


def test_integer_codes() -> None:
    """Codes have no NaN: they take a fill of their own; where nothing is to fill, none is needed."""
    codes = numbered((2, 2, 4, 2), np.int8)
    np.testing.assert_array_equal(unpack(pack(codes, (4, 1), 2, fill=-127), (4, 1), 2), existing(codes, [4, 1]))
    pages, table = page(codes, (4, 1), 4, fill=99)
    assert (pages[table[1, 0], 1:] == 99).all()
    assert pack(codes, (4, 1)).dtype == page(codes, (4, 4), 2)[0].dtype == np.int8


X = np.ones((2, 1, 3, 1))
PACKED, (PAGES, PAGE_TABLE) = pack(X, (3, 1)), page(X, (3, 1), 2)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: to_layout(X, "THD"), ValueError, r"layout='THD' must be an order of B, H, L \(or S\) and D; for THD"),
    (lambda: to_layout(X, "BSLD"), ValueError, r"layout='BSLD' must be an order"),
    (lambda: to_layout(X, None), ValueError, r"layout=None must be an order"),
    (lambda: from_layout(X, "BHL"), ValueError, r"layout='BHL' must be an order"),
    (lambda: to_layout(X[0], "BLHD"), ValueError, r"x.shape=\(1, 3, 1\) must have 4 dimensions \(B, heads, L, D\)"),
    (lambda: from_layout(X[0], "BLHD"), ValueError, r"x.shape=\(1, 3, 1\) must have 4 dimensions \(BLHD\)"),
    (lambda: cu_seqlens((1, -1)), ValueError, r"lens=\(1, -1\) must hold ints >= 0"),
    (lambda: cu_seqlens((1, 2.0)), ValueError, r"lens=\(1, 2.0\) must hold ints >= 0"),
    (lambda: cu_seqlens(5), ValueError, r"lens=5 must hold ints >= 0"),
    (lambda: cu_seqlens((1,), -1), ValueError, r"gap=-1 must be an int >= 0"),
    (lambda: cu_seqlens((2**30, 2**30)), ValueError, r"add up to 2147483648 tokens, beyond int32; pack fewer"),
    (lambda: pack(X[0], (1,)), ValueError, r"x.shape=\(1, 3, 1\) must have 4 dimensions"),
    (lambda: pack(X, (3,)), ValueError, r"lens=\(3,\) must hold B=2 ints >= 0 up to L=3"),
    (lambda: pack(X, (3, 4)), ValueError, r"lens=\(3, 4\) must hold B=2 ints >= 0 up to L=3"),
    (lambda: pack(X, (3, 1), True), ValueError, r"gap=True must be an int >= 0"),
    (lambda: pack(X.astype(np.int8), (3, 1), 1), ValueError, r"fill=nan is no value of dtype int8; pass one, such as"),
    (lambda: pack(X.astype(np.int8), (3, 1), 1, 128), ValueError, r"fill=128 is no value of dtype int8"),
    (lambda: pack(X, (3, 1), 1, "x"), ValueError, r"fill='x' is no value of dtype float64"),
    (lambda: unpack(X, (3, 1)), ValueError, r"packed.shape=\(2, 1, 3, 1\) must have 3 dimensions \(T, heads, D\)"),
    (lambda: unpack(PACKED, (3, 2)), ValueError, r"packed.shape=\(4, 1, 1\) must hold T=5 tokens, as lens"),
    (lambda: unpack(PACKED, (3, 1), 1), ValueError, r"must hold T=6 tokens, as lens and gap=1 say"),
    (lambda: unpack(PACKED, (3, 1), 0, 2), ValueError, r"lens=\(3, 1\) must hold ints >= 0 up to L=2"),
    (lambda: unpack(PACKED, (3, 1), 0, -2), ValueError, r"L=-2 must be an int >= 0; pass None for the longest"),
    (lambda: unpack(PACKED.astype(int), (3, 1), fill=0.5), ValueError, r"fill=0.5 is no value of dtype int64"),
    (lambda: pack_lse(X, (3, 1)), ValueError, r"lse.shape=\(2, 1, 3, 1\) must have 3 dimensions \(B, heads, L\)"),
    (lambda: unpack_lse(PACKED, (3, 1)), ValueError, r"packed.shape=\(4, 1, 1\) must have 2 dimensions \(heads, T\)"),
    (lambda: page(X[0], (1,), 2), ValueError, r"x.shape=\(1, 3, 1\) must have 4 dimensions"),
    (lambda: page(X, (3, 4), 2), ValueError, r"lens=\(3, 4\) must hold B=2 ints >= 0 up to L=3"),
    (lambda: page(X, (3, 1), 0), ValueError, r"page_size=0 must be an int >= 1"),
    (lambda: page(X, (3, 1), 2, -1), ValueError, r"seed=-1 must be an int >= 0"),
    (lambda: page(X, (3, 1), 2, spare=-1), ValueError, r"spare=-1 must be an int >= 0"),
    (lambda: page(X, (3, 1), 2, unused="0"), ValueError, r"unused='0' must be '-1' or 'poisoned'"),
    (lambda: page(X, (3, 1), 2, unused="poisoned"), ValueError, r"unused='poisoned' needs a page to point to; pa"),
    (lambda: page(X.astype(np.uint8), (3, 1), 2), ValueError, r"fill=nan is no value of dtype uint8"),
    (lambda: unpage(PAGES[0], PAGE_TABLE, (3, 1)), ValueError, r"must have 4 dimensions \(P, page_size, heads, D\)"),
    (lambda: unpage(PAGES[:, :0], PAGE_TABLE, (3, 1)), ValueError, r"pages.shape=\(3, 0, 1, 1\) must have page_"),
    (lambda: unpage(PAGES, PAGE_TABLE * 1.0, (3, 1)), TypeError, r"block_table of float64, \(2, 2\) must be integers"),
    (lambda: unpage(PAGES, PAGE_TABLE[0], (3,)), TypeError, r"block_table of int32, \(2,\) must be integers \(B"),
    (lambda: unpage(PAGES, PAGE_TABLE, (3,)), ValueError, r"lens=\(3,\) must hold B=2 ints >= 0"),
    (lambda: unpage(PAGES, PAGE_TABLE, (3, 3)), ValueError, r"block_table\[1\]=.* must name 2 of P=3 pages for 3"),
    (lambda: unpage(PAGES[:2], PAGE_TABLE, (3, 1)), ValueError, r"must name \d of P=2 pages"),
    (lambda: unpage(PAGES, PAGE_TABLE[:, :1], (3, 1)), ValueError, r"block_table\[0\]=.* must name 2 of P=3 pages"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED, ids=[r[2][:30] for r in REFUSED])
def test_refusals(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
