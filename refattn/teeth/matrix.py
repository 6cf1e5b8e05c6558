"""The kill matrix: a row for each mutant.

A row is plain data, so that it is one line of JSON:

    name family what     of the catalogue
    by                   the case or law that kills it with us, "" if none
    ratio                its ratio there, None if it is infinite or the fault is no number
    reason               that fault
    suspicious           what the statistics say of it, where nothing kills it that should
    vector               in hexadecimal: which of `killers()` it fails by our bounds, bit n for entry n; or None
    own, ours            for each rule of others the case that kills it: of its own inputs, and of those that kill it
                         with us; "" if none does; own, like vector, is None if it was not asked
    reach                like own, but by our bounds: what its inputs could show
    seconds              of CPU
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..aggregate import suspicions
from ..calling import Local
from ..case import Case
from ..conform import Verdict, examine
from ..laws import law_of
from ..mutants import MUTANTS, Kernel, Mutant
from ..public_rules import RULES, PublicRule
from .answers import ask, by_id, reference
from .power import DTYPES, standard

__all__ = ["Row", "catalogue", "fresh", "full_row", "killers", "quick_row"]

Row = dict[str, Any]
STANDARD = DTYPES
"""the dtypes in which the statistics are asked"""


@cache
def killers() -> tuple[str, ...]:
    """The cases by which the catalogue's mutants are caught, each once; without laws."""
    found = {id for mutant in MUTANTS.values() for id in mutant.caught.split()}
    return tuple(sorted(id for id in found if law_of(by_id(id)) is None))


def catalogue() -> str:
    """A name for the catalogue as it is: its mutants, what catches them, and what others ask."""
    asked = {rule.name: [case.to_json() for case in rule.inputs] for rule in RULES.values()}
    text = json.dumps([{m.name: m.caught for m in MUTANTS.values()}, asked], sort_keys=True)
    return f"{len(MUTANTS)}-{zlib.crc32(text.encode()):08x}"


def fresh(mutant: Mutant) -> Kernel:
    """The mutant, without what is left over from calls before."""
    return replace(mutant.implementation)


def quick_row(name: str) -> Row:
    """The mutant on its killer alone."""
    begin, mutant = time.process_time(), MUTANTS[name]
    row: Row = {"name": name, "family": mutant.family, "what": mutant.what, "by": "", "ratio": None, "reason": ""}
    row |= {"suspicious": "", "vector": None, "own": None, "reach": None, "ours": dict.fromkeys(RULES, "")}
    asked = [by_id(id) for id in mutant.caught.split()]
    verdict = _examined(mutant, asked)
    if verdict is not None and verdict.status == "failed":
        row["by"] = verdict.case.id
        row["ratio"] = verdict.ratio if np.isfinite(verdict.ratio) and verdict.ratio > 1 else None
        row["reason"] = " ".join(verdict.reasons[0].split())[:120] if verdict.reasons else ""
    elif not mutant.survives:
        row["suspicious"] = _suspicious(mutant)
    kernel = fresh(mutant)  # one process asks them all, as it does with us
    _try_rules(RULES.values(), kernel, asked, row["ours"])
    row["seconds"] = round(time.process_time() - begin, 3)
    return row


def full_row(name: str) -> Row:
    """The mutant on its killer, on those of all other mutants, and on what others ask."""
    row, begin, mutant = quick_row(name), time.process_time(), MUTANTS[name]
    vector = 0
    for n, id in enumerate(killers()):
        case = by_id(id)
        if not mutant.separates(case):
            continue
        kernel = fresh(mutant)
        answer = ask(kernel, case)
        if not reference(case).ratio(answer) <= 1:
            vector |= 1 << n
            for rule in RULES.values():
                if not row["ours"][rule.name] and reference(case).kills(rule, answer):
                    row["ours"][rule.name] = id
    row["vector"] = f"{vector:x}"
    row["own"], row["reach"] = dict.fromkeys(RULES, ""), dict.fromkeys(RULES, "")
    for name, rule in RULES.items():
        kernel = fresh(mutant)  # asked one after the other, as their tests do
        for case in rule.inputs:
            answer, its = ask(kernel, case), reference(case)
            if not row["own"][name] and its.kills(rule, answer):
                row["own"][name] = case.id
            if not row["reach"][name] and not its.ratio(answer) <= 1:
                row["reach"][name] = case.id
            if row["own"][name] and row["reach"][name]:
                break
    row["seconds"] = round(row["seconds"] + time.process_time() - begin, 3)
    return row


def _examined(mutant: Mutant, asked: Sequence[Case]) -> Verdict | None:
    """The verdict on the last of what is asked of one process."""
    candidate, verdict = Local(fresh(mutant)), None
    for case in asked:
        verdict = examine(candidate, case)
    return verdict


def _suspicious(mutant: Mutant) -> str:
    for dtype in STANDARD:
        its = reference(standard(dtype))
        got = its.dense(ask(fresh(mutant), its.case))
        found = suspicions(its.problem, got, its.expected, mutant.implementation.precision(its.case))
        if found:
            return f"{dtype}: {found[0].text}"
    return ""


def _try_rules(rules: Iterable[PublicRule], kernel: Kernel, asked: Sequence[Case], found: dict[str, str]) -> None:
    """Asks the kernel one case after the other, until each of the rules has killed it; `found` says by which.

    Of a law the rules see its base problem.
    """
    left = [rule for rule in rules if not found[rule.name]]
    for case in asked:
        if not left:
            return
        answer = ask(kernel, case)
        for rule in tuple(left):
            if reference(case).kills(rule, answer):
                found[rule.name] = case.id
                left.remove(rule)
