"""Where independence fails: honest textbook kernels on inputs made to add their errors coherently.

Each of these was outside the sharp bound once; the kernels share no code with `refattn.streaming`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn.case import BiasSpec, Case
from refattn.dtypes import round_to
from refattn.inputs import Problem, make
from refattn.judge import ratios
from refattn.precision import preset
from refattn.truth import truth

Array = np.ndarray[Any, Any]
F = np.float32


def dot(a: Array, b: Array, sequential: bool) -> Array:
    """a @ b in float32, added term by term if asked."""
    if not sequential:
        return a @ b
    total = np.zeros((a.shape[0], b.shape[1]), F)
    for n in range(a.shape[1]):
        total = total + a[:, n : n + 1] * b[n]
    return total


def textbook(
    p: Problem, sequential: bool = False, delta_by_keys: bool = False, base_2: bool = False
) -> dict[str, Array]:
    """Whole rows in float32, P and dS rounded to the inputs' dtype, one head at a time."""
    case, x = p.case, {n: np.asarray(a).astype(F) for n, a in p.logical.items()}
    group, scale = case.H // case.Hkv, F(case.D**-0.5 if case.scale is None else case.scale)

    def low(y: Array) -> Array:
        return y if case.dtype == "float32" else round_to(y, case.dtype).astype(F)

    got = {"out": np.zeros((case.B, case.H, case.Lq, case.Dv)), "lse": np.zeros((case.B, case.H, case.Lq))}
    got |= {"d" + n: np.zeros(x[n].shape) for n in "qkv"}
    for b, h in np.ndindex(case.B, case.H):
        q, k, v = x["q"][b, h], x["k"][b, h // group], x["v"][b, h // group]
        s = dot(q, k.T, sequential) * scale
        if "bias" in x:
            s = s + x["bias"][0, 0]
        m = s.max(1, keepdims=True)
        e = np.exp2(s * F(np.log2(np.e)) - m * F(np.log2(np.e))) if base_2 else np.exp(s - m)
        total = e.sum(1, keepdims=True)
        out = dot(low(e), v, sequential) / total
        lse = m + np.log(total)
        got["out"][b, h], got["lse"][b, h] = out, lse[:, 0]
        if not case.backward:
            continue
        dout = x["dout"][b, h]
        P = np.exp2(s * F(np.log2(np.e)) - lse * F(np.log2(np.e))) if base_2 else np.exp(s - lse)
        dP = dot(dout, v.T, sequential)
        delta = (P * dP if delta_by_keys else dout * low(out)).sum(1, keepdims=True)
        dS = P * (dP - delta + (x["dlse"][b, h][:, None] if "dlse" in x else F(0)))
        with np.errstate(over="ignore", invalid="ignore"):
            got["dq"][b, h] = dot(low(dS), k, sequential) * scale
            got["dk"][b, h // group] += dot(low(dS).T, q, sequential) * scale
        got["dv"][b, h // group] += dot(low(P).T, dout, sequential)
    return got


def largest(p: Problem, got: dict[str, Array]) -> dict[str, float]:
    found = {}
    for name, e in truth(p, preset(p.case.dtype)).items():
        y = round_to(got[name], e.dtype)
        ratio = np.where(e.nonfinite & ~np.isfinite(y), 0.0, ratios(y, e.value, e.lo, e.hi))
        found[name] = float(ratio.max())
    return found


def given(case: Case, **arrays: Any) -> Problem:
    """The case's problem with some of its arrays replaced; a number fills one."""
    logical = dict(make(case).logical)
    for name, x in arrays.items():
        like = logical[name]
        logical[name] = round_to(np.broadcast_to(x, like.shape), like.dtype.name).astype(like.dtype)
    return Problem(case, logical)


@pytest.mark.parametrize("k", [2.0, 8.0, 15.0])
def test_a_row_under_a_large_negative_bias(k: float) -> None:
    """-1e9 on every key absorbs the scores: the weights are off by all there is."""
    case = Case("t", "t", Lk=2, D=1, Dv=1, scale=1.0, bias=BiasSpec("K"), want={"out", "lse"})
    p = given(case, q=1.0, k=np.array([[k], [0.0]]), v=np.eye(2)[None, None, :, :1], bias=-1e9)
    assert all(r <= 1 for r in largest(p, textbook(p)).values())


@pytest.mark.parametrize("offset", [1e5, 1e6, 1e7])
def test_scores_far_from_zero(offset: float) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, 16)) for n in (20, 60, 60))
    q[..., 0], k[..., 0] = 1.0, offset
    p = given(Case("t", "t", Lq=20, Lk=60, D=16, Dv=16, scale=1.0), q=q, k=k, v=v)
    assert all(r <= 1 for r in largest(p, textbook(p)).values())


@pytest.mark.parametrize("base_2", [False, True])
@pytest.mark.parametrize("family", ["large_logits", "needle", "huge_offset", "rising"])
def test_delta_from_the_weights(family: str, base_2: bool) -> None:
    """delta = sum p dp scales with the error of lse, which delta = out·dout does not."""
    want = frozenset({"dq", "dk", "dv"})
    for seed in range(4):
        p = make(Case("t", "t", family=family, seed=seed, H=2, Lq=24, Lk=100, D=48, Dv=40, want=want))
        assert all(r <= 1 for r in largest(p, textbook(p, delta_by_keys=True, base_2=base_2)).values())


@pytest.mark.parametrize("H", [16, 64])
def test_equal_heads_of_a_group(H: int) -> None:
    rng = np.random.default_rng(1)
    case = Case("t", "t", H=H, Lq=8, Lk=20, D=16, Dv=16, dtype="bfloat16", want={"dk", "dv"})
    q, dout = (np.repeat(rng.standard_normal((1, 1, 8, 16)), H, 1) for _ in range(2))
    k, v = rng.standard_normal((2, 1, 1, 20, 16))
    p = given(case, q=q, k=k, v=v, dout=dout)
    assert all(r <= 1 for r in largest(p, textbook(p)).values())


@pytest.mark.parametrize("Dv", [64, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_equal_columns_of_v(dtype: str, Dv: int) -> None:
    """Two groups of equal columns, 1 % apart and opposed in dout: delta is their rounding errors' difference."""
    rng = np.random.default_rng(2)
    case = Case("t", "t", Lq=32, Lk=64, D=16, Dv=Dv, dtype=dtype, want={"dq", "dk"})
    one = 1 + rng.standard_normal((1, 1, 64, 1))
    v = np.concatenate([np.repeat(one, Dv // 2, 3), np.repeat(one * 1.01, Dv // 2, 3)], 3)
    dout = np.broadcast_to(np.where(np.arange(Dv) < Dv // 2, 1.0, -1.0), (1, 1, 32, Dv))
    q, k = (rng.standard_normal((1, 1, n, 16)) for n in (32, 64))
    for sequential in (False, True):
        p = given(case, q=q, k=k, v=v, dout=dout)
        assert all(r <= 1 for r in largest(p, textbook(p, sequential)).values())


@pytest.mark.parametrize("D", [128, 512])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_constant_vectors_added_term_by_term(dtype: str, D: int) -> None:
    case = Case("t", "t", Lq=4, Lk=9, D=D, Dv=8, dtype=dtype)
    q = np.broadcast_to(np.linspace(0.7, 1.3, 4)[:, None], (1, 1, 4, D))
    k = np.broadcast_to(np.linspace(-0.9, 1.1, 9)[:, None], (1, 1, 9, D))
    p = given(case, q=q, k=k)
    assert all(r <= 1 for r in largest(p, textbook(p, sequential=True)).values())


def test_an_overflow_of_the_contract_is_honest() -> None:
    """dS beyond 65504 in float16."""
    case = Case("t", "t", Lq=1, Lk=2, D=4, Dv=4, dtype="float16", want={"lse", "dq", "dk"})
    p = given(case, dlse=3e5, k=0.1)
    got = textbook(p)
    assert not np.isfinite(got["dk"]).all()
    assert all(r <= 1 for r in largest(p, got).values())


@pytest.mark.parametrize("sink", [0.0, 9.0, 15.0])
@pytest.mark.parametrize("Lk", [1024, 8192])
def test_nearly_equal_terms_added_one_after_the_other(Lk: int, sink: float) -> None:
    """A flat background under one large weight: all its terms round the same way."""
    rng = np.random.default_rng(3)
    k = 1e-3 * rng.random((Lk, 1))
    k[0] = sink
    v = np.ones((Lk, 1))
    v[0] = 0
    p = given(Case("t", "t", Lk=Lk, D=1, Dv=1, scale=1.0), q=1.0, k=k, v=v)
    assert all(r <= 1 for r in largest(p, textbook(p, sequential=True)).values())
    s = np.asarray(p.logical["k"])[0, 0, :, 0].astype(F)
    total = np.cumsum(np.exp(s - s.max()), dtype=F)[-1]
    assert largest(p, {"out": np.zeros((1, 1, 1, 1)), "lse": np.full((1, 1, 1), s.max() + np.log(total))})["lse"] <= 1


def test_a_key_far_below_its_sink_in_float64() -> None:
    """Its weight is so small that squares of it vanish."""
    case = Case("t", "t", Lk=1, D=1, Dv=3, dtype="float64", sinks="zero", scale=1.0)
    p = given(case, q=1.0, k=-620.3, v=np.array([1.1, -2.7, 3.3]))
    e = truth(p, preset("float64"))["out"]
    got = np.exp(-620.3 * (1 + 2.0**-53)) * np.asarray(p.logical["v"])[0, 0, 0]
    assert (e.rigorous_hi > e.rigorous_lo).all() and (ratios(got, e.value, e.lo, e.hi) <= 1).all()
