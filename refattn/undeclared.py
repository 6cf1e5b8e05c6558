"""What would explain a failure that is no bug: a convention that was not declared, or another contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .case import GRADIENTS, NAMES
from .elements import judged_output
from .inputs import Problem
from .precision import Conventions, Precision, eager, preset
from .truth import Expected, truth

__all__ = ["other_contract", "relevant", "undeclared"]

Array = np.ndarray[Any, Any]


def relevant(problem: Problem, convention: str, failing: Sequence[str]) -> bool:
    """Whether a convention can change what is expected of the failing outputs."""
    case = problem.case
    if convention.startswith("masked_nan"):
        return not np.isfinite(np.asarray(problem.logical[convention[-1]], dtype=np.float64)).all()
    if convention == "lse_base":
        return "lse" in failing
    if convention == "lse_sinks":
        return "lse" in failing and case.sinks is not None
    if convention == "empty_lse" and "lse" not in failing:
        return False
    return _has_empty_row(problem)


def _has_empty_row(problem: Problem) -> bool:
    case, bias = problem.case, problem.logical.get("bias")
    hidden = None if bias is None else np.isneginf(np.asarray(bias, dtype=np.float64))
    step = max(1, 2**22 // max(case.B * case.H * case.Lk, 1))
    for first in range(0, case.Lq, step):
        rows = slice(first, first + step)
        seen = case.visibility.tile(rows)
        if hidden is not None:
            seen = seen & ~(hidden[:, :, rows] if hidden.shape[2] > 1 else hidden)
        if not seen.any(-1).all():
            return True
    return False


def _alternatives() -> Iterator[dict[str, str]]:
    """The most specific first: what says which number is returned, then what excuses NaN."""
    for rows in ("nan", "mean_all"):
        yield {"empty_rows": rows}
    for lse in ("+inf", "nan"):
        yield {"empty_lse": lse}
    yield {"lse_base": "2"}
    yield {"lse_sinks": "excluded"}
    for kind in ("masked_nan_v", "masked_nan_k"):  # a key that leaks excuses more
        yield {kind: "leaks"}
    yield {"masked_nan_k": "leaks", "masked_nan_v": "leaks"}


def undeclared(
    problem: Problem,
    got: Mapping[str, Array],
    expected: Mapping[str, Expected],
    failing: Sequence[str],
    precision: Precision,
    declared: Mapping[str, Any],
) -> tuple[str, ...]:
    """Name the conventions each of which explains a failing output in full, if together they explain all.

    What leaks is NaN, and what comes of a row that is NaN: no other number is excused by it.
    """
    left = list(failing)
    found: dict[str, str] = {}
    for change in _alternatives():
        if not left or not all(relevant(problem, name, left) for name in change):
            continue
        under = truth(problem, precision, Conventions(**{**declared, **change}))
        explained = [name for name in left if judged_output(name, got[name], under[name]).passed]
        spreads = NAMES if any(n.startswith("masked") for n in change) else GRADIENTS
        if "leaks" in change.values() or "nan" in change.values():
            explained = [n for n in explained if n not in spreads or _nan_alone(got[n], expected[n])]
        if "mean_all" in change.values() and set(explained) <= set(GRADIENTS):
            continue  # under it these are not judged
        if explained:
            found.update(change)
            left = [name for name in left if name not in explained]
    if left or not found:
        return ()
    case = problem.case
    lengths = (case.q_lens, case.k_lens) != (None, None)
    beyond = ", unless it reads beyond the lengths, which is a bug" if lengths else ""
    more = {name: beyond + _infinite(problem, name) for name in found if name.startswith("masked")}
    return tuple(f"undeclared convention: {name}={value!r}{more.get(name, '')}" for name, value in found.items())


def _nan_alone(got: Array, expected: Expected) -> bool:
    """Whether all that is out of bounds is NaN."""
    finite = ~np.isnan(got) & ~expected.ignored & ~(expected.nonfinite & ~np.isfinite(got))
    return bool(((expected.lo <= got) & (got <= expected.hi))[finite].all())


def _infinite(problem: Problem, convention: str) -> str:
    """Says what leaks where it is no NaN."""
    name = convention[-1]
    only = not np.isnan(np.asarray(problem.logical[name], dtype=np.float64)).any()
    return f" ({name} holds no NaN but infinity, and 0 times infinity is NaN)" if only else ""


def other_contract(
    problem: Problem, got: Mapping[str, Array], precision: Precision, declared: Mapping[str, Any]
) -> tuple[str, ...]:
    """Name a usual contract under which all is within bound, where the one judged by is the preset."""
    case = problem.case
    usual = preset(case.dtype, case.out_dtype)
    others = {}
    if case.dtype in ("float16", "bfloat16"):
        eager_way = "the eager one: precision=lambda case: replace(eager(case.dtype), source=...)"
        others[eager_way] = replace(eager(case.dtype), out=case.out_dtype)
    if case.dtype == "float64":
        others["float32's: it computes in float32"] = replace(usual, accumulate="float32")
    if case.dtype == "float32":
        others["exp(score - lse): weights_from_lse=True"] = replace(usual, weights_from_lse=True)
    for name, contract in others.items() if precision == usual else ():
        expected = truth(problem, contract, Conventions(**declared))
        endless = any((np.isneginf(expected[n].lo) & np.isposinf(expected[n].hi)).any() for n in got)
        if not endless and all(judged_output(n, x, expected[n]).passed for n, x in got.items()):
            return (f"within the bound of another contract, {name}",)
    return ()
