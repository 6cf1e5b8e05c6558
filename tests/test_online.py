"""The online-softmax state is a commutative monoid, whatever its rows have seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import online
from refattn.online import State

U = 2.0**-53
RANGE = 40.0
# each merge multiplies by two exponentials of differences below 2 RANGE: (2 RANGE + 4) u each time
SLACK = 4 * (2 * RANGE + 4) * U


def random_state(seed: int, keys: int, rows: int = 5, Dv: int = 3) -> State:
    """A state that has seen `keys` keys; each row sees about half of them, some none."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-RANGE, RANGE, (rows, keys))
    scores[rng.random((rows, keys)) < 0.5] = -np.inf
    return online.update(online.empty(rows, Dv), scores, rng.standard_normal((keys, Dv)))


states = st.builds(random_state, st.integers(0, 2**32 - 1), st.integers(0, 4))


def assert_equal(a: State, b: State) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def assert_close(a: State, b: State) -> None:
    np.testing.assert_array_equal(a.m, b.m)
    assert np.all(np.abs(a.l - b.l) <= SLACK * a.l)
    # |v| is below 6 in these states, so that o's terms are below 6 l
    assert np.all(np.abs(a.o - b.o) <= 6 * SLACK * a.l[:, None])


@given(states)
def test_empty_is_the_identity(s):
    nothing = online.empty(5, 3)
    assert_equal(online.merge(s, nothing), s)
    assert_equal(online.merge(nothing, s), s)


@given(states, states)
def test_merge_commutes(a, b):
    assert_equal(online.merge(a, b), online.merge(b, a))


@given(states, states, states)
def test_merge_is_associative_up_to_rounding(a, b, c):
    assert_close(online.merge(online.merge(a, b), c), online.merge(a, online.merge(b, c)))


@given(states, st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_update_is_merging_with_the_state_of_the_tile(s, seed, keys):
    rng = np.random.default_rng(seed)
    scores, values = rng.uniform(-RANGE, RANGE, (5, keys)), rng.standard_normal((keys, 3))
    alone = online.update(online.empty(5, 3), scores, values)
    assert_close(online.update(s, scores, values), online.merge(s, alone))


def test_empties_merge_and_finish_without_nan():
    nothing = online.merge(online.empty((2, 4), 3, np.float32), online.empty((2, 4), 3, np.float32))
    assert_equal(nothing, online.empty((2, 4), 3))
    out, lse = online.finish(nothing)
    assert out.dtype == lse.dtype == np.float32
    assert np.all(out == 0) and np.all(np.isneginf(lse))


def test_a_tile_wholly_hidden_changes_nothing():
    s = random_state(1, 4)
    assert_equal(online.update(s, np.full((5, 7), -np.inf), np.ones((7, 3))), s)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 12))
@settings(max_examples=50)
def test_finish_is_the_softmax_however_the_keys_are_cut(seed, keys, cut):
    rng = np.random.default_rng(seed)
    scores, values = rng.uniform(-RANGE, RANGE, (5, keys)), rng.standard_normal((keys, 3))
    sink = rng.uniform(-RANGE, RANGE, 5)
    cut = min(cut, keys)
    parts = [online.update(online.empty(5, 3), scores[:, c], values[c]) for c in (slice(cut), slice(cut, None))]
    out, lse = online.finish(online.merge(*parts), sink)
    total = np.exp(scores).sum(1) + np.exp(sink)  # no overflow below RANGE
    p = np.exp(scores) / total[:, None]
    assert np.all(np.abs(out - p @ values) <= SLACK * (p @ np.abs(values)) + SLACK * U)
    assert np.all(np.abs(lse - np.log(total)) <= SLACK)


def test_a_sink_enters_once_and_not_in_each_part():
    parts = [online.update(online.empty(1, 1), np.zeros((1, 1)), np.ones((1, 1))) for _ in range(2)]
    out, lse = online.finish(online.merge(*parts), sink=0.0)
    assert out.item() == pytest.approx(2 / 3, rel=4 * U)
    assert np.exp(lse).item() == pytest.approx(3, rel=8 * U)
    twice = online.merge(*(online.join_sink(part, 0.0) for part in parts))
    assert online.finish(twice)[0].item() == pytest.approx(1 / 2, rel=4 * U)


@pytest.mark.parametrize("sink, out, lse", [(1.5, 0.0, 1.5), (-np.inf, 0.0, -np.inf)])
def test_a_row_that_sees_a_sink_alone(sink, out, lse):
    found = online.finish(online.empty(1, 2), sink)
    assert np.all(found[0] == out) and found[1].item() == lse


def test_huge_scores_neither_overflow_nor_lose_ties():
    s = online.update(online.empty(1, 1), np.array([[1e300, 1e300]]), np.array([[1.0], [3.0]]))
    s = online.update(s, np.array([[-1e300]]), np.array([[100.0]]))
    out, lse = online.finish(s)
    assert out.item() == 2 and lse.item() == 1e300


def test_what_is_not_finite_stays_so():
    for bad in (np.nan, np.inf):
        s = online.update(online.empty(1, 1), np.array([[0.0, bad]]), np.ones((2, 1)))
        out, _ = online.finish(online.merge(s, random_state(3, 4, 1, 1)))
        assert not np.isfinite(out).any()
