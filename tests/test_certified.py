"""The oracle against ball arithmetic (`tests/certified.py`): how many ulps it is off, and where.

Errors are in units of u = 2**-53 times the sum of the absolute values that make the element: for
out that is sum_j p|v|, for the others see `certified`.  An error of the scores is inherent: a
score made of terms that sum to S in absolute value carries about S u, and changes its weight by as
much relatively.  Typically the oracle is within 7 units; at logits of 360 out is within
about 120 (limit 500).

`PYTHONPATH=. python tests/test_certified.py` prints the table of `certified_kinds`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import attention, attention_grad
from refattn.oracle import attention_scores
from refattn.score_mods import SCORE_MODS

flint = pytest.importorskip("flint", reason="python-flint (extra `test`) makes the certified balls")

from certified import Certified, certify  # noqa: E402
from certified_kinds import COLUMN, KINDS, LIMITS, NAMES  # noqa: E402
from certified_scores import MODIFIERS  # noqa: E402
from flint import arb  # noqa: E402

Array = np.ndarray[Any, Any]


def _answers(x: dict[str, Any]) -> dict[str, Array]:
    """All outputs of the oracle for the arguments of `certify`."""
    options = {name: x.get(name) for name in ("bias", "scale", "softcap", "sinks")} | {"mask": x.get("visible")}
    options["score_mod"] = SCORE_MODS[x["score_mod"]] if x.get("score_mod") else None
    dropped = {name: x.get(name) for name in ("dropout", "keep")}
    made = attention(x["q"], x["k"], x["v"], **options, **dropped)._asdict()
    made |= attention_grad(x["q"], x["k"], x["v"], x["dout"], x.get("dlse"), **options, **dropped)._asdict()
    made |= attention_scores(x["q"], x["k"], **options)._asdict()
    return {name: y for name, y in made.items() if y is not None}


def _units(x: dict[str, Any]) -> tuple[dict[str, float], Certified]:
    """Errors of the oracle by output, and what they were measured against."""
    certified, answers = certify(**x, matrices=True), _answers(x)
    assert answers.keys() == certified.balls.keys()
    return {name: certified.units(name, y) for name, y in answers.items()}, certified


def measure(kind: str, draws: int) -> dict[str, float]:
    """The largest errors of so many draws, by column of the table."""
    worst: dict[str, float] = {}
    for seed in range(draws):
        units, _ = _units(KINDS[kind](np.random.default_rng(seed)))
        for name, x in units.items():
            worst[COLUMN[name]] = max(worst.get(COLUMN[name], 0.0), x)
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_oracle_is_within_its_limits(kind: str) -> None:
    measured = measure(kind, 5)
    for name, limit in zip(NAMES, LIMITS[kind], strict=True):
        if name in measured:
            assert measured[name] <= limit, f"{kind}: {name} is {measured[name]:.3g} units off, limit {limit}"


@pytest.mark.parametrize("name", [*NAMES, "capped", "biased"])
def test_limits_would_notice_a_slip(name: str) -> None:
    """An element off by 2**-40 of its size is far beyond the limit, whichever output it is in."""
    kind = "softcap 10, 360"
    x = KINDS[kind](np.random.default_rng(0))
    answer, certified = np.array(_answers(x)[name]), certify(**x, matrices=True)
    index = tuple(n - 1 for n in answer.shape)
    if name == "biased":
        index = tuple(int(i) for i in np.argwhere(np.isfinite(answer))[-1])
    answer[index] += 2.0**-40 * float(certified.sizes[name][index])
    assert certified.units(name, answer) > 10 * LIMITS[kind][NAMES.index(COLUMN[name])]
    answer[index] = np.nan
    assert certified.units(name, answer) == np.inf


@st.composite
def _problems(draw: st.DrawFn) -> dict[str, Any]:
    """Any combination of features, sizes from 0; whatever no query sees is NaN, and now and then what some see."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    b, hkv, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    lq, lk, d, dv = draw(st.integers(0, 4)), draw(st.integers(0, 5)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    h, spread = hkv * group, draw(st.sampled_from([0.0, 1.0, 30.0, 1e3]))
    shape = (b, h, lq, lk)

    def broadcast() -> tuple[int, ...]:
        kept = tuple(n if draw(st.booleans()) else 1 for n in shape)
        return kept[draw(st.integers(0, 4)) :]

    x: dict[str, Any] = {
        "q": spread * rng.standard_normal((b, h, lq, d)),
        "k": rng.standard_normal((b, hkv, lk, d)),
        "v": rng.standard_normal((b, hkv, lk, dv)),
        "dout": rng.standard_normal((b, h, lq, dv)),
        "scale": draw(st.sampled_from([None, 0.0, 1.0, -0.5])),
        "softcap": draw(st.sampled_from([None, 0.5, 50.0])),
    }
    if draw(st.booleans()):
        x["visible"] = np.asarray(rng.random(broadcast()) < draw(st.sampled_from([0.0, 0.5, 0.9])))
    if draw(st.booleans()):
        bias = rng.standard_normal(broadcast())
        x["bias"] = np.where(rng.random(bias.shape) < 0.2, -np.inf, bias)
    if draw(st.booleans()):
        x["sinks"] = np.where(rng.random(h) < 0.2, -np.inf, rng.standard_normal(h))
    if draw(st.booleans()):
        x["dlse"] = rng.standard_normal((b, h, lq))
    x["score_mod"] = draw(st.sampled_from([None, *MODIFIERS]))
    x["dropout"] = draw(st.sampled_from([None, 0.0, 0.1, 0.75, 1.0]))
    if x["dropout"] is not None:
        x["keep"] = np.asarray(rng.random(broadcast()) >= x["dropout"])

    seen = np.broadcast_to(x.get("visible", True), shape) & ~np.isneginf(np.broadcast_to(x.get("bias", 0.0), shape))
    unread = ~seen.reshape(b, hkv, group, lq, lk).any((2, 3))
    x["k"][unread], x["v"][unread] = np.nan, np.inf
    x["q"][~seen.any(-1)], x["dout"][~seen.any(-1)] = np.inf, np.nan
    where = draw(st.sampled_from([None, None, None, "q", "k", "v", "dout"]))
    if where is not None:  # whoever sees this is NaN, whoever does not is not
        x[where][rng.random(x[where].shape[:-1]) < 0.2] = np.nan
    return x


@settings(max_examples=1500, deadline=None, derandomize=True, database=None)
@given(_problems())
def test_every_combination_of_features(x: dict[str, Any]) -> None:
    units, certified = _units(x)
    for name, measured in units.items():
        assert measured <= certified.limit(name), f"{name} is {measured:.3g} units off, limit {certified.limit(name)}"


@pytest.mark.parametrize("softcap", [None, 0.75])
@pytest.mark.parametrize("score_mod", [None, *MODIFIERS])
def test_certified_gradients_are_derivatives_of_certified_outputs(score_mod: str | None, softcap: float | None) -> None:
    """Central differences with a step of 2**-30, whose only error on balls is that of Taylor, about 2**-60.

    The backward of `certify` is as hand-derived as the oracle's; this ties it to the forward alone.
    """
    rng = np.random.default_rng(3)

    def coarse(*shape: int) -> Array:
        return np.round(rng.standard_normal(shape) * 2**10) / 2**10  # so that x +- 2**-30 is exact

    q, k, v = coarse(1, 2, 3, 2), coarse(1, 1, 3, 2), coarse(1, 1, 3, 2)
    bias, sinks, dout, dlse = coarse(2, 1, 3), coarse(2), coarse(1, 2, 3, 2), coarse(1, 2, 3)
    x: dict[str, Any] = {"q": q, "k": k, "v": v, "bias": bias, "sinks": sinks, "scale": np.array(-0.5)}
    fixed: dict[str, Any] = {"score_mod": score_mod, "dropout": 0.25, "keep": rng.random((2, 1, 3)) < 0.75, "bits": 200}
    fixed["visible"] = np.array([[True, False, True], [True, True, True], [False, False, False]])
    if softcap is not None:
        x["softcap"] = np.array(softcap)

    def made(changed: dict[str, Array], **more: Any) -> dict[str, Array]:
        y = x | changed
        y |= {name: float(y[name]) for name in ("scale", "softcap") if name in y}
        return certify(**y, **fixed, **more).balls

    def loss(**changed: Array) -> Any:
        outputs = made(changed)
        return sum(outputs["out"].ravel() * dout.ravel()) + sum(outputs["lse"].ravel() * dlse.ravel())

    gradients = made({}, dout=dout, dlse=dlse)
    for name, index in [(name, index) for name, array in x.items() for index in np.ndindex(array.shape)]:
        step = np.zeros_like(x[name])
        step[index] = 2.0**-30
        with flint.ctx.workprec(200):
            slope = (loss(**{name: x[name] + step}) - loss(**{name: x[name] - step})) / 2.0**-29
            assert (slope - gradients["d" + name][index]).abs_upper() < 2.0**-54, f"d{name}{list(index)}"


def test_every_registered_modifier_is_certified() -> None:
    assert MODIFIERS.keys() == {name for name, mod in SCORE_MODS.items() if mod.hides is None}  # else it is a mask


def test_certified_values_worked_by_hand() -> None:
    """Scores 0, log 3 and a sink of log 4 weigh 1 : 3 : 4, so out = (1 * 8 + 3 * 16) / 8 = 7 with lse = log 8.

    log 3 and log 4 are float64 here, so the balls are wider than the point that they stand for.
    """
    q, k = np.array([[[[1.0]]]]), np.array([[[[0.0], [np.log(3)]]]])
    made = certify(q, k, np.array([[[[8.0], [16.0]]]]), scale=1.0, sinks=np.array([np.log(4)]))
    assert abs(float(made.balls["out"].item()) - 7) < 1e-14
    assert abs(float(made.balls["lse"].item()) - np.log(8)) < 1e-15


def test_certified_modifier_and_dropout_worked_by_hand() -> None:
    """s = 8 is 4 under softsign, of slope 1/4, and -3/2 under a distance of -11/2 at head 0, i = 12, j = 1.

    Weights 1/2 each, of which the second is dropped at p = 3/4: out = 1/2 * 4 * 8 = 16.
    """
    made = MODIFIERS["softsign"](arb(8), arb(8), 0, 0, 0, 0)
    assert (made.value, made.slope[0]) == (4, arb(1) / 4)
    assert MODIFIERS["distance"](arb(4), arb(4), 0, 0, 12, 1).value == arb(-3) / 2
    q, k, v = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[8.0], [16.0]]]])
    dropped = certify(q, k, v, dropout=0.75, keep=np.array([True, False])).balls
    assert dropped["out"].item() == 16 and dropped["lse"].item().overlaps(arb(2).log())


if __name__ == "__main__":
    print(f"{'':15}", *(f"{name:>7}" for name in NAMES))
    for kind in KINDS:
        worst = measure(kind, 20)
        print(f"{kind:15}", *(f"{worst[name]:7.2g}" if name in worst else f"{'':7}" for name in NAMES))
