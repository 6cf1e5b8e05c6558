"""Whole numbers solved from linear equations: planted ones are found again or not known, and others are not solved."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.localise.whole_numbers import chosen, whole


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 24), n=st.integers(1, 24), most=st.integers(1, 2),
       size=st.sampled_from([1.0, 1e3, 1e8]))  # fmt: skip
def test_planted_numbers_are_found_or_not_known(seed: int, rows: int, n: int, most: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    equations = size * rng.standard_normal((rows, n))
    planted = rng.integers(0, most + 1, n)
    found = whole(equations, equations @ planted + rng.uniform(-1, 1, rows), most)
    if found is None:  # they may fit others as well
        assert n >= rows or size < 1e3
        return
    known = ~np.isnan(found)
    if n < rows:
        np.testing.assert_array_equal(found[known], planted[known])
    assert known.all() or n >= rows or size < 1e3


def test_halves_are_none() -> None:
    equations = 1e4 * np.random.default_rng(0).standard_normal((9, 4))
    assert whole(equations, equations @ [0.5, 1, 0, 1], 1) is None
    assert whole(equations, equations @ [2.0, 1, 0, 1], 1) is None
    assert whole(equations, np.full(9, np.nan), 1) is None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(3, 90), begin=st.integers(0, 60), size=st.integers(1, 40),
       outside=st.booleans())  # fmt: skip
def test_a_run_is_chosen_or_not_known(seed: int, n: int, begin: int, size: int, outside: bool) -> None:
    rng = np.random.default_rng(seed)
    columns = 1e5 * rng.standard_normal((12, n)) * rng.uniform(0.1, 1, n)
    at = np.arange(n)
    planted = (((at >= begin) & (at < begin + size)) != outside).astype(float)
    found = chosen(columns, columns @ planted + rng.uniform(-1, 1, 12))
    assert found is not None or not planted.any()
    if found is not None:
        known = ~np.isnan(found)
        np.testing.assert_array_equal(found[known], planted[known])
        assert known.all()


def test_what_no_equation_tells_is_not_known() -> None:
    columns = 1e5 * np.random.default_rng(1).standard_normal((8, 5))
    columns[:, 3] *= 1e-6
    found = chosen(columns, columns @ [1, 0, 1, 1, 0])
    assert found is not None
    np.testing.assert_array_equal(found, [1, 0, 1, np.nan, 0])


def test_what_is_no_sum_of_columns_is_none() -> None:
    columns = 1e5 * np.random.default_rng(2).standard_normal((12, 7))
    assert chosen(columns, 1e5 * np.ones(12)) is None
    wide = 1e5 * np.random.default_rng(2).standard_normal((5, 40))
    assert chosen(wide, 1e5 * np.ones(5)) is None
