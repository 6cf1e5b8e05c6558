"""The tolerance model: honest kernels never exceed it, planted errors do, and it is not idle.

The honest kernels are `refattn.streaming` under every contract, tile order, split and exp form.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import streaming
from refattn.case import BiasSpec, Case
from refattn.dtypes import FORMATS, round_to
from refattn.inputs import FAMILIES, Problem, make
from refattn.judge import ratios
from refattn.masks import Causal, Window
from refattn.precision import Precision, preset
from refattn.streaming import Schedule
from refattn.tolerance import forward, interval
from refattn.tolerance.ties import Ties
from refattn.truth import truth

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")
SCHEDULES = (
    Schedule(tile_q=64, tile_k=64, exp="exp2"),
    Schedule(tile_q=32, tile_k=16, order="reverse", exp="numpy"),
    Schedule(tile_q=17, tile_k=48, order="random", splits=3, seed=1),
)
GRADIENTS = {"dq", "dk", "dv"}


def answer(problem: Problem, precision: Precision, schedule: Schedule) -> dict[str, Any]:
    case, x = problem.case, problem.logical
    options: dict[str, Any] = {
        "mask": case.visibility, "bias": x.get("bias"), "scale": case.scale, "softcap": case.softcap,
        "sinks": x.get("sinks"), "precision": precision, "schedule": schedule,
    }  # fmt: skip
    got = streaming.attention(x["q"], x["k"], x["v"], **options)._asdict()
    if case.backward:
        got |= streaming.attention_grad(x["q"], x["k"], x["v"], x["dout"], x.get("dlse"), **options)._asdict()
    return {name: got[name] for name in case.want}


def largest_ratios(problem: Problem, precision: Precision, schedule: Schedule) -> dict[str, tuple[float, float]]:
    """For each output the largest ratio, by the bound that decides and by the rigorous one."""
    expected = truth(problem, precision)
    found = {}
    for name, got in answer(problem, precision, schedule).items():
        e = expected[name]
        x = round_to(np.asarray(got, dtype=np.float64), e.dtype)
        sharp, rigorous = ratios(x, e.value, e.lo, e.hi), ratios(x, e.value, e.rigorous_lo, e.rigorous_hi)
        found[name] = (float(sharp.max(initial=0.0)), float(rigorous.max(initial=0.0)))
    return found


def problem(dtype: str, family: str, seed: int = 0, **fields: Any) -> Problem:
    sizes = {"B": 1, "H": 2, "Hkv": 1, "Lq": 40, "Lk": 210, "D": 24, "Dv": 32}
    want = frozenset({"out", "lse"}) | (frozenset() if dtype.startswith("float8") else GRADIENTS)
    return make(Case("sim", "simulated", dtype=dtype, family=family, seed=seed, **({"want": want} | sizes | fields)))


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"poisoned", "poisoned_pairs"}))
@pytest.mark.parametrize("dtype", DTYPES)
def test_honest_kernels_stay_within_the_bound(dtype: str, family: str) -> None:
    p = problem(dtype, family, mask=Causal("bottom_right"))
    contract = preset(p.case.dtype, p.case.out_dtype)
    for schedule in SCHEDULES:
        for name, (sharp, rigorous) in largest_ratios(p, contract, schedule).items():
            assert sharp <= 1, (name, schedule, sharp)
            assert rigorous <= 1, (name, schedule, rigorous)


CONTRACTS = {
    "eager": lambda p: replace(p, scores=p.inputs, weights_normalised=True),
    "rounded sum": lambda p: replace(p, sum_rounded_weights=True),
    "prescaled q": lambda p: replace(p, scaled_q=p.inputs),
    "low gradients": lambda p: replace(p, grad_q_block=32, grad_k_block=64, grad_per_head=True),
    "unrounded weights": lambda p: replace(p, weights=None),
}


@pytest.mark.parametrize("family", ["normal", "large_logits", "ties", "sparse_q", "v_of_k", "cancelling_v"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CONTRACTS)
def test_honest_kernels_of_other_contracts(name: str, dtype: str, family: str) -> None:
    contract = CONTRACTS[name](preset(dtype))
    p = problem(dtype, family, mask=Window(90, 5, "bottom_right"))
    schedule = Schedule(tile_q=32, tile_k=64)
    for output, (sharp, rigorous) in largest_ratios(p, contract, schedule).items():
        assert sharp <= 1, (output, sharp)
        assert rigorous <= 1, (output, rigorous)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_features_together(dtype: str) -> None:
    fields: dict[str, Any] = {
        "bias": BiasSpec("HQK", "float32"), "softcap": 3.0, "sinks": "normal", "H": 6, "Hkv": 2, "scale": -0.4,
        "want": frozenset({"out", "lse", "dq", "dk", "dv", "dbias", "dsinks"}),
    }  # fmt: skip
    p = problem(dtype, "peaked", Lq=19, Lk=45, **fields)
    for schedule in SCHEDULES:
        for name, (sharp, _) in largest_ratios(p, preset(dtype), schedule).items():
            if name == "dbias":  # rounded to the bias' own dtype
                continue
            assert sharp <= 1, (name, schedule, sharp)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_is_not_idle(dtype: str) -> None:
    """The median over families of the largest ratio of out stays above 0.05."""
    families = ("normal", "large_logits", "peaked", "rising", "cancelling_v", "outliers")
    got = []
    for family in families:
        p = problem(dtype, family, want=frozenset({"out"}))
        got.append(largest_ratios(p, preset(dtype, p.case.out_dtype), SCHEDULES[1])["out"][0])
    assert np.median(got) >= 0.05, got


@pytest.mark.parametrize("dtype", DTYPES)
def test_sharp_is_within_rigorous(dtype: str) -> None:
    p = problem(dtype, "normal")
    for name, e in truth(p, preset(dtype, p.case.out_dtype)).items():
        assert (e.rigorous_lo <= e.lo).all() and (e.lo <= e.hi).all() and (e.hi <= e.rigorous_hi).all(), name
        nearest = round_to(e.value, e.dtype)
        assert (e.lo <= nearest).all() and (nearest <= e.hi).all(), name


PLANTED: dict[str, Any] = {
    "one key dropped": lambda x, out: _without_key(x),
    "scale 1 % off": lambda x, out: streaming.attention(x["q"], x["k"], x["v"], scale=24**-0.5 * 1.01).out,
    "out truncated to 8 bits": lambda x, out: np.trunc(out * 64) / 64,
    "two rows exchanged": lambda x, out: out[:, :, ::-1],
}


def _without_key(x: Any) -> Any:
    mask = np.ones((40, 210), dtype=bool)
    mask[:, 100] = False
    return streaming.attention(x["q"], x["k"], x["v"], mask=mask).out


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_exceed_it(name: str, dtype: str) -> None:
    p = problem(dtype, "normal", want=frozenset({"out"}))
    e = truth(p, preset(dtype))["out"]
    wrong = round_to(PLANTED[name](p.logical, e.value), dtype)
    assert not ratios(wrong, e.value, e.lo, e.hi).max() <= 1


def test_ties_are_what_makes_few_score_levels_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the coherent part an honest bfloat16 kernel would be found wrong: the check can fail."""
    rng = np.random.default_rng(5)
    Lk, D = 2048, 16
    level = rng.integers(0, 12, Lk)
    q = np.zeros((1, 1, 40, D))
    q[..., 0] = round_to(rng.uniform(0.5, 1.5, 40), "bfloat16")
    k = round_to(rng.standard_normal((1, 1, Lk, D)), "bfloat16")
    k[..., 0] = round_to(level / 3.0, "bfloat16")
    v = round_to(rng.standard_normal((12, 32)), "bfloat16")[level][None, None]
    case = Case("levels", "few score levels", Lq=40, Lk=Lk, D=D, Dv=32, dtype="bfloat16", scale=1.0, want={"out"})
    p = Problem(case, {"q": q, "k": k, "v": v})
    contract = replace(preset("bfloat16", "float32"), out="float32")
    p = replace(p, case=replace(case, out_dtype="float32"))
    assert largest_ratios(p, contract, Schedule())["out"][0] <= 1
    monkeypatch.setattr(Ties, "sum_squares", lambda self, w, c, center=None: np.zeros((len(w), c.shape[1])))
    assert largest_ratios(p, contract, Schedule())["out"][0] > 1


def test_interval_is_exact_about_rounding() -> None:
    value, t = np.array([1.0, 60000.0, 2.0**-25, 0.0]), np.array([2.0**-12, 6000.0, 2.0**-26, 0.0])
    lo, hi = interval(value, t, "float16")
    assert lo.tolist() == [1.0 - 2.0**-12 + 2.0**-12, 54016.0, 0.0, 0.0] or lo[0] <= 1.0
    assert hi.tolist()[1:] == [np.inf, 2.0**-24, 0.0]
    lo, hi = interval(np.array([1.5 * FORMATS["bfloat16"].smallest_normal / 2]), np.zeros(1), "bfloat16", True)
    assert lo[0] == 0 and hi[0] > 0


def test_memory_does_not_grow_with_the_scores() -> None:
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 4096, 16))
    peaks = []
    for Lq in (256, 1024):
        q = rng.standard_normal((Lq, 16))
        tiles = (lambda rows, keys: np.ones((256, 4096), bool)[: len(range(4096)[rows])]), (lambda rows, keys: None)
        tracemalloc.start()
        forward(q, k, v, *tiles, 0.25, None, None, preset("float32"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 1.3 * peaks[0] + 2**20, peaks


def test_a_scale_of_0_leaves_an_endless_bound_endless() -> None:
    """A bias of -1e9 on all keys of a row: exp may overflow, and 0 times that is NaN."""
    case = Case(
        "t", "a test", Lq=3, Lk=4, D=4, Dv=4, dtype="float16", family="uniform", seed=12, scale=0.0,
        bias=BiasSpec("HK", "float32", "minus_1e9"), want=frozenset({"dq", "dk"}),
    )  # fmt: skip
    for name, e in truth(make(case), preset("float16")).items():
        assert (e.lo <= e.hi).all() and (e.lo <= e.value).all() and (e.value <= e.hi).all(), name


def test_tiny_weights_that_a_large_scale_makes_large() -> None:
    """Their squares vanish before they are scaled: then a variance says nothing."""
    p = problem("float64", "large_logits", 700, B=1, H=2, Lq=17, Lk=129, D=7, scale=1e30, want=GRADIENTS)
    for name, ratio in largest_ratios(p, preset("float64"), SCHEDULES[0]).items():
        assert max(ratio) <= 1, (name, ratio)


def test_a_dscale_of_subnormal_products() -> None:
    p = problem("float32", "normal", B=1, H=2, Hkv=1, Lq=64, Lk=30, D=65, scale=1e30, want={"dscale"})
    q = (p.logical["q"].astype(float) * 1e-13).astype(np.float32)
    p = replace(p, logical={**p.logical, "q": q})
    assert 0 < abs(truth(p, preset("float32"))["dscale"].value) < FORMATS["float32"].smallest_normal
    assert max(largest_ratios(p, preset("float32"), SCHEDULES[0])["dscale"]) <= 1
