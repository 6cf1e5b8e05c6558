"""The rules of others do what their descriptions say, and their inputs are problems that can be had."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refattn.case import Case
from refattn.cases import CASES
from refattn.dtypes import round_to
from refattn.inputs import make
from refattn.public_rules import RULES, comparisons

ZERO, ONE = np.zeros((2, 3)), np.ones((2, 3))
INPUTS = [case for rule in RULES.values() for case in rule.inputs]


def with_one(x, value):
    y = np.array(x, dtype=float)
    y.flat[1] = value
    return y


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_rule_accepts_the_reference_and_rejects_what_is_nothing_like_it(rule, dtype):
    rng = np.random.default_rng(1)
    exact = rng.standard_normal((3, 4, 5))
    eager = round_to(exact * (1 + 2.0**-8), dtype)
    assert rule.passes("out", round_to(exact, dtype), exact, eager, dtype)
    assert not rule.passes("out", np.zeros_like(exact), exact, eager, dtype)
    assert not rule.passes("out", -round_to(exact, dtype), exact, eager, dtype)
    assert not rule.passes("out", with_one(exact, np.nan), exact, eager, dtype)
    assert not rule.passes("out", with_one(exact, np.inf), exact, eager, dtype)


@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float16", 1e-3), ("bfloat16", 1.6e-2), ("float32", 1.3e-6), ("float64", 1e-7)]
)
def test_assert_close_has_its_tolerances(dtype, rtol):
    atol = 1e-7 if dtype == "float64" else 1e-5
    allowed = atol + rtol
    assert comparisons.assert_close("out", ONE + 0.99 * allowed, ONE, ONE, dtype)
    assert not comparisons.assert_close("out", ONE + 1.01 * allowed, ONE, ONE, dtype)
    assert comparisons.assert_close("lse", with_one(ONE, -np.inf), with_one(ONE, -np.inf), ONE, dtype)
    assert not comparisons.assert_close("lse", with_one(ONE, np.inf), with_one(ONE, -np.inf), ONE, dtype)


finite = st.floats(-1e3, 1e3, width=32) | st.sampled_from([0.0, np.inf, -np.inf, np.nan])


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=4), st.floats(0, 3e-6))
def test_assert_close_agrees_with_torch(pairs, nudge):
    torch = pytest.importorskip("torch")
    ref = np.array([b for _, b in pairs], dtype=np.float32)
    for got in (np.array([a for a, _ in pairs], dtype=np.float32), (ref * (1 + nudge)).astype(np.float32)):
        try:
            torch.testing.assert_close(torch.from_numpy(got), torch.from_numpy(ref))
            theirs = True
        except AssertionError:
            theirs = False
        wide = ref.astype(np.float64)
        assert comparisons.assert_close("out", got.astype(np.float64), wide, wide, "float32") == theirs


def test_one_percent_compares_with_the_eager_answer():
    assert comparisons.one_percent("out", ONE + 0.0199, ONE - 5, ONE, "float16")
    assert not comparisons.one_percent("out", ONE + 0.0201, ONE, ONE, "float16")


def test_twice_eager_measures_by_the_eager_error():
    eager = with_one(ONE, 1.5)
    assert comparisons.twice_eager("out", with_one(ONE, 2.0), ONE, eager, "float32")
    assert not comparisons.twice_eager("out", with_one(ONE, 2.001), ONE, eager, "float32")
    assert comparisons.twice_eager("dq", with_one(ONE, 2.5), ONE, eager, "float32")
    assert not comparisons.twice_eager("out", eager, ONE, with_one(ONE, np.nan), "float32"), "NaN compares with nothing"
    assert comparisons.twice_eager("k_cache", ONE + 1e-3, ONE, ONE, "float32")
    assert not comparisons.twice_eager("v_cache", ONE + 1e-6, ONE, ONE, "float32")


def test_nmse_is_that_of_the_tested_answer():
    assert comparisons.nmse("out", 1.02 * ONE, ONE, ONE, "float32")
    assert not comparisons.nmse("out", 1.03 * ONE, ONE, ONE, "float32")
    assert comparisons.nmse("out", ZERO, ZERO, ZERO, "float32"), "0 / 0 is not above"
    assert comparisons.nmse("out", with_one(ONE, np.inf), with_one(ONE, np.inf), ONE, "float32")


def test_cosine_knows_no_size():
    assert comparisons.cosine("out", 1000 * ONE, ONE, ONE, "float32")
    assert not comparisons.cosine("out", ZERO, ZERO, ZERO, "float32")


def test_fudge_lets_a_gradient_of_nothing_pass():
    dq = 1e-3 * np.ones((2, 3))
    assert comparisons.fudge("dq", ZERO, dq, 1.01 * dq, "float16"), "160 times 1 % is more than all of it"
    assert not comparisons.fudge("out", ZERO, dq, 1.01 * dq, "float16")
    assert comparisons.fudge("out", with_one(ONE, np.nan), ONE, with_one(ONE, np.nan), "float16")
    assert comparisons.fudge("dv", ONE + 0.9e-5, ONE, ONE, "float16")


def test_what_a_rule_does_not_compare_it_does_not_see():
    case = Case("x", "out and lse", want=frozenset({"out", "lse"}))
    exact = {"out": ONE, "lse": ONE}
    dtypes = dict.fromkeys(exact, "float32")
    wrong_lse = {"out": ONE, "lse": ZERO}
    assert RULES["twice_eager"].accepts(case, wrong_lse, exact, exact, dtypes)
    assert not RULES["assert_close"].accepts(case, wrong_lse, exact, exact, dtypes)
    for rule in RULES.values():
        assert not rule.accepts(case, {"lse": ONE}, exact, exact, dtypes), "out is not there"
        assert not rule.accepts(case, {"out": ONE[:1], "lse": ONE}, exact, exact, dtypes)


def test_the_mean_of_v_passes_on_uniform_inputs():
    case = RULES["one_percent"].inputs[0]
    x = {name: a.astype(np.float64) for name, a in make(case).logical.items()}
    weights = np.exp(x["q"] @ x["k"].swapaxes(-1, -2) / case.D**0.5)
    out = weights / weights.sum(-1, keepdims=True) @ x["v"]
    mean = np.broadcast_to(x["v"].mean(2, keepdims=True), out.shape)
    assert case.family == "uniform" and np.abs(mean - out).max() > 0
    assert comparisons.one_percent("out", round_to(mean, "float16"), out, round_to(out, "float16"), "float16")


@pytest.mark.parametrize("case", INPUTS, ids=lambda case: case.id)
def test_inputs_can_be_had(case):
    assert make(case).logical["q"].shape == case.shape_of("q")
    assert case.family in ("normal", "uniform") and case.scores <= 1 << 18


def test_inputs_have_names_of_their_own():
    ids = [case.id for case in INPUTS]
    assert len(set(ids)) == len(ids) and not {case.id for case in CASES} & set(ids)


def test_rows_of_the_table():
    for name, rule in RULES.items():
        assert rule.name == name and rule.who and rule.states.endswith(".") and rule.inputs
        assert any(not rule.compares.isdisjoint(case.want) for case in rule.inputs)
