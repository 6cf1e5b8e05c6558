"""Laws of the backward: what the gradients conserve, and their adjoints.

With P of rows that sum to 1, dP = dO Vᵀ, Δ = rows of P ∘ dP summed, dS = P ∘ (dP - Δ + dlse) ∘ slope:

    1ᵀdV = (P 1)ᵀ dO,   VᵀdV = OᵀdO,   1ᵀdK = scale (dS 1)ᵀ Q,   QᵀdQ = scale Qᵀ dS K = dKᵀK

`proofs/conservation_laws.py` shows what breaks each: sinks and dead rows the first, softcap, sinks and
dlse the third (dlse is put in its place here), nothing the other two.  Query heads that share keys count
as more rows.  The bound of each side is the sum of the radii of the elements that enter it, times the
exact factors: errors of a row or a key are not independent of one another, so that no root of a sum
of squares is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import Case
from ..inputs import Problem
from ..judge import Output
from ..oracle import scale_of
from ..precision import preset
from ..truth import truth
from .bench import Bench
from .law import law
from .measured import Measured, compare, exact
from .problems import rng_of

Array = np.ndarray[Any, Any]


def _wants(*names: str) -> Any:
    return lambda case: case.want >= set(names)


def _exactly(base: Problem, name: str) -> Array:
    return base.logical[name].astype(np.float64)


def _by_group(case: Case, x: Any) -> Any:
    """(B, H, Lq, d) as (B, Hkv, rows of the group, d)."""

    def together(a: Array) -> Array:
        return a.reshape(case.B, case.Hkv, -1, a.shape[-1])

    return x.each(together) if isinstance(x, Measured) else together(x)


@law("bound", "1ᵀdV = 1ᵀdO, over the rows that see a key",
     holds=lambda case: "dv" in case.want and case.sinks is None)  # fmt: skip
def values_mass(base: Problem, ask: Bench) -> Iterator[Output]:
    """Weights add up to 1; broken by sinks and dropout."""
    a = ask.ask(base)
    dout = np.where(a.sees[..., None], _exactly(base, "dout"), 0.0)
    yield compare("1ᵀdV", a["dv"].sum(2), exact(_by_group(base.case, dout)).sum(2))


@law("bound", "1ᵀdK = scale dlseᵀQ, which is 0 without dlse",
     holds=lambda case: "dk" in case.want and case.sinks is None and case.softcap is None)  # fmt: skip
def keys_balance(base: Problem, ask: Bench) -> Iterator[Output]:
    """Softmax does not see a shift of all keys, but lse does; broken by softcap and sinks."""
    case = base.case
    a = ask.ask(base)
    q = _exactly(base, "q")
    alive = a.sees
    dlse = np.where(alive, _exactly(base, "dlse"), 0.0) if "dlse" in base.logical else np.zeros(alive.shape)
    right = exact(_by_group(case, q)).onto(_by_group(case, scale_of(case.scale, case.D) * dlse[..., None]))
    yield compare("1ᵀdK", a["dk"].sum(2), right[..., 0, :])


@law("bound", "QᵀdQ = dKᵀK", holds=_wants("dq", "dk"))
def rotation(base: Problem, ask: Bench) -> Iterator[Output]:
    """Q A and K A⁻ᵀ have the same scores for every invertible A; nothing breaks it."""
    a = ask.ask(base)
    left = _by_group(base.case, a["dq"]).onto(_by_group(base.case, _exactly(base, "q")))
    right = a["dk"].onto(_exactly(base, "k")).each(lambda x: x.swapaxes(-1, -2))
    yield compare("QᵀdQ", left, right)


@law("bound", "VᵀdV = OᵀdO", holds=_wants("out", "dv"))
def values_rotation(base: Problem, ask: Bench) -> Iterator[Output]:
    """As for the scores, of the second product; nothing breaks it."""
    a = ask.ask(base)
    right = _by_group(base.case, a["out"]).onto(_by_group(base.case, _exactly(base, "dout")))
    yield compare("VᵀdV", a["dv"].onto(_exactly(base, "v")), right.each(lambda x: x.swapaxes(-1, -2)))


# With w a direction of the features, the derivative of out along a change of scores s' is
# sum_j p_j s'_j v_j - (sum_j p_j s'_j) out: attention once more, in float64, with other values.


@law("bound", "dq_i · w = scale (dout_i · (E[(k·w) v] - E[k·w] out_i) + dlse_i E[k·w])",
     holds=lambda case: "dq" in case.want and case.softcap is None)  # fmt: skip
def adjoint_in_q(base: Problem, ask: Bench) -> Iterator[Output]:
    """<dout, J x> = <Jᵀ dout, x> of each row; E is the mean under its weights, from the forward alone."""
    case = base.case
    w = rng_of(base, "adjoint_in_q").choice([-2.0, -1.0, 1.0, 2.0], case.D)
    a = ask.ask(base)
    along = _exactly(base, "k") @ w
    mean = _means(base, along[..., None])
    image = _pulled_back(base, mean, 0).times(scale_of(case.scale, case.D))
    yield compare("dq·w", a["dq"].times(w).sum(-1), image)


@law("bound", "sum_j b_j dk_j · w = scale sum_i (q_i·w)(dout_i · (E[b v] - E[b] out_i) + dlse_i E[b])",
     holds=lambda case: "dk" in case.want and case.softcap is None)  # fmt: skip
def adjoint_in_k(base: Problem, ask: Bench) -> Iterator[Output]:
    """The same for a change b_j w of every key: ones, and two of random signs."""
    case = base.case
    rng = rng_of(base, "adjoint_in_k")
    w = rng.choice([-2.0, -1.0, 1.0, 2.0], case.D)
    b = np.concatenate([np.ones((case.Lk, 1)), rng.choice([-1.0, 1.0], (case.Lk, 2))], axis=1)
    a = ask.ask(base)
    mean = _means(base, np.broadcast_to(b, (case.B, case.Hkv, *b.shape)))
    factor = scale_of(case.scale, case.D) * (_exactly(base, "q") @ w)
    for i in range(b.shape[1]):
        right = _pulled_back(base, mean, i).times(factor).each(lambda x: x.reshape(case.B, case.Hkv, -1)).sum(-1)
        yield compare(f"<dk, b{i} w>", a["dk"].times(b[:, i, None] * w).sum((2, 3)), right)


def _means(base: Problem, b: Array) -> Measured:
    """E[v], then for each column of b (B, Hkv, Lk, n) E[b v] and E[b], (B, H, Lq, Dv + n (Dv + 1)), in float64."""
    v = _exactly(base, "v")
    values = np.concatenate([v, *(x for i in range(b.shape[-1]) for x in (b[..., i, None] * v, b[..., i, None]))], -1)
    case = replace(
        base.case, dtype="float64", out_dtype="float64", want=frozenset({"out"}), Dv=values.shape[-1], id="means"
    )
    logical = {n: _exactly(base, n) for n in ("q", "k", "bias", "sinks") if n in base.logical}
    contract = preset("float64")
    expected = truth(Problem(case, {**logical, "v": values}), contract)["out"]
    return Measured.of(expected.value, expected, contract)


def _pulled_back(base: Problem, mean: Measured, i: int) -> Measured:
    """dout · (E[b v] - E[b] E[v]) + dlse E[b] of each row, for column i of b."""
    Dv = base.case.Dv
    first = Dv + i * (Dv + 1)
    v, bv, b = mean[..., :Dv], mean[..., first : first + Dv], mean[..., first + Dv]
    dout = _exactly(base, "dout")
    alive = np.ones(b.x.shape)
    dlse = _exactly(base, "dlse") if "dlse" in base.logical else 0 * alive
    # E[b] E[v] is the only product of two that are not exact
    column = b.each(lambda x: x[..., None])
    product = column.times(v.x)
    off = np.abs(column.x) * v.radius + column.radius * v.radius
    product = replace(product, radius=product.radius + off, rigorous=product.rigorous + off)
    return (bv + product.times(-1.0)).times(dout).sum(-1) + b.times(dlse)


