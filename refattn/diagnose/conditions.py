"""In which cases alone a bug is there: what all that fail have, and none of those that passed and speak against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb

from ..case import Case

__all__ = ["Condition", "common", "condition"]

SURE = 0.02
"""A condition is no accident if one of so many would tell the cases apart with at most this probability."""

SAID = 1, 4
"""It is not said at all if more would do so by accident: of one, and of pairs, which explain the splitting of keys."""

PROBABLE = 0.05, 0.25
"""Of what all that fail have in common a first thing is said, and a second, if so little probable by accident."""


@dataclass(frozen=True)
class Condition:
    """`words` say which cases; `sure` if nothing else tells them apart, and this not by accident."""

    words: str
    sure: bool

    def __str__(self) -> str:
        return f"cases {self.words}"


def condition(failing: Sequence[Case], against: Sequence[Case]) -> Condition | None:
    """The simplest that holds in all cases that fail and in none of the others, or two that together do."""
    if not failing or not against:
        return None
    found = list(_common(failing, against, _sizes))
    accidents = len(found) / comb(len(failing) + len(against), len(against))
    alone = [words for words, others in found if not others]
    if alone and accidents <= SAID[0]:
        return Condition(alone[0], accidents <= SURE and len(alone) == 1)
    if accidents * len(found) > SAID[1]:
        return None
    first, left = min(found, key=lambda x: len(x[1]), default=("", frozenset(against)))
    for words, others in found:
        if not left & others:
            return Condition(f"{first} and {words}", sure=False)
    return None


def common(failing: Sequence[Case], others: Sequence[Case]) -> tuple[str, frozenset[Case]] | None:
    """What all cases that fail have, one thing or two, and few of the others; and which of these have it all the same.

    It is said if it is no accident: as many cases drawn at random from all would seldom have any such thing in common.
    """
    if not failing or not others:
        return None
    found = sorted(_common(failing, others, _more_sizes), key=lambda x: x[0].startswith("without"))
    tried = len(frozenset().union(*map(_features, (*failing, *others)))) + 2 * len(_more_sizes(failing[0]))
    said, left, n = [], frozenset(others), len(failing)
    for probable in PROBABLE:
        words, have = min(found, key=lambda x: len(left & x[1]), default=("", left))
        some = left & have
        if 2 * len(some) > len(left) or tried * comb(n + len(some), n) > probable * comb(n + len(left), n):
            break
        said.append(words)
        left = some
    return (" and ".join(said), left) if said else None


def _common(
    failing: Sequence[Case], against: Sequence[Case], sizes: Callable[[Case], dict[str, int]]
) -> Iterator[tuple[str, frozenset[Case]]]:  # fmt: skip
    """What all that fail have in common, the likeliest first, and the others that have it too."""
    told = {c: _features(c) for c in (*failing, *against)}
    for word in sorted(frozenset.intersection(*(told[c] for c in failing))):
        yield f"with {word}", frozenset(c for c in against if word in told[c])
    absent = frozenset().union(*(told[c] for c in against)) - frozenset().union(*(told[c] for c in failing))
    for word in sorted(absent):
        yield f"without {word}", frozenset(c for c in against if word not in told[c])
    for name in sizes(failing[0]):
        ours, theirs = ([sizes(c)[name] for c in cases] for cases in (failing, against))
        least, most = min(ours), max(ours)
        fewer = max((n for n in theirs if n < least), default=least)
        more = min((n for n in theirs if n > most), default=most)
        if fewer < least:
            powers = [2**k for k in range(20) if fewer <= 2**k < least]
            words = f"with more than {powers[0]} {name}" if len(powers) == 1 else f"with at least {least} {name}"
            yield words, frozenset(c for c, n in zip(against, theirs, strict=True) if n >= least)
        if more > most:
            powers = [2**k for k in range(20) if most <= 2**k < more]
            words = f"with at most {powers[0] if len(powers) == 1 else most} {name}"
            yield words, frozenset(c for c, n in zip(against, theirs, strict=True) if n <= most)


def _sizes(case: Case) -> dict[str, int]:
    """What the author of a kernel may have made a case of its own of, if it is small or large."""
    group = case.H // max(case.Hkv, 1)
    return {
        "keys": case.Lk, "queries": case.Lq, "query heads of a key head": group, "columns of keys": case.D,
        "columns of values": case.Dv, "entries": case.B, "heads": case.H, "key heads": case.Hkv,
        "rows of a key head": group * case.Lq, "keys in the shortest entry": min(case.lengths[1], default=0),
        "tiles of 64 rows in all": case.B * case.Hkv * -(-group * case.Lq // 64),
    }  # fmt: skip


def _more_sizes(case: Case) -> dict[str, int]:
    """With those that mostly are others over again."""
    return _sizes(case) | {"queries in the shortest entry": min(case.lengths[0], default=0)}


def _features(case: Case) -> frozenset[str]:
    told = {
        "D that differs from Dv": case.D != case.Dv, "gradients": case.backward, "a mask": case.mask is not None,
        "Lq that differs from Lk": case.Lq != case.Lk, "Lq > Lk": case.Lq > case.Lk, "Lq < Lk": case.Lq < case.Lk,
        "lengths that differ": len(set(zip(*case.lengths, strict=True))) > 1,
        "16 bits": case.dtype in ("float16", "bfloat16"), "rotary of a part of a head": _partly_rotated(case),
        f"arrays as {type(case.storage).__name__}": True,
    }  # fmt: skip
    told |= {f"{name} not a multiple of {n}": size % n != 0 for n in (8, 16, 32, 64)
             for name, size in (("Lk", case.Lk), ("Lq", case.Lq), ("D", case.D), ("Dv", case.Dv))}  # fmt: skip
    words = {w for w in case.features() if w not in ("D!=Dv", "Lq!=Lk", "mask", "backward")}
    return frozenset(words | {word for word, on in told.items() if on})


def _partly_rotated(case: Case) -> bool:
    return case.rotary is not None and case.rotary.dim < case.D
