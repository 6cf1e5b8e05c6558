"""Hypotheses on packed sequences: where each begins, how long it is, and what is written past its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case, Packed
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

def _packed(case: Case) -> bool:
    return isinstance(case.storage, Packed)


def _gap(case: Case) -> int:
    return case.storage.gap if isinstance(case.storage, Packed) else 0


Starts = Callable[[Array, Array, int], Array]
"""(cu_seqlens of its own, of the other, what is unused after each) -> where each entry is looked for"""
STARTS: dict[str, Starts] = {
    "by the cu_seqlens of the other, queries or keys": lambda own, other, gap: other,
    "one token too early": lambda own, other, gap: np.maximum(own - 1, 0),
    "one token too late": lambda own, other, gap: own + 1,
    "where the first entry starts": lambda own, other, gap: 0 * own,
    "where the next entry starts": lambda own, other, gap: np.append(own[1:], own[-1]),
    "where the entry before starts": lambda own, other, gap: np.append(own[:1], own[:-1]),
    "at so many times the longest, as if padded":
        lambda own, other, gap: np.arange(len(own)) * np.diff(own).max(initial=0),
    "as if nothing were unused between them": lambda own, other, gap: own - gap * np.arange(len(own)),
    "as if what is unused came before each": lambda own, other, gap: own + gap,
    "as if twice as much were unused between them": lambda own, other, gap: own + gap * np.arange(len(own)),
    "at so many times the first one's length": lambda own, other, gap: np.arange(len(own)) * (own[1:2] - own[:1]).sum(),
}


@kind(_packed, of={"keys": "k", "queries": "q", "keys alone": "K", "values alone": "V"}, how=STARTS)
class packed_start(Model):
    """The {of} of a packed sequence are looked for {how}."""

    of: Any = "k"
    how: Starts

    def arrays(self) -> dict[str, Array]:
        handed, case = self.inputs.handed(), self.given
        x = super().arrays()
        names = {"k": "kv", "q": "q", "K": "k", "V": "v"}[self.of]
        own, other = handed["cu_seqlens_k"], handed["cu_seqlens_q"]
        if self.of == "q":
            own, other = other, own
        at = self.how(own, other, _gap(case))[:-1]
        lens = case.lengths[0 if self.of == "q" else 1]
        for n in names:
            wide = np.zeros_like(x[n])
            for b, length in enumerate(lens):
                part = handed[n][at[b] : at[b] + length]
                wide[b, :, : len(part)] = np.asarray(part, np.float64).swapaxes(0, 1)
            x[n] = wide
        return x


@kind(
    _packed, of={"keys": "k", "queries": "q", "keys and queries": "kq"},
    how={"one more": 1, "one fewer": -1},
)  # fmt: skip
class packed_length(Model):
    """A packed sequence has {how} {of} than cu_seqlens says."""

    of: Any = "k"
    how = 1

    def read(self, case: Case) -> Case:
        q, k = (
            tuple(min(max(n + self.how, 0), most) for n in lens) if name in self.of else lens
            for name, lens, most in (("q", case.lengths[0], case.Lq), ("k", case.lengths[1], case.Lk))
        )
        return dataclasses.replace(case, q_lens=q, k_lens=k)


@kind(_packed, of={"Queries": "q", "Keys": "k", "Queries and keys": "qk"}, how=STARTS,
      left={"NaN": np.nan, "0": 0.0})  # fmt: skip
class packed_at(Model):
    """{of} of a packed sequence are read, and what comes of them is written, {how}; where none is, {left} stays."""

    of, left = "q", np.nan
    how: Starts

    def tokens(self, of: str) -> tuple[list[Array], list[Array], int]:
        """Of each entry where its tokens are, and where they are looked for, up to the last; and how many there are."""
        handed, case = self.inputs.handed(), self.given
        own, other = handed["cu_seqlens_q"], handed["cu_seqlens_k"]
        n = case.lengths[0 if of == "q" else 1]
        if of == "k":
            own, other = other, own
        size = len(handed[of])
        starts = type(self).how(own.astype(int), other.astype(int), _gap(case))
        true = [own[b] + np.arange(m) for b, m in enumerate(n)]
        taken = [np.clip(starts[b] + np.arange(m), 0, size - 1) for b, m in enumerate(n)]
        return true, taken, size

    def arrays(self) -> dict[str, Array]:
        x, handed = super().arrays(), self.inputs.handed()
        for of in self.of:
            _, taken, _ = self.tokens(of)
            for name in ("q", "dout") if of == "q" else ("k", "v"):
                if name in x and self.given.quant is None:
                    wide = np.zeros_like(x[name])
                    for b, at in enumerate(taken):
                        wide[b, :, : len(at)] = np.asarray(handed[name][at], np.float64).swapaxes(0, 1)
                    x[name] = wide
        return x

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        names = {"q": ("out", "lse", "dq"), "k": ("dk", "dv")}
        return y | {n: self.moved(y[n], of) for of in self.of for n in names[of] if n in y}

    def moved(self, x: Array, of: str) -> Array:
        true, taken, size = self.tokens(of)
        rows = np.moveaxis(x, 2, 0)  # (rows, B, heads, ...)
        memory = np.full((size, *rows.shape[2:]), self.left)
        for b, at in enumerate(taken):
            memory[at] = rows[: len(at), b]
        found = x.copy()
        for b, at in enumerate(true):
            found[b, :, : len(at)] = np.moveaxis(memory[at], 0, 1)
        return found


class Written(packed_at):
    """What is written alone; all is read where it is."""

    names: tuple[str, ...] = ("out",)

    def arrays(self) -> dict[str, Array]:
        return Model.arrays(self)

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: self.moved(y[n], self.of) for n in self.names if n in y}


@kind(_packed, "out lse dq", names={"out": ("out",), "lse": ("lse",), "out and lse": ("out", "lse"), "dq": ("dq",)},
      how=STARTS)  # fmt: skip
class packed_rows_written(Written):
    """{names} of a packed sequence: written {how}."""


@kind(_packed, "dk dv", names={"dk": ("dk",), "dv": ("dv",), "dk and dv": ("dk", "dv")}, how=STARTS)
class packed_keys_written(Written):
    """{names} of a packed sequence: written {how}."""

    of = "k"


@kind(lambda case: _packed(case) and case.B > 1, "out lse dq", left={"0": 0.0, "NaN": np.nan},
      names={"out": ("out",), "lse": ("lse",), "out and lse": ("out", "lse"), "dq": ("dq",)})  # fmt: skip
class packed_first_alone(Model):
    """{names} of packed sequences: written for the first sequence alone; of others {left} stays."""

    left, names = 0.0, ("out",)

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: np.concatenate([y[n][:1], np.full_like(y[n][1:], self.left)]) for n in self.names if n in y}


@kind(_packed, "lse")
class packed_lse_transposed(packed_at):
    """lse of packed sequences is written as (tokens, heads), and not as (heads, tokens)."""

    how = staticmethod(lambda own, other, gap: own)

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | ({"lse": self.turned(y["lse"])} if "lse" in y else {})

    def arrays(self) -> dict[str, Array]:
        return Model.arrays(self)

    def turned(self, lse: Array) -> Array:
        true, _, size = self.tokens("q")
        memory = np.full((size, lse.shape[1]), np.nan)
        for b, at in enumerate(true):
            memory[at] = lse[b, :, : len(at)].T
        memory, found = memory.reshape(lse.shape[1], size), lse.copy()
        for b, at in enumerate(true):
            found[b, :, : len(at)] = memory[:, at]
        return found


@kind(
    lambda case: _packed(case) and case.B > 1, "out lse dq", tile=(4, 8, 16, 32, 64, 128),
    of={"out": ("out",), "out and lse": ("out", "lse"), "dq": ("dq",)}, to={"0": 0.0, "NaN": np.nan},
)  # fmt: skip
class packed_spill(Model):
    """The last tile of {tile} queries of a packed sequence is written whole: {of} of the next begins with {to}."""

    tile, to = 64, 0.0
    of: tuple[str, ...] = ("out",)

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        case = self.given
        gap = _gap(case)
        spilt = np.array([0, *(-n % self.tile for n in case.lengths[0][:-1])])
        over = (np.arange(case.Lq) < spilt[:, None] - gap)[:, None]
        return y | {n: np.where(over if n == "lse" else over[..., None], self.to, y[n]) for n in self.of if n in y}
