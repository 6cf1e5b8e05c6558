"""What is concluded of how hypotheses fare with a sample of the failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..case import Case
from .diagnosis import Diagnosis
from .hypothesis import Hypothesis, hypotheses
from .match import HALF, Trial
from .passed import what_tells_apart

__all__ = ["closest", "conclude"]

CLOSE = 0.8
"""Of the squared error: less than this does not name a bug that explains no case."""


def conclude(
    counts: Mapping[Hypothesis, int], against: Mapping[Hypothesis, list[Case]], sample: Sequence[Trial],
    trials: Sequence[Trial], failing: int, exactly: bool = True,
) -> Diagnosis | None:  # fmt: skip
    """What explains all, or the most; none if nothing does.

    `counts` says of how many of a sample of the trials, `against` which cases that passed contradict it.  Nothing is
    exact if not `exactly`: where most failures are no trials, since something else explains them.
    """
    n = len(sample)
    where = {h: what_tells_apart([t.case for t in sample if t.match(h).nearly], cases) for h, cases in against.items()}
    worth = {h: counts[h] - min(0.5 if where[h] else len(against[h]), counts[h] / 4) for h in against}
    worth = {h: k - 0.6 * (h.family is not None or h.narrow == 2) for h, k in worth.items()}  # it has more to fit by
    place = {h: at for at, h in enumerate(hypotheses())}  # the simplest come first
    shares = {h: _share(h, sample) if h.rounding else 1.0 for h in against}
    ranked = sorted(
        against,
        key=lambda h: (-worth[h], h.narrow, h.vague and not h.narrow, -shares[h], place.get(h, len(place))),
    )
    exact = [h for h in ranked if counts[h] == n and not against[h] and not h.members]
    exact = [h for h in exact if all(t.match(h).nearly for t in trials)]
    exact = [h for h in exact if sum(not t.match(h).explains for t in trials) <= len(trials) / 10]
    exact = [h for h in exact if not h.rounding] or exact[:1]
    exact = sorted(exact, key=lambda h: (h.narrow, h.vague and not h.narrow, place.get(h, len(place))))
    if exact and exactly:
        share = _share(exact[0], sample)
        within = sum(t.match(exact[0]).explains for t in trials)
        return Diagnosis(tuple(exact), cases=within, failing=failing, share=share)
    likely = [h for h in ranked if counts[h] >= HALF * n]
    first = likely[0] if likely else None
    if first is not None:
        rest = [t for t in sample if not t.match(first).nearly]
        others = sorted(counts, key=lambda h: -sum(t.match(h).explains for t in rest))
        second = [(h, k) for h in others[:1] if (k := sum(t.match(h).explains for t in rest)) > n / 8]
        return Diagnosis(
            likely=((first, counts[first]), *second), cases=n, failing=failing, against=len(against[first]),
            where=where[first],
        )  # fmt: skip
    return None


def closest(near: Iterable[Hypothesis], asked: Sequence[Trial], failing: int) -> Diagnosis:
    """The one that explains most of the squared error, if that is enough to name it."""
    best = max(near, key=lambda h: _share(h, asked), default=None)
    share = 0.0 if best is None else _share(best, asked)
    if best is None or share < CLOSE:
        return Diagnosis(failing=failing)
    return Diagnosis(closest=best, share=share, cases=len(asked), failing=failing)


def _share(h: Hypothesis, trials: Sequence[Trial]) -> float:
    """The share of the squared error that it explains, of all of these."""
    found = [t.match(h) for t in trials]
    return sum(m.share for m in found) / len(found)
