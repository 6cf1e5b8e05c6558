"""The door to the suite: `refattn check refattn.flash.implementation:attention`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numba
import numpy as np

from .. import flash
from ..case import CACHES, MATRICES, NAMES, OUTPUTS, Case
from ..dtypes import FORMATS, round_to
from ..memory import give_answer, take
from ..precision import Conventions, Precision
from .pairs import contract
from .vectors import BITS

__all__ = ["FlashAttention", "attention"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FlashAttention:
    """`flash.attention` and `flash.attention_grad` as an implementation; storages become dense arrays first."""

    name: str = "refattn.flash"
    arrays: Literal["numpy"] = "numpy"
    conventions: Conventions = Conventions(batch_invariant=True)
    outputs: frozenset[str] = frozenset(NAMES).difference(MATRICES, CACHES)

    @property
    def version(self) -> str:
        return f"numba {metadata.version('numba')}, vectors of {BITS} bits, threads: {numba.get_num_threads()}"

    def supports(self, case: Case) -> str | None:
        if FORMATS[case.dtype].bits <= 4:
            return case.dtype
        for feature in ("score_mod", "dropout", "rotary", "quant"):
            if getattr(case, feature) is not None:
                return feature
        if case.out_dtype != case.dtype:
            return f"out_dtype={case.out_dtype}"
        refused = case.want - self.outputs
        return f"returns no {' '.join(sorted(refused))}" if refused else None

    def precision(self, case: Case) -> Precision:
        return contract(case.dtype)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        x = take(case, given)
        everything = case.mask is None and case.q_lens is None and case.k_lens is None
        options: dict[str, Any] = {
            "mask": None if everything else case.visibility, "bias": x.get("bias"), "sinks": x.get("sinks"),
            "scale": case.scale, "softcap": case.softcap,
        }  # fmt: skip
        answer: dict[str, Any] = {}
        if not case.want.isdisjoint(OUTPUTS):
            answer.update(flash.attention(x["q"], x["k"], x["v"], **options)._asdict())
        if case.backward:
            found = flash.attention_grad(x["q"], x["k"], x["v"], x["dout"], x.get("dlse"), **options)
            answer.update(found._asdict())
        dtypes = {"dsinks": case.dtype} | ({} if case.bias is None else {"dbias": case.bias.dtype})
        for name in dtypes.keys() & case.want:
            answer[name] = round_to(answer[name], dtypes[name]).astype(FORMATS[dtypes[name]].dtype)
        return give_answer(case, {name: answer[name] for name in case.want})


attention = FlashAttention()
