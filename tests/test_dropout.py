"""Philox against its published answers, NumPy's 64-bit sister and plain integers; masks against chance and tiles."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.dropout import fraction_bound, fraction_is_plausible, keep, keep_tile, philox4x32

Array = np.ndarray[Any, Any]
quick = settings(max_examples=80, deadline=None, derandomize=True, database=None)
words = st.integers(0, 2**32 - 1)
SHAPE = (2, 3, 40, 37)

KAT = [  # tests/kat_vectors of Random123: counter, key, answer of "philox4x32 10"
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def by_integers(counter: tuple[int, ...], key: tuple[int, ...], bits: int, rounds: int = 10) -> tuple[int, ...]:
    """Philox-4 for words of any size, in Python's integers, as the C++ standard writes it."""
    multipliers = {32: (0xD2511F53, 0xCD9E8D57), 64: (0xD2E7470EE14C6C93, 0xCA5A826395121157)}[bits]
    weyl = {32: (0x9E3779B9, 0xBB67AE85), 64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}[bits]
    x = list(counter)
    for q in range(rounds):
        v = [x[2], x[1], x[0], x[3]]
        for n in range(2):
            high, low = divmod(v[2 * n] * multipliers[1 - n], 2**bits)
            x[2 * n] = high ^ ((key[n] + q * weyl[n]) % 2**bits) ^ v[2 * n + 1]
            x[2 * n + 1] = low
    return tuple(x)


@pytest.mark.parametrize(("counter", "key", "answer"), KAT)
def test_published_answers(counter: str, key: str, answer: str) -> None:
    got = philox4x32(integers(counter), integers(key))  # type: ignore[arg-type]
    assert tuple(map(int, got)) == integers(answer) == by_integers(integers(counter), integers(key), 32)


@quick
@given(st.tuples(words, words, words, words), st.tuples(words, words), st.integers(0, 12))
def test_philox_by_integers(counter: Any, key: Any, rounds: int) -> None:
    assert tuple(map(int, philox4x32(counter, key, rounds))) == by_integers(counter, key, 32, rounds)


def test_the_integers_are_numpys_philox() -> None:
    """NumPy has Philox4x64-10 only: other words, the same construction; it counts up before it draws."""
    counter, key = (3, 2**63 + 5, 7, 11), (13, 2**64 - 17)
    numpy = np.random.Philox(counter=np.array(counter, dtype=np.uint64), key=np.array(key, dtype=np.uint64))
    expected = [by_integers((counter[0] + n, *counter[1:]), key, 64) for n in (1, 2)]
    assert numpy.random_raw(8).tolist() == [word for block in expected for word in block]


def test_words_broadcast() -> None:
    got = philox4x32((np.arange(3)[:, None], 5, np.arange(4, dtype=np.int8), 2**32 - 1), (1, 2))
    assert all(w.shape == (3, 4) and w.dtype == np.uint64 for w in got)
    assert tuple(int(w[2, 3]) for w in got) == by_integers((2, 5, 3, 2**32 - 1), (1, 2), 32)


@quick
@given(
    st.integers(0, 2**64 - 1), words, st.integers(0, 2**20 - 1), st.integers(0, 2**12 - 1), words,
    st.integers(0, 2**34 - 1), st.floats(0, 1),
)  # fmt: skip
def test_keep_is_what_it_says(seed: int, offset: int, b: int, h: int, i: int, j: int, p: float) -> None:
    """One weight, by integers and an exact comparison."""
    word = by_integers((j // 4, i, b * 4096 + h, offset), (seed % 2**32, seed // 2**32), 32)[j % 4]
    assert bool(keep(seed, offset, b, h, i, j, p)) == (word < (1 - Fraction(p)) * 2**32)


def test_comparison_is_exact_where_rounding_would_flip_it() -> None:
    """p at which a word is (1 - p) 2**32 itself, and the float64 on either side of p."""
    b, h, i, j = 0, 0, 5, 6
    word = by_integers((1, 5, 0, 0), (9, 0), 32)[2]
    p = float(1 - Fraction(word, 2**32))
    assert (1 - Fraction(p)) * 2**32 == word
    assert not keep(9, 0, b, h, i, j, p) and not keep(9, 0, b, h, i, j, math.nextafter(p, 1))
    assert keep(9, 0, b, h, i, j, math.nextafter(p, 0))
    tiles = [keep_tile(9, 0, at, (1, 1, 6, 7))[0, 0, i, j] for at in (p, math.nextafter(p, 0))]
    assert tiles == [False, True]


@pytest.mark.parametrize("p", [0.0, 5e-324, 1e-30, 2.0**-33])
def test_p_below_the_words_keeps_all(p: float) -> None:
    assert keep_tile(1, 0, p, SHAPE).all() and fraction_is_plausible(keep_tile(1, 0, p, SHAPE), p)


@pytest.mark.parametrize("p", [1.0, math.nextafter(1, 0), 1 - 2.0**-33])
def test_p_near_one_keeps_none(p: float) -> None:
    kept = keep_tile(1, 0, p, SHAPE)
    assert not kept.any() and fraction_is_plausible(kept, p)


slices = st.builds(
    slice, st.none() | st.integers(-45, 45), st.none() | st.integers(-45, 45), st.sampled_from([None, 1, 2, -1, -3])
)


@quick
@given(slices, slices, st.none() | st.integers(0, 1), st.none() | st.integers(0, 2), st.sampled_from([0.1, 0.5, 0.875]))
def test_tiles_equal_the_whole(rows: slice, keys: slice, b: int | None, h: int | None, p: float) -> None:
    """Any tile, in any shape of weights, is the definition's: tiling, B, H, Lq and Lk do not matter."""
    bs, hs, i, j = np.ogrid[tuple(map(slice, SHAPE))]
    whole = keep(7, 11, bs, hs, i, j, p)
    part = whole[:, :, rows, keys]
    part = part if b is None else part[b : b + 1]
    part = part if h is None else part[:, h : h + 1]
    part = part[0, 0] if b is not None and h is not None else part
    tile = keep_tile(7, 11, p, SHAPE, rows, keys, b, h)
    assert tile.dtype == np.bool_ and tile.shape == part.shape
    np.testing.assert_array_equal(tile, part)


def test_lengths_do_not_matter() -> None:
    whole = keep_tile(3, 4, 0.4, (2, 3, 9, 70))
    np.testing.assert_array_equal(keep_tile(3, 4, 0.4, (1, 2, 5, 33)), whole[:1, :2, :5, :33])
    assert keep_tile(3, 4, 0.4, (2, 3, 0, 70)).shape == (2, 3, 0, 70)
    assert keep_tile(3, 4, 0.4, (2, 0, 9, 0)).shape == (2, 0, 9, 0)


@pytest.mark.parametrize("p", [1e-4, 0.1, 0.5, 0.9, 0.9999])
def test_fraction(p: float) -> None:
    """Of 400,000 weights, of each head, of each column and of visible ones alone, as many as chance allows."""
    kept = keep_tile(2, 1, p, (4, 5, 100, 200))
    causal = np.tri(100, 200, dtype=bool)
    assert fraction_is_plausible(kept, p) and fraction_is_plausible(kept, p, causal)
    for part in (*kept[0], *np.moveaxis(kept, -1, 0), kept[..., ::2], kept[..., 1::4]):
        assert fraction_is_plausible(part, p)
    assert not fraction_is_plausible(~kept, p) or p == 0.5
    assert not fraction_is_plausible(kept, 3 * p if p < 0.2 else p / 1.02)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7])
def test_masks_are_independent(p: float) -> None:
    """Two seeds, offsets, heads, entries, neighbouring rows and keys agree as often as independent masks do."""
    shape = (4, 6, 60, 64)
    mask = keep_tile(5, 6, p, shape)
    high = 5 + 2**32
    pairs = [(mask, keep_tile(seed, offset, p, shape)) for seed, offset in ((6, 6), (5, 7), (high, 6), (6, 5))]
    for axis, distances in ((0, (1, 2)), (1, (1, 2, 3)), (2, (1, 2, 3, 4)), (3, (1, 2, 3, 4, 5))):
        for n in distances:  # no weight in two pairs, or the pairs would not be independent
            first = np.array([m for m in range(shape[axis] - n) if m // n % 2 == 0])
            pairs.append((mask.take(first, axis), mask.take(first + n, axis)))
    lower = np.tri(60, k=-1, dtype=bool)
    pairs.append((mask[..., :60][..., lower], mask[..., :60].swapaxes(2, 3)[..., lower]))
    for n, (one, other) in enumerate(pairs):
        assert one.size > 20_000 and fraction_is_plausible(one == other, 2 * p * (1 - p)), f"pair {n}"


def exactly(kept: int, n: int, p: Fraction) -> Fraction:
    """The probability of a fraction as far from 1 - p as kept / n, by its Kullback-Leibler divergence."""

    def far(k: int) -> float:
        parts = ((k, 1 - p), (n - k, p))
        return sum(c * math.log(c / float(n * q)) for c, q in parts if c)

    least = far(kept) - 1e-9
    return sum((math.comb(n, k) * (1 - p) ** k * p ** (n - k) for k in range(n + 1) if far(k) >= least), Fraction(0))


@quick
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.integers(1, 63))
def test_bound_covers_the_binomial(counts: tuple[int, int], p64: int) -> None:
    """Never below the exact probability, summed in rational numbers."""
    n, kept = counts
    p = Fraction(p64, 64)
    assert fraction_bound(kept, n, float(p), margin=0.0) >= float(exactly(kept, n, p)) * (1 - 1e-12)


def test_bound_by_hand() -> None:
    assert fraction_bound(0, 10, 0.5, 0.0) == pytest.approx(2 * 0.5**10)
    assert fraction_bound(10, 10, 0.5, 0.0) == pytest.approx(2 * 0.5**10)
    assert fraction_bound(5, 10, 0.5) == fraction_bound(0, 0, 0.3) == 1.0
    assert fraction_bound(3, 4, 0.0) == fraction_bound(1, 4, 1.0) == 0.0
    assert fraction_bound(4, 4, 0.0) == fraction_bound(0, 4, 1.0) == fraction_bound(0, 0, 1.0) == 1.0
    assert fraction_bound(0, 1, 1e-300, 0.0) == pytest.approx(2e-300, rel=1e-9, abs=0)
    assert fraction_bound(10**9 // 2, 10**9, 0.5 + 1e-9) > 0.9
    assert fraction_bound(9 * 10**8 - 10**6, 10**9, 0.1) == 0.0


def test_margin() -> None:
    """A generator of 8 bits keeps 230 of 256 for p = 0.1: implausible for 32 bits, plausible for what it is."""
    kept = np.random.default_rng(0).integers(0, 256, 4 * 10**6, dtype=np.uint8) <= math.floor(0.9 * 255)
    assert not fraction_is_plausible(kept, 0.1)
    assert fraction_is_plausible(kept, 0.1, margin=1 / 256)
    assert fraction_bound(899, 1000, 0.1 + 1 / 256, margin=1 / 256) == 1.0
    for far, nearest in ((10, 0.1 + 1 / 256), (999, 0.1 - 1 / 256)):
        assert fraction_bound(far, 1000, 0.1, margin=1 / 256) == pytest.approx(fraction_bound(far, 1000, nearest, 0.0))
    assert not fraction_is_plausible(np.arange(1000) > 0, 0.0, margin=1 / 256), "p = 0 leaves nothing to chance"


def test_only_visible_weights_count() -> None:
    kept = np.array([[True, False], [True, True]])
    assert fraction_is_plausible(kept, 0.0, np.tri(2, dtype=bool))
    assert not fraction_is_plausible(kept, 0.0) and not fraction_is_plausible(kept, 0.0, np.array([False, True]))
    assert fraction_is_plausible(kept, 1.0, np.array([[False, True], [False, False]]))
    assert fraction_is_plausible(np.zeros((0, 3), dtype=bool), 0.5)


A = np.arange(3)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: philox4x32((0, 0, 0), (0, 0)), ValueError, r"counter of 3 words and key of 2 must have 4 and 2"),
    (lambda: philox4x32((0, 0, 0, 0), (0,)), ValueError, r"counter of 4 words and key of 1 must have 4 and 2"),
    (lambda: philox4x32((0, 0, 0, 2**32), (0, 0)), ValueError, r"counter\[3\]=4294967296 must be from 0 to"),
    (lambda: philox4x32((0, 0, 0, 0.5), (0, 0)), TypeError, r"counter\[3\].dtype=float64 must be an integer dtype"),
    (lambda: philox4x32((0, 0, 0, 0), (-1, 0)), ValueError, r"key\[0\]=-1 must be an int >= 0 and < 4294967296"),
    (lambda: philox4x32((0, 0, 0, 0), (0, 0), -1), ValueError, r"rounds=-1 must be an int >= 0"),
    (lambda: keep(-1, 0, 0, 0, 0, A, 0.5), ValueError, r"seed=-1 must be an int >= 0 and < 18446744073709551616"),
    (lambda: keep(2**64, 0, 0, 0, 0, A, 0.5), ValueError, r"seed=18446744073709551616 must be an int"),
    (lambda: keep(1.0, 0, 0, 0, 0, A, 0.5), ValueError, r"seed=1.0 must be an int"),
    (lambda: keep(0, 2**32, 0, 0, 0, A, 0.5), ValueError, r"offset=4294967296 must be an int >= 0 and < 4294967296"),
    (lambda: keep(0, True, 0, 0, 0, A, 0.5), ValueError, r"offset=True must be an int"),
    (lambda: keep(0, 0, 2**20, 0, 0, A, 0.5), ValueError, r"b=1048576 must be from 0 to 2\*\*20 - 1"),
    (lambda: keep(0, 0, 0, 4096, 0, A, 0.5), ValueError, r"h=4096 must be from 0 to 2\*\*12 - 1"),
    (lambda: keep(0, 0, 0, 0, -A, A, 0.5), ValueError, r"i=-2 must be from 0 to 2\*\*32 - 1"),
    (lambda: keep(0, 0, 0, 0, 0, 2**34 + A, 0.5), ValueError, r"j=17179869186 must be from 0 to 2\*\*34 - 1"),
    (lambda: keep(0, 0, 0, 0, 0, A > 0, 0.5), TypeError, r"j.dtype=bool must be an integer dtype"),
    (lambda: keep(0, 0, 0, 0, 0, A, 1.5), ValueError, r"p=1.5 must be a probability from 0 to 1; pass None for no"),
    (lambda: keep(0, 0, 0, 0, 0, A, -0.1), ValueError, r"p=-0.1 must be a probability"),
    (lambda: keep(0, 0, 0, 0, 0, A, math.nan), ValueError, r"p=nan must be a probability"),
    (lambda: keep(0, 0, 0, 0, 0, A, True), ValueError, r"p=True must be a probability"),
    (lambda: keep_tile(0, 0, 0.5, (1, 1, 3)), ValueError, r"shape=\(1, 1, 3\) must be \(B, H, Lq, Lk\)"),
    (lambda: keep_tile(0, 0, 0.5, (1, 1, 3, -1)), ValueError, r"Lk=-1 must be an int >= 0"),
    (lambda: keep_tile(0, 0, 0.5, (1, 5000, 3, 1)), ValueError, r"H=5000 must be an int >= 0 and < 4097"),
    (lambda: keep_tile(0, 0, 0.5, (2, 1, 3, 3), b=2), ValueError, r"b=2 must be an int >= 0 and < 2"),
    (lambda: keep_tile(0, 0, 0.5, (2, 0, 3, 3), b=0, h=0), ValueError, r"h=0 must be an int >= 0 and < 0"),
    (lambda: keep_tile(0, 0, 2.0, (1, 1, 3, 3)), ValueError, r"p=2.0 must be a probability"),
    (lambda: fraction_bound(5, 4, 0.5), ValueError, r"kept=5 must be an int >= 0 and < 5"),
    (lambda: fraction_bound(0, -1, 0.5), ValueError, r"n=-1 must be an int >= 0"),
    (lambda: fraction_bound(1, 4, math.nan), ValueError, r"p=nan must be a probability"),
    (lambda: fraction_bound(1, 4, 0.5, -0.1), ValueError, r"margin=-0.1 must be in \[0, 1\]"),
    (lambda: fraction_bound(1, 4, 0.5, math.nan), ValueError, r"margin=nan must be in \[0, 1\]"),
    (lambda: fraction_is_plausible(A, 0.5), TypeError, r"kept.dtype=int64 must be bool; compare weights with 0 first"),
    (lambda: fraction_is_plausible(A > 0, 0.5, A), TypeError, r"visible.dtype=int64 must be bool"),
    (lambda: fraction_is_plausible(A > 0, 0.5, A[:2] > 0), ValueError, r"visible.shape=\(2,\) must broadcast to kept"),
    (lambda: fraction_is_plausible(A > 0, 0.5, True, 0.0), ValueError, r"alpha=0.0 must be in \(0, 1\)"),
    (lambda: fraction_is_plausible(A > 0, 2), ValueError, r"p=2 must be a probability"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED, ids=[r[2][:30] for r in REFUSED])
def test_refusals(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
