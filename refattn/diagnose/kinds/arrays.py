"""Hypotheses on which head, entry, row or column of an array is read, and in which layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...case import Case, Dense
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

HEADS: dict[str, Callable[[Case], Array]] = {
    "h % Hkv: key heads are tiled": lambda c: np.arange(c.H) % max(1, c.Hkv),
    "0": lambda c: np.zeros(c.H, int),
    "the last": lambda c: np.full(c.H, max(c.Hkv - 1, 0)),
    "h, up to the last": lambda c: np.minimum(np.arange(c.H), max(c.Hkv - 1, 0)),
    "h // Hkv, up to the last": lambda c: np.minimum(np.arange(c.H) // max(1, c.Hkv), max(c.Hkv - 1, 0)),
    "h // Hkv modulo Hkv": lambda c: np.arange(c.H) // max(1, c.Hkv) % max(1, c.Hkv),
    "h % (H // Hkv), up to the last": lambda c: np.minimum(np.arange(c.H) % c.group, max(c.Hkv - 1, 0)),
    "h // 2, up to the last": lambda c: np.minimum(np.arange(c.H) // 2, max(c.Hkv - 1, 0)),
    "h // 4, up to the last": lambda c: np.minimum(np.arange(c.H) // 4, max(c.Hkv - 1, 0)),
    "the first head of the group modulo Hkv":
        lambda c: np.arange(c.H) // c.group * c.group % max(1, c.Hkv),
    "that of h + 1": lambda c: np.minimum((np.arange(c.H) + 1) // c.group, max(c.Hkv - 1, 0)),
    "the next one": lambda c: (np.arange(c.H) // c.group + 1) % max(1, c.Hkv),
    "the one before": lambda c: (np.arange(c.H) // c.group - 1) % max(1, c.Hkv),
    "counted from the last": lambda c: max(c.Hkv - 1, 0) - np.arange(c.H) // c.group,
    "h // group, the group rounded up to a power of two":
        lambda c: np.minimum(np.arange(c.H) // (1 << (c.group - 1).bit_length()), max(c.Hkv - 1, 0)),
    "h // group, the group rounded down to a power of two, up to the last":
        lambda c: np.minimum(np.arange(c.H) >> c.group.bit_length() - 1, max(c.Hkv - 1, 0)),
    "h // group, the group rounded down to a power of two, modulo Hkv":
        lambda c: (np.arange(c.H) >> c.group.bit_length() - 1) % max(1, c.Hkv),
}  # fmt: skip


def _differs(case: Case, how: Any) -> bool:
    return case.Hkv > 1 and not np.array_equal(how.to(case), np.arange(case.H) // case.group)


@kind(_differs, of={"keys and values are": "kv", "keys are": "k", "values are": "v"}, to=HEADS)
class key_head(Model):
    """For query head h {of} read from key head {to}."""

    of = "kv"
    to: Callable[[Case], Array]

    def k_heads(self) -> Array:
        return self.to(self.given) if "k" in self.of else self.heads()

    def v_heads(self) -> Array:
        return self.to(self.given) if "v" in self.of else self.heads()


@kind(lambda case, how: case.backward and _differs(case, how), to=HEADS)
class key_head_throughout(Model):
    """For query head h keys and values are read from key head {to}, and there its part of dk and dv is added."""

    to: Callable[[Case], Array]

    def heads(self) -> Array:
        return self.to(self.given)


ARRAYS = ("q", "k", "v", "k and v", "q, k and v", "dout", "q and dout")
Move = Callable[[Array], Array]
MOVES: dict[str, Move] = {
    "from the first batch entry for all": lambda x: np.repeat(x[:1], len(x), 0),
    "from the last batch entry for all": lambda x: np.repeat(x[-1:], len(x), 0),
    "from the next batch entry": lambda x: np.roll(x, -1, 0),
    "from the batch entry before": lambda x: np.roll(x, 1, 0),
    "one row too far": lambda x: np.concatenate([x[:, :, 1:], 0 * x[:, :, :1]], 2),
    "one row too far, the last row from the first": lambda x: np.roll(x, -1, 2),
    "one row too far, the last row twice": lambda x: np.concatenate([x[:, :, 1:], x[:, :, -1:]], 2),
    "one row too early": lambda x: np.concatenate([0 * x[:, :, :1], x[:, :, :-1]], 2),
    "one row too early, the first row from the last": lambda x: np.roll(x, 1, 2),
    "one row too early, the first row twice": lambda x: np.concatenate([x[:, :, :1], x[:, :, :-1]], 2),
    "from the first row for all": lambda x: np.repeat(x[:, :, :1], x.shape[2], 2),
    "with the rows in reverse": lambda x: x[:, :, ::-1],
    "with the columns in reverse": lambda x: x[..., ::-1],
    "without its last column": lambda x: np.concatenate([x[..., :-1], 0 * x[..., -1:]], 3),
    "without its first column": lambda x: np.concatenate([0 * x[..., :1], x[..., 1:]], 3),
    "in its first 8 columns alone": lambda x: np.where(np.arange(x.shape[3]) < 8, x, 0),
    "in its first 16 columns alone": lambda x: np.where(np.arange(x.shape[3]) < 16, x, 0),
    "in its first 32 columns alone": lambda x: np.where(np.arange(x.shape[3]) < 32, x, 0),
    "in its first 64 columns alone": lambda x: np.where(np.arange(x.shape[3]) < 64, x, 0),
    "in its first 128 columns alone": lambda x: np.where(np.arange(x.shape[3]) < 128, x, 0),
    "in whole blocks of 8 columns alone": lambda x: np.where(np.arange(x.shape[3]) < x.shape[3] // 8 * 8, x, 0),
    "in whole blocks of 16 columns alone": lambda x: np.where(np.arange(x.shape[3]) < x.shape[3] // 16 * 16, x, 0),
    "in whole blocks of 32 columns alone": lambda x: np.where(np.arange(x.shape[3]) < x.shape[3] // 32 * 32, x, 0),
    "as (entry, length, head, size)": lambda x: _as(x, (0, 2, 1, 3)),
    "as (head, entry, length, size): the strides of entry and head are exchanged": lambda x: _as(x, (1, 0, 2, 3)),
    "as (entry, head, size, length)": lambda x: _as(x, (0, 1, 3, 2)),
    "as (length, entry, head, size)": lambda x: _as(x, (2, 0, 1, 3)),
    "from its transpose: length and heads": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape),
    "from its transpose: length and size": lambda x: np.ascontiguousarray(x.swapaxes(2, 3)).reshape(x.shape),
    "from its transpose: entry and head": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).reshape(x.shape),
    "from the entry and head before, counted together": lambda x: np.roll(
        x.reshape(-1, *x.shape[2:]), 1, 0).reshape(x.shape),
    "as (entry, size, head, length)": lambda x: _as(x, (0, 3, 1, 2)),
    "as (head, length, entry, size)": lambda x: _as(x, (1, 2, 0, 3)),
    "as (length, head, entry, size)": lambda x: _as(x, (2, 1, 0, 3)),
    "with its columns one too far": lambda x: np.roll(x, -1, 3),
    "with its columns one too early": lambda x: np.roll(x, 1, 3),
    "with the two halves of its columns exchanged": lambda x: np.concatenate(
        [x[..., x.shape[3] // 2:], x[..., : x.shape[3] // 2]], 3),
    "from the last row for all": lambda x: np.repeat(x[:, :, -1:], x.shape[2], 2),
    "with the entries in reverse": lambda x: x[::-1],
    "twice as large": lambda x: 2 * x, "half as large": lambda x: x / 2,
    "with the other sign": lambda x: -x,
    "as 0": lambda x: 0 * x,
    "in absolute value": lambda x: np.abs(x),
}
OF_HEADS: dict[str, Move] = {
    "from the first head for all": lambda x: np.repeat(x[:, :1], x.shape[1], 1),
    "from the last head for all": lambda x: np.repeat(x[:, -1:], x.shape[1], 1),
    "from the next head": lambda x: np.roll(x, -1, 1), "from the head before": lambda x: np.roll(x, 1, 1),
    "with the heads in reverse": lambda x: x[:, ::-1],
}
"""of keys and values alone `key_head` says it"""


def _as(x: Array, order: tuple[int, ...]) -> Array:
    """The memory of x taken for that of an array whose axes lie in another order."""
    return np.ascontiguousarray(x).reshape([x.shape[a] for a in order]).transpose(np.argsort(order))


@kind(lambda case, how: how.there(case), of=("q", "q, k and v", "dout", "q and dout"), how=OF_HEADS)
@kind(lambda case, how: how.there(case), of=ARRAYS, how=MOVES)
class read(Model):
    """{of} read {how}."""

    of: Any = "q"
    how: Move

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(str(cls.of).replace(" and", ",").split(", "))

    @classmethod
    def there(cls, case: Case) -> bool:
        return "dout" not in cls.names() or case.backward

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: self.how(x[n]) for n in self.names() if n in x}


@kind(
    lambda case: min(case.D, case.Dv) > 0,
    what={
        "keys for values": {"v": "k"}, "values for keys": {"k": "v"}, "keys and values exchanged": {"k": "v", "v": "k"},
    },
)  # fmt: skip
class arrays_exchanged(Model):
    """It reads {what}."""

    what: Mapping[str, str] = {}

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: x[m][..., np.arange(x[n].shape[3]) % x[m].shape[3]] for n, m in self.what.items()}


def _permuted(case: Case) -> bool:
    return isinstance(case.storage, Dense) and case.storage.layout != "BHLD"


@kind(_permuted, of={"q": "q", "k": "k", "v": "v", "k and v": "kv", "bias": ("bias",), "dout": ("dout",),
    "all": ("q", "k", "v", "bias", "dout")})
class strides_ignored(Model):
    """{of} read in the order of its memory, whatever its strides."""

    of: Any = "q"

    def arrays(self) -> dict[str, Array]:
        handed = self.inputs.handed()
        for n in (n for n in self.of if n in handed):
            handed[n] = np.ravel(handed[n], order="K").reshape(handed[n].shape)
        return self.from_memory(handed)


@kind(
    lambda case, how: (case.Lk if how.of[0] in "kv" else case.Lq * (how.of[-1] != "dout" or case.backward)) > how.n,
    n=(16, 32, 64, 128, 256),
    of={"keys and values are": ("k", "v"), "keys are": ("k",), "values are": ("v",), "queries are": ("q",),
        "queries and dout are": ("q", "dout"), "dout is": ("dout",)},
)  # fmt: skip
class index_wraps(Model):
    """Beyond {n} the {of} read from the beginning again: the index has too few bits, or is that within a tile."""

    n = 64
    of: tuple[str, ...] = ("k", "v")

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {name: x[name][:, :, np.arange(x[name].shape[2]) % self.n] for name in self.of if name in x}
