"""One problem as the bounds see it: finite float64 arrays, tiles of one head, and what is known but roughly."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import oracle
from ..case import Case
from ..dtypes import FORMATS
from ..inputs import Problem
from ..inputs.transforms import cached
from ..precision import Precision
from ..rotary import Rotary
from ..score_mods import SCORE_MODS
from ..tolerance import Extras, Tile, repetitive

__all__ = ["View", "pair_norms"]

Array = np.ndarray[Any, Any]
EVERYTHING = slice(None)


class View:
    """The arrays of a problem: `exact`, and `clean`, in which what is not finite is 0 (and -inf of a bias hides)."""

    def __init__(self, problem: Problem, precision: Precision) -> None:
        self.case = case = problem.case
        self.kept = _kept(case, problem.logical)
        self.exact = {n: np.asarray(x, dtype=np.float64) for n, x in problem.logical.items() if n != "keep"}
        self.clean = {name: np.where(np.isfinite(x), x, 0.0) for name, x in self.exact.items()}
        if "bias" in self.exact:
            self.clean["bias"] = np.where(np.isneginf(self.exact["bias"]), -np.inf, self.clean["bias"])
        self.group = case.H // case.Hkv if case.Hkv else 1
        self.scale = oracle.scale_of(case.scale, case.D)
        self.slack = _slack(case, self.clean, precision)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the oracle."""
        case, x = self.case, self.exact
        return {
            "mask": case.visibility, "bias": x.get("bias"), "scale": case.scale, "softcap": case.softcap,
            "sinks": x.get("sinks"), "score_mod": None if case.score_mod is None else SCORE_MODS[case.score_mod],
        }  # fmt: skip

    def sink(self, h: int) -> float | None:
        return float(self.clean["sinks"][h]) if "sinks" in self.clean else None

    def bias(self, b: int, h: int, rows: slice, keys: slice) -> Array | None:
        if "bias" not in self.clean:
            return None
        x = self.clean["bias"]
        x = x[b if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0]
        return x[rows if x.shape[0] > 1 else EVERYTHING, keys if x.shape[1] > 1 else EVERYTHING]

    def visible(self, b: int, h: int, rows: slice, keys: slice) -> Array:
        seen = self.case.visibility.tile(rows, keys, b, h)
        bias = self.bias(b, h, rows, keys)
        return seen if bias is None else seen & ~np.isneginf(bias)

    def tiles(self, b: int, h: int) -> tuple[Tile, Tile]:
        """visible and bias of one head."""

        def bias(rows: slice, keys: slice) -> Array | None:
            found = self.bias(b, h, rows, keys)
            return None if found is None else np.where(np.isneginf(found), 0.0, found)

        return (lambda rows, keys: self.visible(b, h, rows, keys)), bias

    def extras(self, b: int, h: int) -> Extras:
        case, factors = self.case, self.kept

        def place(rows: slice, keys: slice) -> tuple[Any, Any, Any, Any]:
            return b, h, np.arange(case.Lq)[rows, None], np.arange(case.Lk)[None, keys]

        def kept(rows: slice, keys: slice) -> Array:
            return np.asarray(factors[b, h, rows, keys])  # type: ignore[index]

        slack = {n: x[b, h if n == "q" else h // self.group] for n, x in self.slack.items()}
        return Extras(
            None if case.score_mod is None else SCORE_MODS[case.score_mod], place, None if factors is None else kept,
            slack.get("q"), slack.get("k"), slack.get("v"), self._independent(b, h),
        )  # fmt: skip


    def _independent(self, b: int, h: int) -> bool:
        """Whether rotated q and k are rounded as different numbers are: no key twice, and no few sizes."""
        rotary = self.case.rotary
        if rotary is None or not self.case.Lk:
            return False
        q, k = (pair_norms(self.clean[n][b, i], rotary) for n, i in (("q", h), ("k", h // self.group)))
        k = k[k.any(1)].astype(np.float32)
        repeats = len(np.unique(k, axis=0)) < len(k) or bool(repetitive(k).any())
        return not repeats and not bool(repetitive(q[q.any(1)]).any())


def _kept(case: Case, logical: Any) -> Array | None:
    if case.dropout is None:
        return None
    return np.where(logical["keep"], 1 / (1 - case.dropout) if case.dropout < 1 else 0.0, 0.0)


def _slack(case: Case, clean: dict[str, Array], precision: Precision) -> dict[str, Array]:
    """How far an element of q, k or v may be off, after it was rotated or dequantised.

    Rotated: three roundings of a pair's norm, and one to the format it is kept in.  Dequantised: the
    product with the scale, in whatever order, and likewise.
    """
    u = FORMATS[precision.accumulate].u
    eta = FORMATS[precision.accumulate].smallest_normal
    slack = {}
    if case.rotary is not None:
        kept = FORMATS[precision.rotated] if precision.rotated else None
        for name in "qk":
            norm = pair_norms(clean[name], case.rotary)
            slack[name] = (3.01 * u + (1.01 * kept.u if kept else 0.0)) * norm + np.where(
                norm > 0, eta + (kept.eta if kept else 0.0), 0.0
            )
        slack["k"] = np.where(cached(case), 0.0, slack["k"])  # keys of the past are there as they are
    if case.quant is not None:
        kept = FORMATS[precision.dequantised] if precision.dequantised else None
        for name in ("k", "v") if case.quant.of == "kv" else ("q", "k", "v"):
            size = np.abs(clean[name])
            slack[name] = (2 * u + (kept.u if kept else 0.0)) * size + np.where(
                size > 0, eta + (kept.eta if kept else 0.0), 0.0
            )
    return slack


def pair_norms(x: Array, rotary: Rotary) -> Array:
    """For each coordinate of x (..., D) the norm of the pair that it is rotated in, 0 where it is not."""
    half = rotary.dim // 2
    first: Any
    second: Any
    if rotary.interleaved:
        first, second = np.s_[..., 0 : 2 * half : 2], np.s_[..., 1 : 2 * half : 2]
    else:
        first, second = np.s_[..., :half], np.s_[..., half : 2 * half]
    norm = np.zeros_like(x)
    norm[first] = norm[second] = np.hypot(x[first], x[second])
    return norm
