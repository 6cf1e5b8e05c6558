"""The diagnosis of kernels that decode: for few queries the keys are cut into splits, whose results are merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refattn.case import Case, Dense
from refattn.cases import CASES
from refattn.conform import run
from refattn.implementation import Function
from refattn.oracle import scale_of
from refattn.quantise import Kind
from refattn.streaming import Rules, Streaming
from tests.patient import patient  # noqa: F401

Array = np.ndarray[Any, Any]
E4M3 = ml_dtypes.float8_e4m3fn
Merge = Callable[[Array, Array], tuple[Array, Array]]
"""outputs and lse of the splits, (splits, B, H, Lq, ...) -> the output and lse that are returned"""


OUT = frozenset({"out", "lse"})
BOTH = [
    Case(f"queries-{lq}-keys-{lk}", "a few queries, or more", B=2, H=4, Hkv=2, Lq=lq, Lk=lk, want=OUT)
    for lq, lk in ((1, 37), (2, 61), (4, 29), (7, 100), (8, 12), (9, 37), (16, 61), (12, 29), (10, 100), (24, 12))
]


def decoded(case: Case, given: Mapping[str, Any], merge: Merge) -> dict[str, Array]:
    """Four splits, of at least eight keys."""
    q, k, v = (given[n].astype(np.float64) for n in "qkv")
    k, v = (np.repeat(x, case.H // case.Hkv, 1) for x in (k, v))
    s, size = q @ k.swapaxes(-1, -2) * scale_of(case.scale, case.D), max(8, -(-case.Lk // 4))
    parts = []
    for j in range(0, case.Lk, size):
        m = s[..., j : j + size].max(-1, keepdims=True)
        p = np.exp(s[..., j : j + size] - m)
        total = p.sum(-1, keepdims=True)
        parts.append((p @ v[:, :, j : j + size] / total, (m + np.log(total))[..., 0]))
    out, lse = merge(*(np.stack(x) for x in zip(*parts, strict=True)))
    return {"out": out.astype(given["q"].dtype), "lse": lse.astype(given["q"].dtype)}


def merged(outs: Array, lses: Array, base: float = np.e) -> tuple[Array, Array]:
    top = lses.max(0)
    weights = base ** (lses - top)
    return (weights[..., None] * outs).sum(0) / weights.sum(0)[..., None], top + np.log(weights.sum(0)) / np.log(base)


MERGES: dict[str, tuple[Merge, str]] = {
    "in base 2": (lambda o, x: merged(o, x, 2.0), "powers of 2 of natural lse, lse is m + log2(l)"),
    "last": (lambda o, x: (merged(o, x)[0], x[-1]), "is that of the last"),
    "largest": (lambda o, x: (merged(o, x)[0], x.max(0)), "is the largest of theirs"),
}


@pytest.mark.parametrize("name", MERGES)
def test_a_bug_of_decoding_alone(name: str) -> None:
    merge, words = MERGES[name]

    def kernel(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        return decoded(case, given, merge) if case.Lq <= 8 else dict(Streaming()(case, given))

    report = run(Function(kernel, name, outputs=OUT), BOTH)
    assert report.counts()["failed"] == len([c for c in BOTH if c.Lq <= 8])
    assert words in report.diagnosis[0] and "at most 8 queries" in " ".join(report.diagnosis), report.diagnosis


def test_the_splits_are_right_but_for_the_bug() -> None:
    def kernel(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        return decoded(case, given, merged)

    assert run(Function(kernel, "right", outputs=OUT), BOTH).counts()["failed"] == 0


class misread(Rules):
    """Every float8 is read as e4m3."""

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        if kind == "float8_e5m2":
            return super().dequantise(name, np.ascontiguousarray(codes).view(E4M3), scale, "float8_e4m3fn")
        return super().dequantise(name, codes, scale, kind)


def test_codes_of_another_format() -> None:
    """What comes of them is near 0, and so is attention with a scale squared, which is not named."""
    cases = [c for c in CASES if c.quant is not None and c.scores < 2**13 and c.want <= OUT]
    report = run(Streaming(rules=misread), [c for c in cases if isinstance(c.storage, Dense)][:24])
    assert report.counts()["failed"] > 2
    assert "are read as float8_e4m3fn" in report.diagnosis[0], report.diagnosis
