"""Power: which small errors each rule notices, planted into one standard problem of 256 queries and 4096 keys.

The statistics' columns are apart from our verdict: they report "suspicious", not "failed".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..aggregate import suspicions
from ..case import Case
from ..dtypes import FORMATS
from ..mutants import MUTANTS, TILES, Kernel
from ..precision import Precision
from ..public_rules import RULES
from ..streaming import Rules
from .answers import ask, reference

__all__ = ["COLUMNS", "DTYPES", "notices", "plants", "power", "smallest", "standard"]

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "float16", "bfloat16")
COLUMNS = ("ours", "statistics", *RULES)
ALWAYS = "always"
SIZES = tuple(2.0**-n for n in range(2, 19))
"""relative errors of scale"""
KEYS = tuple(range(128, 4096, 256))
"""keys that are dropped, one at a time"""


def standard(dtype: str) -> Case:
    """256 x 4096, one head of 64, N(0, 1)."""
    return Case(
        f"power-{dtype}", "The standard problem for planted errors.", (), "power", Lq=256, Lk=4096, D=64, Dv=64,
        dtype=dtype, want=frozenset({"out"}),
    )  # fmt: skip


@cache
def _without(key: int) -> type[Rules]:
    class Without(Rules):
        def geometry(self, mask: Any) -> Any:
            return np.arange(4096).reshape(1, 1, 1, 4096) != key

    return Without


class _ScoresInBf16(Rules):
    def contract(self, precision: Precision) -> Precision:
        return replace(precision, scores="bfloat16")


@cache
def _scaled(times: float) -> type[Rules]:
    class Scaled(Rules):
        def default_scale(self, D: int) -> float:
            return D**-0.5 * times

    return Scaled


def _rules_of(mutant: str) -> type[Rules]:
    return MUTANTS[mutant].implementation.rules


def plants() -> dict[str, type[Rules]]:
    """What is planted, by what it is called."""
    return {
        "nothing: the honest kernel": Rules,
        "scale off by 0.1 %": _scaled(1.001),
        "scale off by 1 %": _scaled(1.01),
        "log2(e) rounded to float16": _rules_of("log2e_in_fp16"),
        "running output kept in bfloat16": _rules_of("bf16_accumulator"),
        "scores stored in bfloat16": _ScoresInBf16,
        "output cut, not rounded": _rules_of("stored_truncated"),
    }


def notices(rules: type[Rules], dtype: str) -> dict[str, bool | str]:
    """Whether each of COLUMNS notices a kernel with these rules on the standard problem of the dtype.

    ALWAYS, if a rule rejects the honest kernel too.
    """
    case = standard(dtype)
    its, kernel = reference(case), Kernel(name="planted", rules=rules, schedule=TILES)
    answer = ask(kernel, case)
    found: dict[str, bool | str] = {"ours": not its.ratio(answer) <= 1}
    found["statistics"] = bool(suspicions(its.problem, its.dense(answer), its.expected, kernel.precision(case)))
    return found | {name: ALWAYS if its.alarms(rule) else its.kills(rule, answer) for name, rule in RULES.items()}


def smallest(dtype: str, sizes: Sequence[float] = SIZES) -> dict[str, float | None]:
    """The smallest relative error of scale that each notices, with all larger ones; None if it is above the first."""
    best: dict[str, float | None] = dict.fromkeys(COLUMNS, None)
    left = set(COLUMNS)
    for size in sizes:
        found = notices(_scaled(1 + size), dtype)
        left = {name for name in left if found[name] is True}
        if not left:
            break
        best |= dict.fromkeys(left, size)
    return best


def power(dtypes: tuple[str, ...] = DTYPES) -> list[dict[str, Any]]:
    """Lines {what, dtype, noticed}: by each of COLUMNS yes or no; of dropped keys how many; the smallest scale's error.

    What a dtype cannot have (an output of float32 is not cut) is left out.
    """
    lines: list[dict[str, Any]] = []
    for what, rules in plants().items():
        for dtype in dtypes:
            if "output cut" not in what or FORMATS[dtype].bits < FORMATS["float32"].bits:
                lines.append({"what": what, "dtype": dtype, "noticed": notices(rules, dtype)})
    for dtype in dtypes:
        found = [notices(_without(key), dtype) for key in KEYS]
        counts = {n: ALWAYS if found[0][n] == ALWAYS else sum(one[n] is True for one in found) for n in COLUMNS}
        lines.append({"what": f"one key of 4096 dropped: {len(KEYS)} keys in turn", "dtype": dtype, "noticed": counts})
    return lines + [{"what": "smallest error of scale", "dtype": d, "noticed": smallest(d)} for d in dtypes]
