"""Problems whose arrays are the same, byte for byte, on every machine and under every NumPy.

The families are those of `refattn.inputs`, but they draw from raw Philox words, whose stream NumPy
guarantees, and not from the methods of a Generator, whose streams it does not.  What a family makes of
them goes through exp, log and BLAS, which differ in the last bits; so it is then rounded to few bits,
far more coarsely than these differ:

    q, k     multiples of 2**-16 of the power of two above the largest
    the rest 14 bits; of a bias of ALiBi, whose slopes have a definition, those of its dtype, at most 24

and a case of which one number lies so near to the middle between two neighbours that last bits could
turn it is refused, not drawn again: what would be refused here and not there would be no stream.
q·k of such numbers is exact in float64, in whatever order it is added up: all scores of a row, and so
which of them agree, are the same bits everywhere.

Rows of q, k, v and dout beyond a length hold NaN: they are memory that nothing may read.  (Codes of quantised
inputs have no NaN.)
"""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ..case import Case
from ..dtypes import FORMATS, round_to
from ..inputs import Problem, drawn, made
from ..inputs.captured import PREFIX
from ..rotary import Rotary, tables

__all__ = ["Refused", "Words", "problem_of"]

Array = np.ndarray[Any, Any]

BITS = 14
GRID = 16
NEAR = 2.0**-26  # of a step: a family's float64 arithmetic is off by some 2**-35 of it
SENTINEL = -9999.0  # a bias of -10000, -1e9 or the lowest number is what it is


class Refused(ValueError):
    """A case whose numbers would depend on the machine; says which."""


class Words:
    """The methods of a NumPy Generator that families call, from raw words of a Philox stream."""

    def __init__(self, key: int) -> None:
        self._bits = np.random.Philox(key=key)

    def _raw(self, size: Any) -> Array:
        shape = (size,) if isinstance(size, int) else tuple(size)
        return np.asarray(self._bits.random_raw(math.prod(shape)), dtype=np.uint64).reshape(shape)

    def random(self, size: Any) -> Array:
        """Multiples of 2**-53 in [0, 1)."""
        return np.asarray((self._raw(size) >> np.uint64(11)) * 2.0**-53)

    def uniform(self, low: float, high: float, size: Any) -> Array:
        return np.asarray(low + (high - low) * self.random(size))

    def standard_normal(self, size: Any) -> Array:
        """The sum of the four uniform numbers of 16 bits in a word: mean 0, variance 1, at most 3.5."""
        words = self._raw(size)
        total = sum((words >> np.uint64(16 * n)) & np.uint64(0xFFFF) for n in range(4))
        return (np.asarray(total).astype(np.float64) - 131070.0) * (math.sqrt(3.0) / 65536)

    def integers(self, low: int, high: int, size: Any) -> Array:
        return np.asarray(self._raw(size) % np.uint64(high - low)).astype(np.int64) + low

    def choice(self, values: Any, size: Any) -> Array:
        return np.asarray(values)[self.integers(0, len(values), size)]


def problem_of(case: Case) -> Problem:
    """The problem of a case; raises `Refused`."""
    close = case.family == "near_ties"
    arrays = drawn(replace(case, family="peaked") if close else case, _stream)
    for name, (x, dtype) in arrays.items():
        what = f"{case.id}: {name}"
        if case.family.startswith(PREFIX) and name in "qkv":
            continue  # out of a file, the same everywhere
        if name in "qk":
            arrays[name] = _on_grid(x, what), dtype
        elif name == "bias":
            bits = min(FORMATS[dtype].bits, 24) if case.bias and "alibi" in case.bias.family else BITS
            arrays[name] = np.where(x < SENTINEL, x, _few_bits(x, bits, what)), dtype
        else:
            arrays[name] = _few_bits(x, BITS, what), dtype
    if close:
        _one_unit_apart(case, arrays)
    if case.rotary is not None:
        _check_tables(case.rotary, case.Lk, f"{case.id}: cos or sin")
    if case.quant is None:
        _canaries(case, arrays)
    return made(case, arrays)


def _stream(case: Case, name: str) -> np.random.Generator:
    return cast(np.random.Generator, Words((zlib.crc32(f"vectors {name}".encode()) << 64) + case.seed))


def _on_grid(x: Array, what: str) -> Array:
    """Multiples of the power of two that is above the largest, times 2**-GRID."""
    largest = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) * (1 + 2.0**-12)  # a power of two is no boundary
    fraction, exponent = math.frexp(largest)
    if largest and min(fraction - 0.5, 1 - fraction) < 2.0**-30:
        raise Refused(f"{what} has a largest number at a power of two, which last bits could turn; take another seed")
    return _rounded(x, np.asarray(exponent - GRID), what)


def _few_bits(x: Array, bits: int, what: str) -> Array:
    return _rounded(x, np.frexp(np.where(np.isfinite(x), x, 0.0))[1] - bits, what)


def _rounded(x: Array, step: Array, what: str) -> Array:
    """To the nearest multiple of 2**step; refused where last bits could decide which one that is.

    A family's numbers that are no fractions at all, as small integers, are multiples already.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.ldexp(x, -step)
        nearest = np.rint(steps)
        near = np.abs(np.abs(steps - nearest) - 0.5) < NEAR
    if near.any():
        at = tuple(int(n) for n in np.argwhere(near)[0])
        raise Refused(f"{what}{list(at)} lies in the middle between two neighbours; take another seed")
    return np.where(np.isfinite(x), np.ldexp(nearest, step), x)


def _one_unit_apart(case: Case, arrays: dict[str, tuple[Array, str]]) -> None:
    """The family `near_ties` is `peaked`, where every other key is the one before but for a unit in the last place."""
    k, dtype = arrays["k"]
    f = FORMATS[dtype]
    k = round_to(k, dtype).copy()
    k[:, :, 1::2] = k[:, :, : case.Lk // 2 * 2 : 2]
    first = k[:, :, 1::2, :1]
    first += np.maximum(np.ldexp(1.0, np.frexp(first)[1] - f.bits), f.eta)
    arrays["k"] = k, dtype


def _check_tables(rotary: Rotary, Lk: int, what: str) -> None:
    """Refuses tables of which an entry in float32 could be another one for the last bits of cos and sin."""
    for x in tables(np.arange(Lk), rotary.dim, rotary.base):
        if not np.array_equal((x * (1 + 2.0**-50)).astype(np.float32), (x * (1 - 2.0**-50)).astype(np.float32)):
            raise Refused(f"{what} lies in the middle between two neighbours; take another base")


def _canaries(case: Case, arrays: dict[str, tuple[Array, str]]) -> None:
    q_lens, k_lens = case.lengths
    for name, lens in (("q", q_lens), ("dout", q_lens), ("k", k_lens), ("v", k_lens)):
        if name in arrays:
            x, dtype = arrays[name]
            gone = np.arange(x.shape[2]) >= np.array(lens, dtype=np.int64)[:, None]
            arrays[name] = np.where(gone[:, None, :, None], np.nan, x), dtype
