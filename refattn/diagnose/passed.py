"""What speaks against a hypothesis: cases that passed, and what the failing ones have that those have not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from ..case import Case
from ..inputs import make
from ..precision import preset
from ..truth import Expected, truth
from .dense import Inputs
from .hypothesis import Hypothesis

__all__ = ["what_tells_apart", "would_be_noticed"]

CLEAR = 4.0
"""A passed case contradicts a hypothesis whose answer is so many radii off."""


def would_be_noticed(h: Hypothesis, case: Case) -> bool:
    """Whether a kernel like this is far outside of the bound, in a case that passed."""
    if h.members:
        return False  # some of them may be what is there
    inputs, expected = _passed(case)
    try:
        with np.errstate(all="ignore"):
            exact = h.solve(inputs, preset(case.dtype, case.out_dtype) if h.rounding else None, frozenset(expected))
    except Exception:  # as in Trial.match
        return False
    for name in (n for n in expected if n in exact):
        e = expected[name]
        with np.errstate(all="ignore"):
            radius = np.maximum(e.hi - e.value, e.value - e.lo)
            same = (exact[name] == e.value) | (np.abs(exact[name] - e.value) <= CLEAR * radius)
        if not (same | e.ignored | (e.nonfinite & ~np.isfinite(exact[name]))).all():
            return True
    return False


@lru_cache(maxsize=64)
def _passed(case: Case) -> tuple[Inputs, dict[str, Expected]]:
    problem = make(case)
    return Inputs(problem), truth(problem, preset(case.dtype, case.out_dtype))


def what_tells_apart(failing: Iterable[Case], against: Sequence[Case]) -> str:
    """What failing cases have in common that none of some that passed has, in words."""
    if not against:
        return ""
    common = frozenset.intersection(*map(_features, failing))
    telling = sorted(common - frozenset().union(*map(_features, against)))
    return " and ".join(telling[:2]) and "cases with " + " and ".join(telling[:2])


def _features(case: Case) -> frozenset[str]:
    """What an author of kernels may have made a case of its own of."""
    group = case.H // max(case.Hkv, 1)
    told = {
        "Lq = 1": case.Lq == 1, "Lq > 1": case.Lq > 1, "B > 1": case.B > 1, "H > 1": case.H > 1,
        "H > Hkv": group > 1, "H = Hkv": group < 2, "Hkv = 1": case.Hkv == 1, "D != Dv": case.D != case.Dv,
        "gradients": case.backward, "no gradients": not case.backward, "no mask": case.mask is None,
        "a mask": case.mask is not None, "no bias": case.bias is None, "Lq != Lk": case.Lq != case.Lk,
        "lengths that differ": len(set(zip(*case.lengths, strict=True))) > 1, "a scale": case.scale is not None,
        "16 bits": case.dtype in ("float16", "bfloat16"), f"arrays as {type(case.storage).__name__}": True,
        "few rows, H / Hkv * Lq <= 64": group * case.Lq <= 64, "many rows, H / Hkv * Lq > 64": group * case.Lq > 64,
    }  # fmt: skip
    told |= {f"{name} > {n}": size > n for n in (16, 32, 64, 128)
             for name, size in (("Lk", case.Lk), ("Lq", case.Lq), ("D", case.D), ("Dv", case.Dv))}  # fmt: skip
    told |= {f"{name} not a multiple of {n}": size % n != 0 for n in (8, 16, 32, 64)
             for name, size in (("Lk", case.Lk), ("Lq", case.Lq), ("D", case.D), ("Dv", case.Dv))}  # fmt: skip
    return case.features() | {word for word, on in told.items() if on}
