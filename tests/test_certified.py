"""The oracle against ball arithmetic (`tests/certified.py`): how many ulps it is off, and where.

Errors are in units of u = 2**-53 times the sum of the absolute values that make the element: for
out that is sum_j p|v|, for the others see `certified`.  An error of the scores is inherent: a
score made of terms that sum to S in absolute value carries about S u, and changes its weight by as
much relatively.  Typically the oracle is within 7 units; at logits of 360 out is within
about 120 (limit 500).

`PYTHONPATH=. python tests/test_certified.py` measured, largest of 20 draws of each kind (NumPy 2.4, OpenBLAS):

                         out      lse       dq       dk       dv    dbias   dsinks
    ordinary               4     0.96      2.3      4.1      6.3      4.3      1.8
    logits of 36          22      1.5       15       24       37       35      3.5
    logits of 360    1.2e2      1.8  1.2e2  2.1e2  5.7e2  3.3e2      1.2
    logits of 1e300  1.8e-22      1.3      1.8      1.9      1.3              0.49
    needle               3.6      1.8        2       74  1.5e2       89       86
    cancelling v        0.39      1.2     0.87      2.6      3.7      1.5     0.12
    one-hot v             15     0.96      5.1      5.6      6.3        5      2.2
    huge offset 1e6  5.6e5     0.46  2.5e5  4.9e5    7e5    5e5    1e5
    ties                 3.2      1.1      1.6      2.1      3.3      1.9     0.95
    softcap 10, 360       22     0.64       39       31       44       39      2.3
    scale -3              34      1.5       23       28       39       42      3.6
    tiny                   0      1.3      3.5      4.5        3      3.8      1.4

`LIMITS` allows about four times as much, since BLAS and exp differ between machines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import attention, attention_grad

flint = pytest.importorskip("flint", reason="python-flint (extra `test`) makes the certified balls")

from certified import Certified, certify  # noqa: E402

Array = np.ndarray[Any, Any]
NAMES = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")
B, H, HKV, LQ, LK, D, DV = 1, 4, 2, 5, 9, 8, 3


def _ordinary(rng: np.random.Generator) -> dict[str, Any]:
    """N(0, 1) throughout; every row of batch entry 0, head 0 sees another set of keys, row 2 none."""
    visible = rng.random((B, 1, LQ, LK)) < 0.7
    visible[:, :, 2] = False
    return {
        "q": rng.standard_normal((B, H, LQ, D)),
        "k": rng.standard_normal((B, HKV, LK, D)),
        "v": rng.standard_normal((B, HKV, LK, DV)),
        "visible": visible,
        "bias": rng.standard_normal((H, 1, LK)),
        "sinks": rng.standard_normal(H),
        "dout": rng.standard_normal((B, H, LQ, DV)),
        "dlse": rng.standard_normal((B, H, LQ)),
    }


def _logits(x: dict[str, Any], largest: float) -> dict[str, Any]:
    """`x` with q scaled so that the terms of the largest score sum to `largest`."""
    terms = np.abs(x["q"]) @ np.abs(np.repeat(x["k"], H // HKV, axis=1)).swapaxes(-1, -2) * D**-0.5
    return x | {"q": x["q"] * (largest / terms.max())}


def _needle(rng: np.random.Generator) -> dict[str, Any]:
    """One key takes all but about exp(-40) of each row."""
    x = _ordinary(rng)
    x["k"][:, :, 4] = 40 * D**-0.5 * np.sign(x["k"][:, :, 4])
    x["q"] = np.sign(np.repeat(x["k"], H // HKV, axis=1)[:, :, 4:5]) + 0.1 * x["q"]
    x["visible"][..., 4] = True
    return x


def _cancelling(rng: np.random.Generator) -> dict[str, Any]:
    """Keys in equal pairs whose values are +-1e8 but for N(0, 1): out is what is left."""
    x = _ordinary(rng)
    x["k"][:, :, 1::2], x["bias"][..., 1::2] = x["k"][:, :, 0:-1:2], x["bias"][..., 0:-1:2]
    x["v"] += 1e8 * np.where(np.arange(LK) % 2, -1, 1)[:, None]
    x["v"][:, :, -1] = 0
    return x | {"visible": np.ones((1, 1), dtype=bool)}


def _one_hot(rng: np.random.Generator) -> dict[str, Any]:
    x = _ordinary(rng)
    x["v"] = np.broadcast_to(np.eye(LK, DV), x["v"].shape).copy()
    return x


def _saturated(rng: np.random.Generator) -> dict[str, Any]:
    """Scores of 360 under a softcap of 10: the slope goes down to 4 exp(-72)."""
    return _logits(_ordinary(rng), 360) | {"softcap": 10.0}


def _tiny(rng: np.random.Generator) -> dict[str, Any]:
    """Subnormal values, and queries whose products underflow."""
    x = _ordinary(rng)
    return x | {"q": x["q"] * 1e-170, "k": x["k"] * 1e-170, "v": x["v"] * 1e-310}


KINDS: dict[str, Any] = {
    "ordinary": _ordinary,
    "logits of 36": lambda rng: _logits(_ordinary(rng), 36),
    "logits of 360": lambda rng: _logits(_ordinary(rng), 360),
    "logits of 1e300": lambda rng: _logits(_ordinary(rng), 1e300) | {"bias": None},
    "needle": _needle,
    "cancelling v": _cancelling,
    "one-hot v": _one_hot,
    "huge offset 1e6": lambda rng: (x := _ordinary(rng)) | {n: x[n] + 1e6 for n in ("bias", "sinks")},
    "ties": lambda rng: (x := _ordinary(rng)) | {"k": 0 * x["k"] + 1, "bias": 0 * x["bias"]},
    "softcap 10, 360": _saturated,
    "scale -3": lambda rng: _ordinary(rng) | {"scale": -3.0},
    "tiny": _tiny,
}

LIMITS: dict[str, tuple[float, ...]] = {  # out, lse, dq, dk, dv, dbias, dsinks
    "ordinary": (16, 6, 16, 16, 25, 16, 8),
    "logits of 36": (100, 6, 60, 100, 150, 150, 16),
    "logits of 360": (500, 8, 500, 900, 2300, 1400, 8),
    "logits of 1e300": (8, 6, 8, 8, 8, 0, 4),
    "needle": (16, 8, 8, 300, 600, 400, 350),
    "cancelling v": (4, 6, 4, 10, 16, 8, 4),
    "one-hot v": (60, 6, 20, 25, 25, 20, 10),
    "huge offset 1e6": (2.3e6, 4, 1e6, 2e6, 3e6, 2e6, 4e5),
    "ties": (13, 5, 8, 8, 13, 8, 4),
    "softcap 10, 360": (90, 4, 160, 130, 180, 160, 10),
    "scale -3": (140, 6, 100, 120, 160, 170, 16),
    "tiny": (2, 6, 14, 18, 12, 16, 6),
}


def _answers(x: dict[str, Any]) -> dict[str, Array | None]:
    """All outputs of the oracle for the arguments of `certify`."""
    options = {name: x.get(name) for name in ("bias", "scale", "softcap", "sinks")} | {"mask": x.get("visible")}
    out, lse = attention(x["q"], x["k"], x["v"], **options)
    gradients = attention_grad(x["q"], x["k"], x["v"], x["dout"], x.get("dlse"), **options)
    return {"out": out, "lse": lse, **gradients._asdict()}


def _units(x: dict[str, Any]) -> tuple[dict[str, float], Certified]:
    """Errors of the oracle by output, and what they were measured against."""
    certified = certify(**x)
    answers = _answers(x)
    assert {name for name, y in answers.items() if y is not None} == set(certified.balls)
    return {name: certified.units(name, y) for name, y in answers.items() if y is not None}, certified


def measure(kind: str, draws: int) -> dict[str, float]:
    worst: dict[str, float] = {}
    for seed in range(draws):
        units, _ = _units(KINDS[kind](np.random.default_rng(seed)))
        worst = {name: max(worst.get(name, 0.0), x) for name, x in units.items()}
    return worst


@pytest.mark.parametrize("kind", KINDS)
def test_oracle_is_within_its_limits(kind: str) -> None:
    measured = measure(kind, 6)
    for name, limit in zip(NAMES, LIMITS[kind], strict=True):
        if name in measured:
            assert measured[name] <= limit, f"{kind}: {name} is {measured[name]:.3g} units off, limit {limit}"


@pytest.mark.parametrize("name", NAMES)
def test_limits_would_notice_a_slip(name: str) -> None:
    """An element off by 2**-40 of its size is far beyond the limit, whichever output it is in."""
    x = _ordinary(np.random.default_rng(0))
    answer, certified = _answers(x)[name], certify(**x)
    assert answer is not None
    index = tuple(n - 1 for n in answer.shape)
    answer = answer.copy()
    answer[index] += 2.0**-40 * float(certified.sizes[name][index])
    assert certified.units(name, answer) > 50 * LIMITS["ordinary"][NAMES.index(name)]
    answer[index] = np.nan
    assert certified.units(name, answer) == np.inf


@st.composite
def _problems(draw: st.DrawFn) -> dict[str, Any]:
    """Any combination of features, sizes from 0; whatever no query sees is NaN."""
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

    seen = np.broadcast_to(x.get("visible", True), shape) & ~np.isneginf(np.broadcast_to(x.get("bias", 0.0), shape))
    unread = ~seen.reshape(b, hkv, group, lq, lk).any((2, 3))
    x["k"][unread], x["v"][unread] = np.nan, np.inf
    x["q"][~seen.any(-1)], x["dout"][~seen.any(-1)] = np.inf, np.nan
    return x


@settings(max_examples=1500, deadline=None, derandomize=True, database=None)
@given(_problems())
def test_every_combination_of_features(x: dict[str, Any]) -> None:
    """Within 16 + 3 S units, where S is the largest sum of |terms| of a score (and how a softcap bends it)."""
    units, certified = _units(x)
    for name, measured in units.items():
        bend = 1 + 2 / x["softcap"] if x["softcap"] and name in ("dq", "dk") else 1
        assert measured <= 16 + 3 * bend * certified.logit, f"{name} is {measured:.3g} units off"


def test_certified_gradients_are_derivatives_of_certified_outputs() -> None:
    """Central differences with a step of 2**-30, whose only error on balls is that of Taylor, about 2**-60.

    The backward of `certify` is as hand-derived as the oracle's; this ties it to the forward alone.
    """
    rng = np.random.default_rng(3)

    def coarse(*shape: int) -> Array:
        return np.round(rng.standard_normal(shape) * 2**10) / 2**10  # so that x +- 2**-30 is exact

    q, k, v = coarse(1, 2, 3, 2), coarse(1, 1, 3, 2), coarse(1, 1, 3, 2)
    bias, sinks, dout, dlse = coarse(2, 1, 3), coarse(2), coarse(1, 2, 3, 2), coarse(1, 2, 3)
    x: dict[str, Any] = {"q": q, "k": k, "v": v, "bias": bias, "sinks": sinks}
    fixed: dict[str, Any] = {"softcap": 0.75, "scale": -0.5, "bits": 200}
    fixed["visible"] = np.array([[True, False, True], [True, True, True], [False, False, False]])

    def loss(**changed: Array) -> Any:
        made = certify(**(x | changed), **fixed).balls
        return sum(made["out"].ravel() * dout.ravel()) + sum(made["lse"].ravel() * dlse.ravel())

    gradients = certify(**x, **fixed, dout=dout, dlse=dlse).balls
    for name, index in [(name, index) for name, array in x.items() for index in np.ndindex(array.shape)]:
        step = np.zeros_like(x[name])
        step[index] = 2.0**-30
        with flint.ctx.workprec(200):
            slope = (loss(**{name: x[name] + step}) - loss(**{name: x[name] - step})) / 2.0**-29
            assert (slope - gradients["d" + name][index]).abs_upper() < 2.0**-54, f"d{name}{list(index)}"


def test_certified_values_worked_by_hand() -> None:
    """Scores 0, log 3 and a sink of log 4 weigh 1 : 3 : 4, so out = (1 * 8 + 3 * 16) / 8 = 7 with lse = log 8.

    log 3 and log 4 are float64 here, so the balls are wider than the point that they stand for.
    """
    q, k = np.array([[[[1.0]]]]), np.array([[[[0.0], [np.log(3)]]]])
    made = certify(q, k, np.array([[[[8.0], [16.0]]]]), scale=1.0, sinks=np.array([np.log(4)]))
    assert abs(float(made.balls["out"].item()) - 7) < 1e-14
    assert abs(float(made.balls["lse"].item()) - np.log(8)) < 1e-15


if __name__ == "__main__":
    print(f"{'':16}", *(f"{name:>9}" for name in NAMES))
    for kind in KINDS:
        worst = measure(kind, 20)
        print(f"{kind:16}", *(f"{worst[name]:9.2g}" if name in worst else f"{'':9}" for name in NAMES))
