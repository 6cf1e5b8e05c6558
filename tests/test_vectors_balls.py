"""The balls of golden vectors against `certified`, plain loops that share nothing with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.case import BiasSpec, Case
from refattn.cases import by_id
from refattn.inputs import Problem, make
from refattn.masks import Causal, Mask, Window
from refattn.precision import preset
from refattn.rotary import Rotary
from refattn.score_mods import SCORE_MODS
from refattn.truth import truth

flint = pytest.importorskip("flint", reason="python-flint (extra `test`) makes the balls")

from certified import UNDEFINED, certify  # noqa: E402
from flint import arb  # noqa: E402

from refattn.vectors.balls import nearest, solve  # noqa: E402

Array = np.ndarray[Any, Any]
GRADIENTS = {"dq", "dk", "dv", "dscale"}


def _case(n: int) -> Case:
    """All combinations that are drawn have another mask, bias, sink, softcap, modifier and dropout."""
    rng = np.random.default_rng(n)

    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.5 else None

    hkv, group = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    masks: tuple[Mask, ...] = (Causal("top_left"), Causal("bottom_right"), Window(1, 0, "bottom_right"))
    dims, family = str(rng.choice(["BHQK", "HQK", "QK", "K", "HK"])), str(rng.choice(["normal", "padding"]))
    bias = maybe(BiasSpec(dims, "float64", family))
    sinks, softcap = maybe(str(rng.choice(["normal", "minus_inf"]))), maybe(3.0)
    want = {"out", "lse", "scores", "capped", "biased", "weights", *GRADIENTS}
    want |= ({"dbias"} if bias else set()) | ({"dsinks"} if sinks else set()) | ({"dsoftcap"} if softcap else set())
    return Case(
        f"balls-{n}", "", B=2, H=hkv * group, Hkv=hkv, Lq=int(rng.integers(1, 5)), Lk=int(rng.integers(0, 6)),
        D=int(rng.integers(0, 4)), Dv=int(rng.integers(1, 4)), dtype="float64", family="normal", seed=n,
        want=frozenset(want), mask=maybe(masks[rng.integers(3)]), scale=maybe(-0.7), softcap=softcap, bias=bias,
        sinks=sinks, score_mod=maybe(str(rng.choice(list(SCORE_MODS)))), dropout=maybe(float(rng.choice([0.3, 1.0]))),
    )  # fmt: skip


def _certified(problem: Problem) -> dict[str, Array]:
    case, x = problem.case, problem.logical
    scale = case.D**-0.5 if case.scale is None and case.D else case.scale
    visible, mod = case.visibility.tile(), SCORE_MODS.get(case.score_mod or "")
    hides = None if mod is None or mod.hides is None else np.broadcast_to(mod.hides(*_place(case)), visible.shape)
    made = certify(
        x["q"], x["k"], x["v"], visible=visible if hides is None else visible & ~hides, bias=x.get("bias"), scale=scale,
        softcap=case.softcap, sinks=x.get("sinks"), score_mod=case.score_mod if hides is None else None,
        dropout=case.dropout, keep=x.get("keep"), dout=x.get("dout"), dlse=x.get("dlse"), matrices=True, bits=256,
    )  # fmt: skip
    if hides is not None:
        made.balls["capped"][hides] = None
    return made.balls


def _place(case: Case) -> Any:
    return np.ogrid[: case.B, : case.H, : case.Lq, : case.Lk]


def _differ(one: Any, other: Any) -> bool:
    """Whether two balls hold no common number, or one of them is so wide that it says nothing."""
    if other is UNDEFINED:
        return False
    if other is None:
        return not float(one) == -np.inf
    return not arb(one).overlaps(other) or float(arb(one).rad()) > 1e-40


@pytest.mark.parametrize("n", range(40))
def test_balls_overlap_those_of_plain_loops(n: int) -> None:
    problem = make(_case(n))
    ours, others = solve(problem), _certified(problem)
    for name in sorted(problem.case.want):
        assert ours[name].shape == others[name].shape, name
        for index in np.ndindex(ours[name].shape):
            assert not _differ(ours[name][index], others[name][index]), f"{name}{list(index)}"


@pytest.mark.parametrize("name", sorted(_case(0).want | _case(1).want | _case(2).want | _case(3).want))
def test_another_number_would_be_seen(name: str) -> None:
    problem = next(p for p in map(make, map(_case, range(40))) if name in p.case.want and p.case.Lk > 2)
    others = _certified(problem)[name]
    found = [x for x in solve(problem)[name].ravel() if x.is_finite()]
    index = next(i for i in np.ndindex(others.shape) if isinstance(others[i], arb) and others[i].is_finite())
    assert found and _differ(others[index] + arb(2) ** -60, others[index])


def test_rotated_inputs_and_gradients_are_those_of_the_truth() -> None:
    """Rotation is no part of `certified`: here float64, to its own error."""
    want = frozenset({"out", "lse", *GRADIENTS})
    for interleaved in (False, True):
        case = Case(
            "rotary", "", B=2, H=4, Hkv=2, Lq=4, Lk=7, D=8, Dv=3, dtype="float64", want=want,
            mask=Causal("bottom_right"), rotary=Rotary(6, interleaved),
        )  # fmt: skip
        problem = make(case)
        expected = truth(problem, preset("float64"))
        for name, balls in solve(problem).items():
            value = nearest(balls, np.zeros(balls.shape), name)
            assert np.allclose(value, expected[name].value, rtol=1e-12, atol=1e-13), name
            unrotated = solve(replace(problem, case=replace(case, rotary=None)))[name]
            if name in ("dq", "dk"):
                assert not np.allclose(nearest(unrotated, np.zeros(balls.shape), name), value, rtol=1e-3)


def test_nearest_is_the_rounded_number_or_refuses() -> None:
    third = np.array([arb(1) / 3], dtype=object)  # of 53 bits, as the default of flint is: two float64 are possible
    with pytest.raises(ValueError, match="x: element 0 is not certain to 53 bits"):
        nearest(third, np.array([1e-3]), "x")
    exact = np.array([arb(0.75), arb(-3), arb.neg_inf()], dtype=object)
    assert nearest(exact, np.zeros(3), "x").tolist() == [0.75, -3.0, -np.inf]
    tiny = np.array([arb(0, 1e-30), arb(1e-30)], dtype=object)
    assert nearest(tiny, np.array([1e-3, 1e-3]), "x").tolist() == [0.0, 0.0]


def test_suite_s_cases_are_solved_by_both() -> None:
    """Every output that a case may want is made, caches and matrices among them."""
    for id in ("cache-rotary-f64", "scores-bias-minus-inf-f16", "packed-nothing-f32", "rotary-no-keys-f32"):
        case = by_id(id)
        assert solve(make(case)).keys() == case.want
