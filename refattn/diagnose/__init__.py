"""Which bug would give just these answers: hypotheses, each a function of the inputs, against what was returned.

A hypothesis is evaluated in float64 on a problem that failed, and again in the arithmetic that the implementation
promised: what the two differ by, four times over, or the radius of the bound if that is larger, is how far an honest
kernel with this bug may be from it.  It *explains* a case if every output that was returned is within that distance;
one of too few bits is evaluated in the promised arithmetic alone, and explains a case if it leaves a tenth of the
squared error.  It is named as exact only if it explains every failing case that was kept and no case that passed
speaks against it.  Otherwise that which explains most of the cases is named, with their number; otherwise the one
that explains most of the squared error, with its share; or none.

Hypotheses are the catalogue of mutants turned round, and families with a parameter: the size of tiles, which head,
off by how many (`refattn.diagnose.hypothesis`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..case import GRADIENTS, NAMES, Case
from ..judge import Evidence, Verdict
from ..localise import localise
from .diagnosis import Diagnosis
from .hypothesis import Hypothesis, hypotheses, whole_family
from .match import HALF, Trial, would_be_noticed

__all__ = ["Diagnosis", "Suspects", "diagnose"]

Array = np.ndarray[Any, Any]
SCORES = 2**18
"""a case with more scores than this is not evaluated again"""
SEARCHED = 2**13
"""All hypotheses are asked of cases of no more scores, if there are any."""
MOST_LOCATED = 5
"""Of so many unexplained failures it is said where they are."""
KEPT, ASKED, SEARCHES = 48, 16, 3
"""So many failures are kept, candidates asked of so many, and all hypotheses of so many."""
CLOSE = 0.8
"""Of the squared error: less than this does not name a bug that explains no case."""
BEHIND = 2
"""So many cases fewer than the best a candidate may have explained."""
MOST_REGIONAL = 24
"""So many explanations that hold in a region alone are kept of a failure."""
FAMILIES = 3
"""So many families are asked as a whole."""
PASSED = 24
"""So many of the cases that passed may speak against a candidate."""


@dataclass
class Suspects:
    """Watches the verdicts of a run: says what a failure looks like, and in the end what all of them are.

    `seconds` of processor time go to the failures as they come, and as many to what they have in common.
    """

    seconds: float = 6.0
    trials: list[Trial] = field(default_factory=list)
    passed: list[Case] = field(default_factory=list)
    failing: int = 0
    candidates: dict[Hypothesis, int] = field(default_factory=dict)
    """those that explain some failure, and how many"""
    near: dict[Hypothesis, float] = field(default_factory=dict)
    """the shares of error of those that explain some of one"""
    searched: set[str] = field(default_factory=set)
    """ids of the cases of which all hypotheses were asked"""
    reached: int = 0
    """the first hypothesis that the search before had no time for"""
    known: Counter[str] = field(default_factory=Counter)
    """conventions and contracts that the judge named, and of how many failures"""
    spent: float = 0.0
    located: int = 0

    def watch(self, verdict: Verdict) -> tuple[str, ...]:
        """What a failure looks like, in lines: a bug of the catalogue, or where it is; none if it is no failure."""
        if verdict.status == "passed" and _scores(verdict.case) <= SEARCHED:
            self.passed.append(verdict.case)
        if verdict.status != "failed":
            return ()
        self.failing += 1
        known = [n for n in verdict.notes if n.startswith(("undeclared", "within"))]
        backward = all(o.passed or o.name in GRADIENTS for o in verdict.outputs)
        where = ", in gradients alone" if backward else ""
        self.known.update(n.split(", unless")[0] + where * n.startswith("undeclared") for n in known)
        convention = any(n.startswith("undeclared") and "unless it reads" not in n for n in known)
        if convention or not _can_be_evaluated(verdict):
            return ()  # a convention explains it
        begun = time.thread_time()
        trial = Trial(replace(verdict, evidence=_small(verdict.evidence)))
        if len(self.trials) < KEPT:
            self.trials.append(trial)
        culprit = self._culprit(trial, searching=not known or "unless it reads" in known[0])
        self.spent += time.thread_time() - begun
        if culprit is not None:
            return (f"looks like (its output is within bound of yours): {culprit}",)
        if known or verdict.evidence is None or self.located >= MOST_LOCATED:
            return ()
        self.located += 1
        return tuple(localise(verdict.evidence, verdict.contract).lines())

    def _culprit(self, trial: Trial, searching: bool) -> Hypothesis | None:
        """The likeliest candidate that explains a failure."""
        if self.spent >= self.seconds / 2:
            return None
        for h in sorted(self.candidates, key=lambda h: -self.candidates[h])[:20]:
            if trial.match(h).explains:
                self.candidates[h] += 1
                return h
        if not searching or len(self.searched) >= SEARCHES or _scores(trial.case) > SEARCHED:
            return None
        found = self._search(trial, time.thread_time() + self.seconds / 2)
        return found[0] if found else None

    def _search(self, trial: Trial, until: float) -> list[Hypothesis]:
        """All that explain a failure, which are candidates from then on."""
        self.searched.add(trial.case.id)
        found, every, regional = [], hypotheses(), 0
        begin, self.reached = self.reached, 0  # where time ran out before, the next case goes on
        for at, h in enumerate(every[begin:] + every[:begin]):
            if time.thread_time() > until:
                self.reached = (begin + at) % len(every)
                break
            m = trial.match(h)
            if m.explains:
                found.append(h)
            elif m.share >= HALF:
                self.near[h] = max(self.near.get(h, 0.0), m.share)
            if not m.explains:
                parts = [h, *(part for part in trial.elsewhere(h))]
                found += [part for part in parts[1:] if trial.match(part).explains]
                for part in parts if regional < MOST_REGIONAL and h.made is not None else ():
                    held = list(trial.in_regions(part, MOST_REGIONAL))
                    found, regional = found + held, regional + len(held)
        for h in found:
            self.candidates[h] = self.candidates.get(h, 0) + 1
        return found

    def lines(self) -> tuple[str, ...]:
        """What explains the failures that were kept; nothing if none can be evaluated."""
        told = [(f"{n} of {self.failing} failing cases: {note}", n) for note, n in self.known.most_common(2)]
        found = self.diagnosis() if self.trials else None
        lines = [] if found is None else found.lines()
        first = [line for line, n in told if n >= HALF * self.failing]
        if found is not None and (found.found or found.likely):
            conventions = [line for line, _ in told if "undeclared" in line]
            explained = len(self.trials) if found.found else found.likely[0][1] * len(self.trials) // found.cases
            ahead = [line for line, n in told if line in conventions and n > max(HALF * self.failing, explained)]
            return tuple(ahead + lines + [line for line in conventions if line not in ahead])
        return tuple(first + lines + [line for line, _ in told if line not in first])

    def diagnosis(self) -> Diagnosis:
        """The candidates against a sample of the failures that were kept, and of the cases that passed."""
        begun = time.thread_time()
        until = begun + self.seconds
        sample = _spread(self.trials, ASKED)
        by_size = sorted(sample, key=lambda t: _scores(t.case))
        counts = self._asked(by_size, until)
        if self._in_parts(counts, by_size, until):
            counts = self._asked(by_size, until)
        for trial in by_size:
            best = max(counts.values(), default=0)
            if best >= 0.9 * len(sample) or len(self.searched) >= 2 * SEARCHES or time.thread_time() > until:
                break
            unexplained = not any(trial.match(h).explains for h, n in counts.items() if n == best)
            if trial.case.id not in self.searched and unexplained:
                self._search(trial, until)
                counts = self._asked(by_size, until)
        counts = self._with_families(counts, by_size, until)
        against = self._against(counts, sample, until + self.seconds / 2)
        return self._conclusion(counts, against, sample)

    def _in_parts(self, counts: Mapping[Hypothesis, int], sample: Sequence[Trial], until: float) -> bool:
        """Whether the best candidates, in the forward alone, explain gradients that they do not explain as a whole."""
        new = []
        for h in sorted(counts, key=lambda h: -counts[h])[:10]:
            for trial in (t for t in sample if t.gradients_alone and not t.match(h).nearly):
                if time.thread_time() > until:
                    break
                new += [x for x in h.elsewhere if x not in self.candidates and trial.match(x).explains]
        self.candidates |= dict.fromkeys(new, 1)
        return bool(new)

    def _with_families(
        self, counts: dict[Hypothesis, int], sample: Sequence[Trial], until: float
    ) -> dict[Hypothesis, int]:  # fmt: skip
        """With the best families as a whole, where none explains all: tiles and splits may differ from case to case."""
        best = max(counts.values(), default=0)
        if best == len(sample):
            return counts
        ranked = sorted((h for h in counts if h.family is not None and counts[h]), key=lambda h: -counts[h])
        for family in list(dict.fromkeys(h.family for h in ranked))[:FAMILIES]:
            whole = whole_family(family)
            n = 0
            for trial in sample:
                if time.thread_time() > until:
                    return counts
                n += trial.match(whole).nearly
            if n > best:
                counts = counts | {whole: n}
        return counts

    def _asked(self, sample: Sequence[Trial], until: float) -> dict[Hypothesis, int]:
        """How many of the sample each candidate explains; one that falls behind is not asked further."""
        counts = dict.fromkeys(self.candidates, 0)
        alive = list(counts)
        for trial in sample:
            for h in alive:
                if time.thread_time() > until:
                    return counts
                counts[h] += trial.match(h).nearly
            best = max(counts.values(), default=0)
            alive = [h for h in alive if counts[h] >= best - BEHIND]
        return counts

    def _against(
        self, counts: Mapping[Hypothesis, int], sample: Sequence[Trial], until: float
    ) -> dict[Hypothesis, list[Case]]:  # fmt: skip
        """Which of the cases that passed contradict each of the best candidates."""
        common = frozenset.intersection(*(t.case.features() for t in sample))
        nearest = sorted(self.passed, key=lambda c: (-len(common & c.features()), _scores(c)))
        passed = nearest[: PASSED // 2] + sorted(nearest[PASSED // 2 :], key=_scores)[: PASSED // 2]
        best = sorted((h for h in counts if counts[h]), key=lambda h: -counts[h])[:40]
        against = {}
        for h in (h for h in best if counts[h] >= HALF * max(counts.values())):
            if time.thread_time() > until:
                break  # what was not checked is not named
            against[h] = [c for c in passed if h.separates(c) and would_be_noticed(h, c)]
        return against

    def _conclusion(
        self, counts: Mapping[Hypothesis, int], against: Mapping[Hypothesis, list[Case]], sample: Sequence[Trial]
    ) -> Diagnosis:  # fmt: skip
        n = len(sample)
        where = {h: _where([t for t in sample if t.match(h).nearly], cases) for h, cases in against.items()}
        worth = {h: counts[h] - min(1 if where[h] else len(against[h]), counts[h] / 2, len(against[h]))
                 for h in against}  # fmt: skip
        worth = {h: k - (h.narrow == 2) / 2 for h, k in worth.items()}
        ranked = sorted(against, key=lambda h: (-worth[h], h.narrow, -_share(h, sample) if h.rounding else -1.0))
        exact = [h for h in ranked if counts[h] == n and not against[h] and not h.members]
        exact = [h for h in exact if all(t.match(h).nearly for t in self.trials)]
        exact = [h for h in exact if sum(not t.match(h).explains for t in self.trials) <= len(self.trials) / 10]
        exact = [h for h in exact if not h.rounding] or exact[:1]
        if exact:
            share = _share(exact[0], sample)
            within = sum(t.match(exact[0]).explains for t in self.trials)
            return Diagnosis(tuple(exact), cases=within, failing=self.failing, share=share)
        likely = [h for h in ranked if counts[h] >= HALF * n]
        first = likely[0] if likely else None
        if first is not None:
            rest = [t for t in sample if not t.match(first).nearly]
            others = sorted(counts, key=lambda h: -sum(t.match(h).explains for t in rest))
            second = [(h, k) for h in others[:1] if (k := sum(t.match(h).explains for t in rest)) > n / 8]
            return Diagnosis(
                likely=((first, counts[first]), *second), cases=n, failing=self.failing, against=len(against[first]),
                where=where[first],
            )  # fmt: skip
        return self._closest(sample)

    def _closest(self, sample: Sequence[Trial]) -> Diagnosis:
        asked = [t for t in sample if t.case.id in self.searched] or sample[:1]
        best = max((*self.candidates, *self.near), key=lambda h: _share(h, asked), default=None)
        share = 0.0 if best is None else _share(best, asked)
        if best is None or share < CLOSE:
            return Diagnosis(failing=self.failing)
        return Diagnosis(closest=best, share=share, cases=len(asked), failing=self.failing)


def _share(h: Hypothesis, trials: Sequence[Trial]) -> float:
    """The share of the squared error that it explains, of all of these."""
    found = [t.match(h) for t in trials]
    return sum(m.share for m in found) / len(found)


def _where(sample: Sequence[Trial], against: Sequence[Case]) -> str:
    """What the failing cases have in common that none of some that passed has, in words."""
    if not against:
        return ""
    common = frozenset.intersection(*(_features(t.case) for t in sample))
    telling = sorted(common - frozenset().union(*map(_features, against)))
    return " and ".join(telling[:2]) and "cases with " + " and ".join(telling[:2])


def _features(case: Case) -> frozenset[str]:
    """What an author of kernels may have made a case of its own of."""
    group = case.H // max(case.Hkv, 1)
    told = {
        "Lq = 1": case.Lq == 1, "Lq > 1": case.Lq > 1, "B > 1": case.B > 1, "H > 1": case.H > 1,
        "H > Hkv": group > 1, "H = Hkv": group < 2, "Hkv = 1": case.Hkv == 1, "D != Dv": case.D != case.Dv,
        "gradients": case.backward, "no gradients": not case.backward, "no mask": case.mask is None,
        "a mask": case.mask is not None, "no bias": case.bias is None, "Lq != Lk": case.Lq != case.Lk,
        "lengths that differ": len(set(zip(*case.lengths, strict=True))) > 1, "a scale": case.scale is not None,
        "16 bits": case.dtype in ("float16", "bfloat16"), f"arrays as {type(case.storage).__name__}": True,
        "few rows, H / Hkv * Lq <= 64": group * case.Lq <= 64, "many rows, H / Hkv * Lq > 64": group * case.Lq > 64,
    }  # fmt: skip
    told |= {f"{name} > {n}": size > n for n in (16, 32, 64, 128)
             for name, size in (("Lk", case.Lk), ("Lq", case.Lq), ("D", case.D), ("Dv", case.Dv))}  # fmt: skip
    told |= {f"{name} not a multiple of {n}": size % n != 0 for n in (8, 16, 32, 64)
             for name, size in (("Lk", case.Lk), ("Lq", case.Lq), ("D", case.D), ("Dv", case.Dv))}  # fmt: skip
    return case.features() | {word for word, on in told.items() if on}


def _spread(trials: Sequence[Trial], n: int) -> list[Trial]:
    """Of so many failures, as many as are asked for, spread over the run."""
    return [trials[i * len(trials) // n] for i in range(n)] if len(trials) > n else list(trials)


def diagnose(
    failures: Sequence[Verdict], passed: Iterable[Case] = (), failing: int | None = None, seconds: float = 30.0
) -> Diagnosis:
    """The bug that explains all failures, verdicts with their evidence; `passed` are cases that passed.

    `failing` is how many cases failed in all; `seconds` is when no further hypothesis is begun.
    """
    suspects = Suspects(seconds=seconds, passed=list(passed))
    for verdict in failures:
        if _can_be_evaluated(verdict):
            suspects.trials.append(Trial(verdict))
    suspects.failing = len(failures) if failing is None else failing
    if not suspects.trials:
        return Diagnosis(failing=suspects.failing)
    return suspects.diagnosis()


def _scores(case: Case) -> int:
    return case.B * case.H * case.Lq * case.Lk


def _can_be_evaluated(verdict: Verdict) -> bool:
    e = verdict.evidence
    wrong = any(not o.passed for o in verdict.outputs)  # not only of a wrong dtype or shape
    return e is not None and wrong and verdict.contract is not None and _scores(verdict.case) <= SCORES


def _small(evidence: Evidence | None) -> Evidence | None:
    """The evidence with the judged outputs alone."""
    if evidence is None:
        return None
    got: Mapping[str, Array] = {n: x for n, x in evidence.got.items() if n in NAMES and n in evidence.expected}
    return replace(evidence, got=got)
