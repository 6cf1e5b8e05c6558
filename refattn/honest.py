"""Random problems with an honest kernel for each: what every bound must let pass.

A `Trial` is a problem, a precision contract and a schedule.  `answer` has `refattn.streaming`
solve it, with every rounding that the contract allows; `ratios_of` judges the answer.  Problems are
small, of all input families but the poisoned ones, of all dtypes, and combine the features at random.

No bound covers an overflow inside the kernel: what a contract stores in 16 bits (scores, a scaled q)
must fit there.  A problem for which it does not is drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from .case import MATRICES, BiasSpec, Case
from .dtypes import FORMATS
from .inputs import FAMILIES, Problem, make
from .judge import ratios
from .masks import Causal, Mask, Prefix, Window
from .oracle import attention_scores, scale_of
from .precision import Precision, preset
from .quantise import KINDS, Granularity, Quant
from .rotary import Rotary
from .score_mods import SCORE_MODS
from .streaming import Rules, Schedule, Streaming
from .truth import Expected

__all__ = ["CONTRACTS", "DTYPES", "Ratios", "Trial", "answer", "draw", "fits", "ratios_of"]

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
CONTRACTS = ("preset", "eager", "rounded sum", "scaled q", "blocked gradients", "unrounded weights", "dequantised")
"""by name; those other than the preset are for 16 bits"""
_MODS = [name for name, mod in SCORE_MODS.items() if mod.hides is None]
"""what hides has no largest score"""
LIVELY = tuple(name for name in FAMILIES if not name.startswith("poisoned"))


@dataclass(frozen=True)
class Trial:
    problem: Problem
    contract: str
    precision: Precision
    schedule: Schedule


class Ratios(NamedTuple):
    """The largest ratios of one output, by the bound that decides and by the rigorous one."""

    sharp: float
    rigorous: float
    elements: int


def draw(rng: Rng, dtype: str) -> Trial:
    """A trial in `dtype`, in which all that is stored fits its format."""
    while True:
        case = _case(rng, dtype)
        try:
            problem = make(case)
        except ValueError:  # beyond the range of the dtype
            continue
        name = str(rng.choice(CONTRACTS)) if FORMATS[dtype].bits in (8, 11) else "preset"
        precision = _contract(name, preset(case.dtype, case.out_dtype))
        if fits(problem, precision):
            return Trial(problem, name, precision, _schedule(rng))


def answer(trial: Trial, rules: type[Rules] = Rules) -> dict[str, Array]:
    """What the kernel returns, each output in its own dtype; wrong `rules` make it a wrong kernel."""
    kernel = _Kernel(rules=rules, schedule=trial.schedule, contract=trial.precision)
    return kernel(trial.problem.case, trial.problem.fresh())


def ratios_of(got: Mapping[str, Array], expected: Mapping[str, Expected]) -> dict[str, Ratios]:
    """The largest ratios of each output; what cannot be judged is left out."""
    found = {}
    for name, e in expected.items():
        judged = ~e.ignored
        x, value = np.asarray(got[name], dtype=np.float64)[judged], e.value[judged]
        sharp, rigorous = (
            float(ratios(x, value, lo[judged], hi[judged]).max(initial=0.0))
            for lo, hi in ((e.lo, e.hi), (e.rigorous_lo, e.rigorous_hi))
        )
        found[name] = Ratios(sharp, rigorous, x.size)
    return found


@dataclass(frozen=True)
class _Kernel(Streaming):
    contract: Precision = preset("float64")

    def precision(self, case: Case) -> Precision:
        return self.contract


def _contract(name: str, usual: Precision) -> Precision:
    changes: dict[str, dict[str, Any]] = {
        "preset": {},
        "eager": {"scores": usual.inputs, "weights_normalised": True},
        "rounded sum": {"sum_rounded_weights": True},
        "scaled q": {"scaled_q": usual.inputs},
        "blocked gradients": {"grad_q_block": 32, "grad_k_block": 64, "grad_per_head": True},
        "unrounded weights": {"weights": None},
        "dequantised": {"dequantised": usual.inputs},
    }
    return replace(usual, **changes[name])


def _largest_score(problem: Problem) -> float:
    """A bound of the scores' size at each stage; the room is a unit roundoff of float16."""
    case, x = problem.case, problem.logical
    mod = None if case.score_mod is None else SCORE_MODS[case.score_mod]
    stages = attention_scores(x["q"], x["k"], bias=x.get("bias"), scale=case.scale, score_mod=mod)
    return max(float(np.abs(s).max(initial=0.0)) for s in stages[:3]) * (1 + 2.0**-11)


def fits(problem: Problem, precision: Precision) -> bool:
    """Whether the scores and the scaled q lie within the formats that they are stored in."""
    case = problem.case
    if precision.scaled_q is not None:
        q = np.asarray(problem.logical["q"], dtype=np.float64)
        largest = abs(scale_of(case.scale, case.D)) * np.abs(q).max(initial=0.0)
        if not largest < FORMATS[precision.scaled_q].max:
            return False
    return precision.scores is None or _largest_score(problem) < FORMATS[precision.scores].max


def _schedule(rng: Rng) -> Schedule:
    return Schedule(
        tile_q=int(rng.choice([1, 5, 16, 64])), tile_k=int(rng.choice([16, 17, 48, 64, 256])),
        order=rng.choice(["forward", "reverse", "random"]).item(), splits=int(rng.choice([1, 1, 2, 3])),
        exp=rng.choice(["exp", "exp2", "numpy"]).item(), seed=int(rng.integers(1000)),
    )  # fmt: skip


def _case(rng: Rng, dtype: str) -> Case:
    def maybe(chance: float, value: Any) -> Any:
        return value if rng.random() < chance else None

    Hkv, group = int(rng.choice([1, 1, 2])), int(rng.choice([1, 1, 2, 3]))
    Lq, Lk = int(rng.integers(1, 25)), int(rng.choice([1, 7, 16, 33, 70, 130]))
    D, Dv = int(rng.choice([4, 16, 24, 32])), int(rng.choice([4, 16, 32]))
    bias_dtype = dtype if FORMATS[dtype].bits > 20 else "float32"
    shape, values = str(rng.choice(["HQK", "QK", "K"])), str(rng.choice(["normal", "alibi"]))
    bias = maybe(0.2, BiasSpec(shape, bias_dtype, values))
    sinks = maybe(0.2, str(rng.choice(["zero", "normal"])))
    softcap = maybe(0.2, float(rng.choice([5.0, 30.0])))
    wide = FORMATS[dtype].bits > 4
    rotary = maybe(0.15 * wide * (Lq <= Lk), Rotary(D - 2 * int(rng.integers(D // 2)), bool(rng.integers(2))))
    quant = maybe(0.15 * wide * (rotary is None), _quant(rng, D, Dv))
    want = {"out", "lse"}
    if rng.random() < 0.15:
        want |= set(MATRICES)
    if wide and quant is None and (rotary is None or FORMATS[dtype].bits > 11):
        want |= {"dq", "dk", "dv", "dscale"} | ({"dbias"} if bias else set()) | ({"dsinks"} if sinks else set())
        want |= {"dsoftcap"} if softcap else set()
    return Case(
        "trial", "drawn at random", B=1, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, D=D, Dv=Dv,
        dtype=dtype, family=str(rng.choice(LIVELY)), seed=int(rng.integers(1 << 30)), want=frozenset(want),
        mask=maybe(0.6, _mask(rng)), scale=maybe(0.2, float(rng.choice([0.5, -0.25]))), softcap=softcap, bias=bias,
        sinks=sinks, score_mod=maybe(0.2, str(rng.choice(_MODS))),
        dropout=maybe(0.2, float(rng.choice([0.1, 0.5, 0.9]))), rotary=rotary, quant=quant,
    )  # fmt: skip


def _quant(rng: Rng, D: int, Dv: int) -> Quant:
    kinds = KINDS if D % 32 == Dv % 32 == 0 else KINDS[:3]
    kind = kinds[rng.integers(len(kinds))]
    granularities: tuple[Granularity, ...] = ("block",) if kind in ("q8_0", "q4_0") else ("tensor", "head", "block")
    return Quant(kind, granularities[rng.integers(len(granularities))], "qkv" if kind == "int8" else "kv")


def _mask(rng: Rng) -> Mask:
    align: Literal["top_left", "bottom_right"] = "top_left" if rng.random() < 0.5 else "bottom_right"
    kinds: tuple[Mask, ...] = (Causal(align), Window(int(rng.integers(60)), 5, align), Prefix(3, align))
    return kinds[rng.integers(len(kinds))]
