"""What is concluded of how hypotheses fare with a sample of the failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile

from ..case import Case
from .conditions import Condition, condition
from .diagnosis import Diagnosis
from .hypothesis import Hypothesis, hypotheses
from .match import HALF
from .order import richness, wordiness
from .trial import Trial

__all__ = ["SEVERAL", "closest", "conclude"]

CLOSE = 0.8
"""Of the squared error: less than this does not name a bug that explains no case."""

NAMED = 5
"""So many that explain all are looked for."""

TELLING = 8
"""What holds in some outputs alone has explained two cases, or so many wrong elements of one."""

SOME = 0.25
"""Of the failures: less than half of them name a bug that nothing speaks against."""

PLAIN = 5
"""One case or two are enough for an exact name of a kind with no more bits to fit by."""

LETTERS = 40
"""More words are as unlikely as more to fit by: so many letters as a bit, but of bugs that were seen in public."""

SEVERAL = 3
"""What has much to fit by, or holds in a region or in some outputs alone, is exact if it explains so many cases."""


def conclude(
    counts: Mapping[Hypothesis, int], against: Mapping[Hypothesis, list[Case]],
    broad: Mapping[Hypothesis, float], sample: Sequence[Trial], trials: Sequence[Trial],
    excused: Sequence[Trial], failing: int,
) -> Diagnosis | None:  # fmt: skip
    """What explains all, or the most; none if nothing does.

    `counts` says of how many of a sample of the trials, `against` which cases that passed contradict it, `broad`
    how many more may do so; `excused` are failures that a convention explains.  Exact is what explains these too.
    """
    n = len(sample)
    where = {h: condition([t.case for t in sample if t.match(h).nearly], cases) for h, cases in against.items()}
    worth = {h: counts[h] - _lost(counts[h], n, len(against[h]), where[h]) for h in against}
    more = {h: 0.6 * (h.family is not None or h.narrow > 0) + 0.3 * h.fitted for h in worth}  # it has to fit by
    worth = {h: k - more[h] for h, k in worth.items()}
    worth = {h: k if not h.vague or h.narrow else 0.0 if against[h] else k / 2 for h, k in worth.items()}
    place = {h: at for at, h in enumerate(hypotheses())}  # the simplest come first
    shares = {h: _share(h, sample) if h.rounding else 1.0 for h in against}
    simple = {
        h: (round(math.log2(1 + broad[h])), h.narrow, bool(h.part), h.vague and not h.narrow, -shares[h],
            richness(h) + (wordiness(h) // LETTERS if h.made or h.narrow else 0),
            place.get(h, len(h.what) * len(place)))
        for h in against
    }  # fmt: skip
    sound = [h for h in against if h.whole is None or counts[h] > 1 or _telling(h, sample)]
    ranked = sorted(sound, key=lambda h: (-worth[h], *simple[h]))
    plain = [h for h in ranked if not (h.members or h.vague or h.fitted or (h.narrow and n < SEVERAL))]
    exact = [h for h in plain if counts[h] == n and not against[h] and (n >= SEVERAL or richness(h) <= PLAIN)]
    exact.sort(key=lambda h: (h.rounding, *simple[h]))
    every = (*trials, *excused)
    exact = list(islice((h for h in exact if _explains_all(h, every)), NAMED))
    exact = [h for h in exact if not h.rounding] or exact[:1]
    if exact and failing - len(every) <= len(every) / 10:
        within = sum(t.match(exact[0]).explains for t in every)
        return Diagnosis(
            tuple(exact), cases=within, failing=failing, looked=len(every), share=_share(exact[0], sample)
        )
    best = next((h for h in ranked if counts[h] >= HALF * n and not (h.vague and worth[h] <= 0)), None)
    if best is None:  # or so many that it is no accident, and nothing speaks against it
        best = next((h for h in ranked if counts[h] >= max(SOME * n, SEVERAL) and not (h.vague or against[h])), None)
    if best is None:
        return None
    rest = [t for t in sample if not t.match(best).nearly]
    others = sorted((h for h in counts if not h.vague), key=lambda h: -sum(t.match(h).explains for t in rest))
    second = [h for h in others[:1] if sum(t.match(h).explains for t in rest) > max(1, n / 8)]
    told = [(best, sum(t.match(best).nearly for t in every))]
    told += [(h, sum(t.match(h).explains for t in every if not t.match(best).nearly)) for h in second]
    return Diagnosis(
        likely=tuple(told), cases=told[0][1], failing=failing, looked=len(every), against=len(against[best]),
        where=where[best],
    )  # fmt: skip


def _lost(count: int, n: int, against: int, where: Condition | None) -> float:
    """What an explanation loses by cases that passed: little if it explains all, or holds under a condition."""
    if where is not None and where.sure:
        return 0.25
    return min(against, count / (8 if count == n > 1 else 2))


def _telling(h: Hypothesis, trials: Sequence[Trial]) -> bool:
    """Whether it explains so much of one case that this is no accident."""
    return any(t.wrong >= TELLING and t.match(h).nearly for t in trials)


def _explains_all(h: Hypothesis, trials: Sequence[Trial]) -> bool:
    found = [t.match(h) for t in takewhile(lambda t: t.match(h).nearly, trials)]
    return len(found) == len(trials) and sum(not m.explains for m in found) <= len(trials) / 10


def closest(near: Iterable[Hypothesis], asked: Sequence[Trial], failing: int, left: int) -> Diagnosis:
    """The one that explains most of the squared error, if that is enough to name it; `left` were not asked."""
    best = max((h for h in near if not h.vague), key=lambda h: _share(h, asked), default=None)
    share = 0.0 if best is None else _share(best, asked)
    if best is None or share < CLOSE:
        return Diagnosis(failing=failing, left=left)
    return Diagnosis(closest=best, share=share, looked=len(asked), failing=failing, left=left)


def _share(h: Hypothesis, trials: Sequence[Trial]) -> float:
    """The share of the squared error that it explains, of all of these."""
    found = [t.match(h) for t in trials]
    return sum(m.told for m in found) / len(found)
