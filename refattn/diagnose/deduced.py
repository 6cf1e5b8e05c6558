"""A hypothesis nobody wrote down: what is wrong, and a rule on the pairs of queries and keys for which it is.

Where no hypothesis explains the failures, out and lse of each row tell how often its keys count
(`refattn.localise.participation`), and for which of them something else may be wrong: that they are not scaled, or
without their bias, or any hypothesis about a pair (`refattn.diagnose.effects`).  Where the forward is right, dq of each
row tells for which keys, dk and dv of each key for which rows (`refattn.diagnose.chosen_pairs`).  What is so is
compared with all rules of some forms (`refattn.diagnose.rules`).  One that holds in most cases becomes a hypothesis,
and has to explain the answers as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import Any

import numpy as np

from ..case import NAMES, Case
from .alone import alone
from .chosen_pairs import ASPECTS, chosen_pairs
from .dense import Array, Inputs
from .edges import Shape, shape_of
from .effects import LEFT_OUT, SEEN, TWICE, Effect, effects
from .effort import Effort
from .hypothesis import Hypothesis
from .known import Known, seen_shape, times_of
from .match import FORWARD
from .mixed import mixed
from .order import spread
from .passed import inputs_of
from .rules import Rule, holding
from .trial import Trial

__all__ = ["deduced"]

CASES, MOST = 9, 2**13
"""so many failing cases are looked at, of no more scores"""
BOTH = 2
"""rules of each way in which keys count otherwise, where there are several"""
PASSED = 24
"""cases that passed, in which there are to be no such pairs"""
LOOK, ROW, ASKED = 0.05, 5e-4, 5e-4
"""seconds to look at a case and at each row of it, and to ask of an effect whether it may be so for some pairs"""
SURE = 2
"""cases that a rule holds in, if there are so many, times two"""
MOSTLY = 0.5
"""of the cases in which an effect would show"""
ENOUGH = 24
"""hypotheses"""

Among = Callable[[Shape], Array]
Found = tuple[Effect, Rule]


def deduced(trials: Sequence[Trial], passed: Sequence[Case], effort: Effort, until: float) -> list[Hypothesis]:
    """The simplest rules that hold in most of the failures; none if the answers tell of none."""
    small = [t for t in sorted(trials, key=lambda t: t.case.scores) if t.case.scores < MOST and _can_tell(t)]
    forward = [t for t in small if "out" in t.failing]
    rules = [_hypothesis(rules) for rules in _of_times(_some(forward), passed, effort, until)]
    found = [x for h in rules for x in (h, *h.elsewhere)]
    if any(2 * _explained(h, _some(forward)) >= len(_some(forward)) for h in found):
        return found
    backward = [t for t in small if not t.failing & FORWARD]
    for aspect, names in ASPECTS.items():
        some = _some(forward if aspect == "out" else [t for t in backward if t.failing & names])
        wrong = frozenset[str]().union(*(t.failing & names for t in some))
        for row in islice(_of_effects(some, passed, aspect, effort, until), ENOUGH):
            h = _hypothesis([row])
            if aspect == "out":
                found += [h, *h.elsewhere]
            else:
                found += [y for x in h.elsewhere if x.part == "backward" for y in (x, alone(x, wrong))]
    return found


def _explained(h: Hypothesis, trials: Sequence[Trial]) -> int:
    """The forward of how many failures it explains."""
    matches = [t.match(h) for t in trials]
    return sum(m.nearly or m.forward for m in matches)


def _can_tell(trial: Trial) -> bool:
    case = trial.case
    some = bool(case.H and case.Hkv and case.Dv and case.D and case.Lk and case.Lq)
    return some and not (trial.excused and any(np.isnan(x).any() for x in trial.got.values()))


def _some(trials: Sequence[Trial]) -> Sequence[Trial]:
    return trials[:: -(-len(trials) // CASES)] if trials else ()


def _right(passed: Sequence[Case], effect: Effect) -> list[Inputs]:
    """Cases in which nothing of the kind is so."""
    some = [c for c in passed if 0 < c.scores < MOST and effect.separates(c)]
    return [inputs_of(c) for c in spread(some, PASSED)]


# ---- how often keys count


def _of_times(trials: Sequence[Trial], passed: Sequence[Case], effort: Effort, until: float) -> list[list[Found]]:
    """Rules on how often keys count, those of each way in which they do together."""
    looks: list[tuple[Trial, Array]] = []
    for tried, trial in enumerate(trials):
        if effort.seconds > until or (tried >= CASES / 3 and not looks):
            break
        times = times_of(trial)
        effort.work += LOOK + ROW * trial.case.B * trial.case.H * trial.case.Lq
        looks += [] if times is None else [(trial, times)]
    some = [rows for effect in (LEFT_OUT, TWICE, SEEN) if (rows := _of_way(effect, looks, passed, effort, until))]
    return [list(rows) for rows in product(*(rows if len(some) == 1 else rows[:BOTH] for rows in some))] if some else []


def _visible(x: Shape) -> Array:
    return x.visible


def _hidden(x: Shape) -> Array:
    return ~x.visible


AMONG: dict[str, Among] = {
    "": _hidden,
    ", behind what the row sees,": lambda x: ~x.visible & (np.arange(x.visible.shape[3]) >= x.stop[..., None]),
    ", ahead of what the row sees,": lambda x: ~x.visible & (np.arange(x.visible.shape[3]) < x.first[..., None]),
}


def _of_way(
    effect: Effect, looks: Sequence[tuple[Trial, Array]], passed: Sequence[Case], effort: Effort, until: float
) -> list[Found]:  # fmt: skip
    found: list[tuple[float, int, Effect, Rule]] = []
    telling, right = 0, _right(passed, effect)
    for words, among in (AMONG if effect is SEEN else {"": _visible}).items():
        known = []
        for trial, times in looks:
            shape = seen_shape(trial.inputs)
            there = among(shape) & (np.arange(shape.visible.shape[3]) < shape.keys[..., None])
            hit = there & (times >= 1 if effect is SEEN else times == (0 if effect is LEFT_OUT else 2))
            miss = there & ~hit & ~np.isnan(times)
            some = hit.any(-1)
            elsewhere = effect is SEEN and (~shape.visible & (times >= 1) & ~hit).any()
            if effect is LEFT_OUT and 2 * (some & miss.any(-1)).sum() < some.sum():
                continue  # where nothing is left of most rows, that is no matter of which keys
            if some.any() and not elsewhere:
                known.append(Known(trial.inputs, hit, miss))
        telling = max(telling, len(known))
        if known and not (len(known) < SURE and len(looks) >= 2 * SURE):
            says = Effect(effect.says.format("{}" + words), effect.made)
            rules = holding(known, telling, effort, until, among, right)
            found += [(against, n, says, rule) for against, n, rule in rules]
    best = sorted(found, key=lambda x: x[0])
    return [(says, rule) for _, n, says, rule in best if n >= max(telling / 2, 1)]


# ---- for which pairs something else is wrong


def _of_effects(
    trials: Sequence[Trial], passed: Sequence[Case], aspect: str, effort: Effort, until: float
) -> Iterator[Found]:  # fmt: skip
    """Of all effects those that may be so for some pairs in most cases, each with its rules."""
    found: list[tuple[float, Effect, Rule]] = []
    plain = (LEFT_OUT, TWICE, SEEN) if aspect != "out" else ()
    for effect in (*plain, *effects()) if trials else ():
        if effort.seconds > until or (found and plain and effect not in plain):
            break  # how often a pair counts is simpler than all else
        known = _where(trials, effect, aspect, effort)
        right = _right([c for c in passed if aspect == "out" or c.backward], effect) if known else []
        for by_key in (False, True) if known else ():
            rows = [Known(inputs, times == 1, times == 0, by_key) for inputs, times in known]
            rows.sort(key=lambda k: -int(k.hit.sum()))  # those that tell most first
            rules = holding(rows, len(known), effort, until, passed=right)
            found += [(against, effect, rule) for against, _, rule in rules]
    for _, effect, rule in sorted(found, key=lambda x: x[0]):
        yield effect, rule


def _where(trials: Sequence[Trial], effect: Effect, aspect: str, effort: Effort) -> list[tuple[Inputs, Array]]:
    """Of most of the cases in which it may show, for which pairs it is so; else none."""
    shows = [t for t in trials if effect.separates(t.case)]
    if len(shows) < MOSTLY * len(trials):
        return []
    found: list[tuple[Inputs, Array]] = []
    for tried, trial in enumerate(shows):
        effort.work += ASKED
        times = chosen_pairs(trial, effect.made, aspect)
        found += [] if times is None else [(trial.inputs, times)]
        if tried + 1 - len(found) > (1 - MOSTLY) * len(shows):
            return []
    return found


# ---- the hypothesis


def _hypothesis(rules: Sequence[Found]) -> Hypothesis:
    made = mixed([(effect.made, rule.pairs) for effect, rule in rules])
    made.__name__ = "deduced_rule"
    texts = [effect.says.format(rule.words) + rule.where for effect, rule in rules]
    words = "; ".join(text[0].upper() + text[1:] for text in texts)

    def separates(case: Case) -> bool:
        shape = shape_of(case)
        return case.scores > 0 and any(_any(rule, shape) for _, rule in rules)

    def solve(inputs: Inputs, contract: Any, want: frozenset[str]) -> Any:
        return made(inputs, contract).solve(want)

    return Hypothesis(
        f"deduced[{words}]", words, separates, frozenset(NAMES), solve, made=made, narrow=1, fitted=True
    )


def _any(rule: Rule, shape: Shape) -> bool:
    return bool(np.any(rule.of(shape.by_key if rule.by_key else shape)))
