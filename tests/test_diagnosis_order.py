"""How the diagnosis searches and concludes: what is asked first, and under which condition a bug holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.calling import Local
from refattn.case import Case
from refattn.cases import CASES, by_id
from refattn.conform import examine, run
from refattn.diagnose.conditions import condition
from refattn.diagnose.merging import merged
from refattn.diagnose.order import by_plausibility, spread
from refattn.implementation import Function
from refattn.masks import Causal, Window
from refattn.streaming import Streaming

SMALL = [c for c in CASES if c.scores < 2**11]


def test_what_shows_in_the_failing_cases_alone_is_asked_first() -> None:
    failed = [c for c in SMALL if isinstance(c.mask, Window)]
    passed = [c for c in SMALL if c.mask is None or isinstance(c.mask, Causal)]
    rows = by_plausibility(failed, passed, forward=True, slight=False)
    asked = [(against, h) for against, row in rows for h in row]
    places = [at for at, (_, h) in enumerate(asked) if h.name.startswith("window[")]
    assert len(asked) == len({h for _, h in asked})
    assert places and min(places) < len(asked) / 50
    assert [x for x, _ in asked] == sorted(x for x, _ in asked)


def test_a_loss_of_bits_is_asked_first_where_errors_are_slight() -> None:
    asked = [by_plausibility(SMALL[:6], SMALL[6:20], forward=True, slight=slight) for slight in (True, False)]
    first = [next(at for at, (_, row) in enumerate(rows) if row[0].rounding) for rows in asked]
    assert first[0] == 0 < first[1]


@pytest.mark.parametrize("n", [0, 3, 16, 40])
def test_spread(n: int) -> None:
    found = spread(range(n), 16)
    assert len(found) == min(n, 16) and list(found) == sorted(set(found))


def lengths(*sizes: int, **more: Any) -> list[Case]:
    return [replace(by_id("full-f32"), id=f"L{n}", Lk=n, **more) for n in sizes]


def test_the_condition_is_found() -> None:
    found = condition(lengths(130, 150, 200, 300, 400), lengths(20, 40, 60, 64, 110))
    assert found is not None and str(found) == "cases with more than 128 keys"
    found = condition(lengths(20, 60, 200, 300, 500, dtype="float64"), lengths(20, 60, 200, 300, 500))
    assert found is not None and str(found).startswith("cases with dtype=float64")


def test_no_condition_is_fitted_to_few_cases_or_where_there_is_none() -> None:
    assert condition(lengths(130), lengths(60)) is None
    assert condition(lengths(20, 60, 200, 300, 500), lengths(21, 61, 201, 301, 501)) is None
    assert condition(lengths(20, 60), []) is None


def test_two_conditions_together() -> None:
    few = lengths(200, 300, 400, 500, 600, Lq=3)
    others = lengths(20, 30, 40, 50, 60, Lq=3) + lengths(200, 300, 400, 500, 600, Lq=90)
    found = condition(few, others)
    assert found is not None and not found.sure and "keys" in str(found) and " and " in str(found)


def infinite_lse(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """lse of a row that sees nothing is +inf."""
    y = dict(Streaming()(case, given))
    return y | {"lse": np.where(np.isneginf(y["lse"]), np.inf, y["lse"]).astype(y["lse"].dtype)}


def test_what_is_not_nan_has_not_leaked() -> None:
    """Keys that are NaN are in the case, but +inf in lse comes of something else."""
    cases = [c for c in SMALL if "lse" in c.want and c.family == "poisoned"]
    kernel = Function(infinite_lse, "infinite", outputs=frozenset({"out", "lse"}))
    verdicts = [v for c in cases if (v := examine(Local(kernel), c)).status == "failed"]
    assert verdicts
    assert all("masked" not in note for v in verdicts for note in v.notes)
    report = run(kernel, [v.case for v in verdicts])
    n = len(verdicts)
    assert report.diagnosis == (f"{n} of {n} failing cases: undeclared convention: empty_lse='+inf'",)


def changed(name: str, how: Any) -> Function:
    def kernel(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        y = dict(Streaming()(case, given))
        return y | {name: how(y[name])} if name in y else y

    return Function(kernel, "changed", outputs=frozenset({"out", "lse", "dq", "dk", "dv"}))


def test_infinity_has_not_leaked_from_nan() -> None:
    case = next(c for c in SMALL if "lse" in c.want and c.family == "poisoned")
    verdict = examine(Local(changed("lse", lambda x: x * 0 + np.float32(np.inf))), case)
    assert verdict.status == "failed" and "masked" not in " ".join(verdict.notes)


def test_finite_gradients_come_of_no_row_that_is_nan() -> None:
    empty = (c for c in SMALL if "dq" in c.want and c.sinks is None and not c.visibility.tile().any(-1).all())
    verdict = examine(Local(changed("dq", lambda x: x + 1)), next(empty))
    assert verdict.status == "failed" and "empty_rows" not in " ".join(verdict.notes)


def test_what_several_found_is_one() -> None:
    one = {"lines": ["x"], "first": "a (kind)", "exact": True, "cases": 3, "failing": 3, "notes": {}}
    assert merged([one]) == ["x"]
    assert merged([one, one | {"lines": []}]) == ["x"]
    assert merged([one, one])[1] == "it explains all failing cases"
    assert merged([one, one | {"exact": False, "cases": 2}]) == ["5 of 6 failing cases look like this bug: a (kind)"]
