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

from ..case import GRADIENTS, OUTPUTS, Case
from ..dtypes import FORMATS, round_to
from ..precision import Conventions, Precision, preset
from .arguments import Arguments
from .backward import Sums, backward
from .forward import Head, forward
from .rules import Rules, Schedule

__all__ = ["Attention", "Gradients", "Rules", "Schedule", "Streaming", "attention", "attention_grad", "implementation"]

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


def attention(
    q: Any, k: Any, v: Any, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    precision: Precision = EXACT, schedule: Schedule = USUAL, rules: type[Rules] = Rules,
) -> Attention:  # fmt: skip
    """softmax(scale * q kᵀ [softcap] [+ bias], over the visible keys [and the sink]) v.

    Arguments as `refattn.attention` has them, and refused alike; the mask is a boolean array that
    broadcasts to (B, H, Lq, Lk), a `refattn.masks.Mask`, or a `Visibility`.  out and lse have the
    dtypes precision.out and precision.lse.

    >>> q = np.eye(2).reshape(1, 1, 2, 2)
    >>> attention(q, q, q, scale=np.log(3.0)).out[0, 0].round(12)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    rule = rules(precision, schedule)
    x = Arguments(q, k, v, rule.geometry(mask), bias, scale, softcap, sinks, rule.dtype)
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
    precision: Precision = EXACT, schedule: Schedule = USUAL, rules: type[Rules] = Rules,
) -> Gradients:  # fmt: skip
    """Gradients of `attention`; dout (B, H, Lq, Dv), dlse (B, H, Lq).

    dq, dk and dv have the dtype precision.out; dbias and dsinks are left in the accumulators'.
    The contract's grad_q_block and grad_k_block, if not 0, are the tile sizes.

    >>> x = np.ones((1, 1, 1, 1))
    >>> attention_grad(x, x, x, dout=x).dv.item()
    1.0
    """
    rule = rules(precision, schedule)
    x = Arguments(q, k, v, rule.geometry(mask), bias, scale, softcap, sinks, rule.dtype)
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
    return Gradients(dq, dk, dv, sums.dbias, sums.dsinks)


@dataclass(frozen=True)
class Streaming:
    """The kernel as an implementation of the suite's protocol; a mutant is one with other rules."""

    name: str = "refattn.streaming"
    version: str = "1"
    rules: type[Rules] = Rules
    schedule: Schedule = USUAL
    arrays: Literal["numpy"] = "numpy"
    conventions: Conventions = Conventions()
    outputs: frozenset[str] = frozenset(OUTPUTS + GRADIENTS)

    def supports(self, case: Case) -> str | None:
        return None

    def precision(self, case: Case) -> Precision:
        return preset(case.dtype, case.out_dtype)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        precision = self.precision(case)
        q, k, v = given["q"], given["k"], given["v"]
        everything = case.mask is None and case.q_lens is None and case.k_lens is None
        options: dict[str, Any] = {
            "mask": None if everything else case.visibility, "bias": given.get("bias"), "sinks": given.get("sinks"),
            "scale": case.scale, "softcap": case.softcap,
            "precision": precision, "schedule": self.schedule, "rules": self.rules,
        }  # fmt: skip
        answer: dict[str, Array] = {}
        if not case.want.isdisjoint(OUTPUTS):
            answer.update(attention(q, k, v, **options)._asdict())
        if case.backward:
            answer.update(attention_grad(q, k, v, given["dout"], given.get("dlse"), **options)._asdict())
        dtypes = dict.fromkeys(GRADIENTS, case.dtype) | {"out": case.out_dtype, "lse": precision.lse}
        if case.bias is not None:
            dtypes["dbias"] = case.bias.dtype
        return {
            name: round_to(answer[name], dtypes[name]).astype(FORMATS[dtypes[name]].dtype) for name in sorted(case.want)
        }


implementation = Streaming()
