"""What the failures have in common where no hypothesis explains them: which outputs, which cases, where, and how.

Nothing here is a guess: each line holds of every failing case that was looked at, or says of how many; and what all of
them have in common by accident is not said.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..case import GRADIENTS, NAMES, Case
from ..localise import Compared, compared
from ..localise.keyscan import keys_that_are_off
from ..localise.manner import manner
from .conditions import common, condition
from .dense import Inputs
from .effort import Effort
from .regions import REGIONS, Region
from .trial import Trial

__all__ = ["facts"]

LINES = 5
MOSTLY = 0.75
"""of the cases of which something is said"""
ELEMENTS = 8
"""In what way something is wrong takes so many elements to say."""
ROWS = 4
"""So many rows of a case count as separate evidence on where it is wrong."""
ACCIDENT, SMALL = 0.01, 0.85
"""so little probable is a place that is said, if what is wrong may be anywhere, and not more of all that is judged"""
FEW = 8
"""cases of which it is asked whether keys count otherwise"""
LOOK, KEY_SCAN, SCORE = 4e-3, 2e-2, 5e-7
"""seconds to look at a case, to ask whether its keys count otherwise, and for each score of it"""
KEYS = {
    "keys that should be seen had no weight": ("no weight", "too few"), "keys were counted twice": ("twice",),
    "hidden keys had weight": ("must be hidden", "too many"),
}  # fmt: skip
VAGUE = ("in each", "in most", "a multiple", "off by as", "further", "infinite in", "NaN in", "too ", "of the right")
"""Words that begin so leave room for others; the most telling first."""


@dataclass
class Look:
    """A failing case, and each output that it returned."""

    trial: Trial
    outputs: dict[str, Compared]

    @cached_property
    def wrong(self) -> dict[str, Compared]:
        return {n: x for n, x in self.outputs.items() if x.failing.any()}

    @cached_property
    def inputs(self) -> Inputs:
        """With what a bias hides hidden."""
        if "bias" not in self.trial.inputs.arrays:
            return self.trial.inputs
        inputs = copy.copy(self.trial.inputs)
        inputs.made = {}
        inputs.visible = inputs.visible & ~np.isneginf(inputs.arrays["bias"])
        return inputs

    @cached_property
    def words(self) -> dict[str, list[str]]:
        """Of each output that is wrong, in what way."""
        return {name: manner(x, self.trial.case) for name, x in self.wrong.items()}


def facts(
    trials: Sequence[Trial], passed: Sequence[Case], failing: int, effort: Effort, until: float
) -> list[str]:  # fmt: skip
    """At most five lines on the failures that were kept, of `failing` in all."""
    looks = list[Look]()
    for trial in sorted(trials, key=lambda t: t.case.scores):
        evidence = trial.verdict.evidence
        if evidence is None or (looks and effort.seconds > until):
            break
        effort.work += LOOK + SCORE * trial.case.scores
        look = Look(trial, {x.name: x for x in compared(evidence)})
        if look.words:
            looks.append(look)
    if not looks:
        return []
    wrong = Counter(name for look in looks for name in look.wrong)
    names = [name for name in NAMES if wrong[name] >= MOSTLY * max(wrong.values())]
    lines = [_outputs(looks, failing), *_cases(looks, [t.case for t in trials], passed)]
    lines += [*_places(names, looks), *_manners(names, looks), *_keys(looks, effort, until)]
    return lines[:LINES]


def _outputs(looks: Sequence[Look], failing: int) -> str:
    """Which outputs are wrong, and which are right."""
    n, parts = len(looks), list[str]()
    returned = Counter(name for look in looks for name in look.outputs)
    wrong = Counter(name for look in looks for name in look.wrong)
    always, right = ([name for name in NAMES if returned[name] and wrong[name] == share * returned[name]]
                     for share in (1, 0))  # fmt: skip
    for names, text in ((always, "wrong"), (right, "right")):
        if sum(name in GRADIENTS for name in names) > 1 and all(x in names for x in GRADIENTS if returned[x]):
            names[:] = [*(name for name in names if name not in GRADIENTS), "gradients"]
        if names:
            parts.append(f"{_listed(names)} {'is' if len(names) == 1 and names != ['gradients'] else 'are'} {text}")
    some = [f"{x} in {wrong[x]} of {returned[x]} cases" for x in NAMES if 0 < wrong[x] < returned[x]]
    if some:
        parts.insert(len(parts) - bool(right), f"wrong is {_listed(some)}")
    return "; ".join(parts) + (f" (in {n} of {failing} failing cases that were looked at)" if n < failing else "")


def _cases(looks: Sequence[Look], failing: Sequence[Case], passed: Sequence[Case]) -> Iterator[str]:
    """In which cases alone it fails."""
    always = [name for name in NAMES if all(name in look.wrong for look in looks)]
    alike = [c for c in passed if not c.want.isdisjoint(always)]
    for others, that in ((alike, f" that return {' or '.join(always)}"), (passed, "")):
        found = common(failing, others)
        if found is not None:
            words, have = found
            pass_ = f"; {len(have)} such{that} pass{'es' * (len(have) == 1)}" if have else ""
            yield f"it fails in cases {words} alone{pass_}"
            return
    where = condition(failing, passed)
    if where is not None:
        yield f"it fails in {where} alone"


# ---- where


def _places(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
    """Where alone outputs are wrong, those of the same place in one line."""
    found: dict[str, list[str]] = {}
    for name in names:
        where = _place(name, [look for look in looks if name in look.wrong])
        if where:
            found.setdefault(where, []).append(name)
    return [f"{_listed(of)} {'is' if len(of) == 1 else 'are'} wrong{where}" for where, of in found.items()]


def _place(name: str, looks: Sequence[Look]) -> str:
    """The smallest region that all that is wrong lies in; "" if there is none, or it may be an accident."""
    found = {region: _Tally() for region in REGIONS}
    for look in looks:
        x = look.wrong[name]
        for region in list(found):
            found[region].count(x, region, look.inputs)
            if found[region].missed > (1 - MOSTLY) * len(looks):
                del found[region]
    n = len(looks)
    sure = [r for r, tally in found.items() if tally.tells(n)]
    best = min(sure, key=lambda r: (found[r].missed, found[r].size / (n - found[r].missed)), default=None)
    if best is None:
        return ""
    missed, words, of = found[best].missed, best.words, ""
    for kind in ("row", "key"):
        if words.startswith(f"of the {kind}s "):
            words, of = words.removeprefix(f"of the {kind}s "), f", of its {kind}s,"
    where = f" in {words}, in all of them and nowhere else" if found[best].whole else f" only in {words}"
    return of + where + (f", in {n - missed} of {n} cases" if missed else "")


@dataclass
class _Tally:
    """How a region fares: cases in which something else is wrong, and how small it is in the others."""

    missed: int = 0
    size: float = 0.0
    chance: float = 0.0
    """the logarithm of the probability that rows at random all lie in it"""
    whole: bool = True
    """whether all rows in it are wrong"""

    def count(self, x: Compared, region: Region, inputs: Inputs) -> None:
        inside = region.of(x.name, inputs)
        if inside is None or (x.failing & ~inside).any():
            self.missed += 1
            return
        there = x.judged & inside
        share = float(there.sum() / x.judged.sum())
        rows, wrong = (a.any(-1) if a.ndim > 3 and region.columns is None else a for a in (there, x.failing))
        self.whole &= bool((rows == wrong).all())
        self.size += share
        self.chance += min(int(wrong.sum()), ROWS) * math.log(share)

    def tells(self, n: int) -> bool:
        """Whether it is smaller than all, and would seldom fare so well in n cases if what is wrong were anywhere."""
        chance = self.chance + math.log(math.comb(n, self.missed) * len(REGIONS))
        return chance < math.log(ACCIDENT) and self.size <= SMALL * (n - self.missed)


# ---- how


def _manners(names: Sequence[str], looks: Sequence[Look]) -> Iterator[str]:
    """How each output is wrong where it is."""
    for name in names:
        told = [look.words[name] for look in looks if name in look.words]
        if sum(int(look.wrong[name].failing.sum()) for look in looks if name in look.wrong) < ELEMENTS:
            continue
        n, counts = len(told), Counter(word for row in told for word in row)
        likely = [word for word in counts if counts[word] >= MOSTLY * n]
        exact = [word for word in likely if not word.startswith(VAGUE)]
        vague = [word for start in VAGUE for word in likely if word.startswith(start)]
        which = sorted(exact, key=lambda word: -counts[word])[:1] or vague[:2]
        if which:
            texts = [w + (f" in {counts[w]} of {n} cases" if counts[w] < n else "") for w in which]
            yield f"where {name} is wrong it is {', and '.join(texts)}"


def _keys(looks: Sequence[Look], effort: Effort, until: float) -> Iterator[str]:
    """Whether out is as if keys counted otherwise, of a few small cases."""
    asked, found = [look for look in looks if "out" in look.wrong][:FEW], list[str]()
    for look in asked:
        if found and effort.seconds > until:
            break
        case, x, evidence = look.trial.case, look.wrong["out"], look.trial.verdict.evidence
        if evidence is not None and case.H and case.Hkv:
            effort.work += KEY_SCAN + SCORE * case.scores
            rows = np.asarray(x.failing.any(-1))
            found.append(" ".join(keys_that_are_off(evidence.problem, look.trial.contract, x.got, x.expected, rows)))
    counts = {kind: sum(any(w in text for w in said) for text in found) for kind, said in KEYS.items()}
    for kind in (k for k, n in counts.items() if n >= max(MOSTLY * len(found), 2)):
        yield f"most wrong rows of out are as if {kind}, in {counts[kind]} of {len(found)} cases that were asked"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(x for x in (", ".join(names[:-1]), names[-1]) if x)
