"""Attention tile by tile, in O(N) memory, NumPy only: the second derivation of the truth, and the honest kernel.

In float64 (the default) it is the oracle's equal by another way: the online softmax of
`refattn.online` over tiles of queries and keys, the backward from each row's maximum and sum.  No
array of Lq x Lk elements is ever made, masks are asked tile by tile, and tiles that are wholly
hidden are skipped.

With a `Precision` it is the honest low-precision kernel: every product, sum and exponential in the
accumulators' dtype, and roundings exactly where the contract has them.  A `Schedule` varies what
implementers choose freely.  `implementation` is the same behind the suite's door.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np

from ..case import MATRICES, NAMES, OUTPUTS, Case
from ..dtypes import FORMATS, round_to
from ..memory import give_answer
from ..precision import Conventions, Precision, preset
from ..score_mods import SCORE_MODS
from .arguments import Arguments
from .backward import Sums, backward
from .forward import Head, forward
from .matrices import matrices
from .prepare import prepare, turned_back
from .rules import Logits, Rules, Schedule

__all__ = [
    "Attention", "Gradients", "Logits", "Rules", "Schedule", "Streaming",
    "attention", "attention_grad", "implementation",
]  # fmt: skip

Array = np.ndarray[Any, Any]
EXACT = preset("float64")
USUAL = Schedule()


class Attention(NamedTuple):
    """out (B, H, Lq, Dv) and lse (B, H, Lq), natural logarithm, sinks included."""

    out: Array
    lse: Array


class Gradients(NamedTuple):
    """Gradients of sum(out * dout) + sum(lse * dlse), each in the shape of what it belongs to."""

    dq: Array
    dk: Array
    dv: Array
    dbias: Array | None
    dsinks: Array | None
    dscale: Array
    dsoftcap: Array | None


def attention(
    q: Any, k: Any, v: Any, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    score_mod: Any = None, dropout: float | None = None, keep: Any = None,
    precision: Precision = EXACT, schedule: Schedule = USUAL, rules: type[Rules] = Rules,
) -> Attention:  # fmt: skip
    """softmax(scale * q kᵀ [softcap] [score_mod] [+ bias], over the visible keys [and the sink]) [dropout] v.

    Arguments as `refattn.attention` has them, and refused alike; the mask is a boolean array that
    broadcasts to (B, H, Lq, Lk), a `refattn.masks.Mask`, or a `Visibility`; keep such an array, or a
    function (b, h, rows, keys) -> booleans of a tile.  out and lse have the dtypes precision.out and
    precision.lse.

    >>> q = np.eye(2).reshape(1, 1, 2, 2)
    >>> attention(q, q, q, scale=np.log(3.0)).out[0, 0].round(12)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    rule = rules(precision, schedule)
    x = Arguments(
        q, k, v, mask=rule.geometry(mask), bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        score_mod=score_mod, dropout=dropout, keep=keep, dtype=rule.dtype,
    )  # fmt: skip
    out = np.zeros((x.B, x.H, x.Lq, x.Dv), FORMATS[precision.out].dtype)
    lse = np.zeros((x.B, x.H, x.Lq), FORMATS[precision.lse].dtype)
    with np.errstate(all="ignore"):
        for b, h in product(range(x.B), range(x.H)):
            done = forward(Head(x, rule, b, h))
            out[b, h] = rule.store(done.out, precision.out)
            lse[b, h] = rule.store(rule.lse(done.lse), precision.lse)
    return Attention(out, lse)


def attention_grad(
    q: Any, k: Any, v: Any, dout: Any, dlse: Any = None, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    score_mod: Any = None, dropout: float | None = None, keep: Any = None,
    precision: Precision = EXACT, schedule: Schedule = USUAL, rules: type[Rules] = Rules,
) -> Gradients:  # fmt: skip
    """Gradients of `attention`; dout (B, H, Lq, Dv), dlse (B, H, Lq).

    dq, dk and dv have the dtype precision.out; the others are left in the accumulators'.
    The contract's grad_q_block and grad_k_block, if not 0, are the tile sizes.

    >>> x = np.ones((1, 1, 1, 1))
    >>> attention_grad(x, x, x, dout=x).dv.item()
    1.0
    """
    rule = rules(precision, schedule)
    x = Arguments(
        q, k, v, mask=rule.geometry(mask), bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        score_mod=score_mod, dropout=dropout, keep=keep, dtype=rule.dtype, backward=True,
    )  # fmt: skip
    dout = x.shaped(dout, "dout", (x.B, x.H, x.Lq, x.Dv))
    dlse = np.zeros((x.B, x.H, x.Lq)) if dlse is None else x.shaped(dlse, "dlse", (x.B, x.H, x.Lq))
    with np.errstate(all="ignore"):
        sums = Sums(x)
        for b, h in product(range(x.B), range(x.H)):
            head = Head(x, rule, b, h)
            done = forward(head)
            own = rule.round(done.out, precision.out)
            backward(head, done, own, x.head(dout, b, h), x.head(dlse, b, h), sums)
        dq, dk, dv = (rule.store(d, precision.out) for d in (sums.dq, sums.dk, sums.dv))
    dsoftcap = None if softcap is None else np.asarray(sums.dsoftcap)
    return Gradients(dq, dk, dv, sums.dbias, sums.dsinks, np.asarray(sums.dscale), dsoftcap)


@dataclass(frozen=True)
class Streaming:
    """The kernel as an implementation of the suite's protocol; a mutant is one with other rules."""

    name: str = "refattn.streaming"
    version: str = "1"
    rules: type[Rules] = Rules
    schedule: Schedule = USUAL
    arrays: Literal["numpy"] = "numpy"
    conventions: Conventions = Conventions()
    outputs: frozenset[str] = frozenset(NAMES)

    def supports(self, case: Case) -> str | None:
        return None

    def precision(self, case: Case) -> Precision:
        return preset(case.dtype, case.out_dtype)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        precision = self.precision(case)
        rules = self.rules(precision, self.schedule)
        case = rules.read(case)
        x = rules.take(case, given)
        made = prepare(case, x, rules)
        q, k, v = made["q"], made["k"], made["v"]
        everything = case.mask is None and case.q_lens is None and case.k_lens is None
        problem: dict[str, Any] = {
            "mask": None if everything else case.visibility, "bias": x.get("bias"), "sinks": x.get("sinks"),
            "scale": case.scale, "softcap": case.softcap,
            "score_mod": None if case.score_mod is None else SCORE_MODS[case.score_mod],
        }  # fmt: skip
        dropped: dict[str, Any] = {"dropout": case.dropout, "keep": x.get("keep")}
        how: dict[str, Any] = {"precision": precision, "schedule": self.schedule, "rules": self.rules}
        answer: dict[str, Array | None] = {}
        if not case.want.isdisjoint(OUTPUTS):
            answer.update(attention(q, k, v, **problem, **dropped, **how)._asdict())
        if not case.want.isdisjoint(MATRICES):
            problem["mask"] = rules.geometry(problem["mask"])
            answer.update(matrices(Arguments(q, k, v, **problem, dtype=rules.dtype), rules))
        if case.backward:
            found = attention_grad(q, k, v, x["dout"], x.get("dlse"), **problem, **dropped, **how)
            answer.update(turned_back(case, found._asdict(), x, rules))
        answer |= {"k_cache": rules.to_cache(k, x["k"]), "v_cache": v}
        dtypes = dict.fromkeys(case.want, case.dtype) | dict.fromkeys(("out", *MATRICES), case.out_dtype)
        dtypes |= {"lse": precision.lse} | dict.fromkeys(("dscale", "dsoftcap"), precision.accumulate)
        if case.bias is not None:
            dtypes["dbias"] = case.bias.dtype
        rounded = {name: round_to(answer[name], dtypes[name]).astype(FORMATS[dtypes[name]].dtype) for name in case.want}
        return give_answer(case, rounded)


implementation = Streaming()
