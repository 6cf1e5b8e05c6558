"""The other side: honest kernels, and how many of their answers each rule rejects.

Each is judged by us under its own contract.  What it stores in 16 bits must fit there: where it does not, it is not
asked.  The rules of others have one reference, whatever a kernel promises.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ..calling import call
from ..case import Case
from ..dtypes import FORMATS
from ..honest import fits
from ..mutants import Kernel
from ..precision import Precision, eager, preset
from ..public_rules import RULES
from ..streaming import Schedule
from .answers import by_id, reference

__all__ = ["KERNELS", "honest_row", "kernel_of"]

KERNELS: dict[str, tuple[str, Schedule]] = {
    "one tile": ("preset", Schedule(1 << 20, 1 << 20)),
    "tiles of 64": ("preset", Schedule(64, 64)),
    "exp2, keys in reverse": ("preset", Schedule(16, 64, "reverse", exp="exp2")),
    "three splits, tiles shuffled": ("preset", Schedule(32, 48, "random", splits=3, seed=1)),
    "eager": ("eager", Schedule(1 << 20, 1 << 20)),
    "sums of rounded weights": ("rounded sum", Schedule(64, 64)),
}
"""by name: contract and schedule; contracts other than the preset are for 16 bits"""


def kernel_of(name: str, case: Case) -> Kernel | None:
    """The honest kernel for the case, None if it is no other than that of the preset, or cannot be asked."""
    contract, schedule = KERNELS[name]
    found: Precision = preset(case.dtype, case.out_dtype)
    if contract != "preset":
        if FORMATS[case.dtype].bits not in (8, 11):
            return None
        loose = {"eager": eager(case.dtype), "rounded sum": replace(found, sum_rounded_weights=True)}[contract]
        found = replace(loose, out=case.out_dtype)
        if not fits(reference(case).problem, found):
            return None
    return Kernel(name=name, schedule=schedule, contract=found)


def honest_row(id: str) -> dict[str, Any]:
    """Each honest kernel on one case: its ratio by our bounds, and the rules of others that reject it.

    An input of a rule is for that rule alone.
    """
    begin, case = time.process_time(), by_id(id)
    its = reference(case)
    owners = [rule for rule in RULES.values() if case in rule.inputs]
    kernels = {}
    for name in KERNELS:
        kernel = kernel_of(name, case)
        if kernel is None:
            continue
        answer = call(kernel, its.problem)
        usual = kernel.contract == preset(case.dtype, case.out_dtype) or kernel.contract is None
        expected = its.expected if usual else its.under(kernel.contract or preset(case.dtype))
        got = its.dense(answer)
        alarms = [rule.name for rule in owners or RULES.values() if not its.accepted(rule, got)]
        kernels[name] = {"ratio": min(round(its.ratio(answer, expected), 4), 1e30), "alarms": alarms}
    owner = owners[0].name if owners else ""
    return {"name": id, "owner": owner, "kernels": kernels, "seconds": round(time.process_time() - begin, 3)}
