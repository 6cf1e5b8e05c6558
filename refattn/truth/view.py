"""One problem as the bounds see it: finite float64 arrays, tiles of one head, and what is known but roughly."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np

from .. import oracle
from ..case import Case
from ..dtypes import FORMATS
from ..inputs import Problem
from ..inputs.transforms import cached
from ..nonfinite import Nonfinite
from ..precision import Conventions, Precision
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
        self.keep = problem.logical.get("keep")
        self.kept = _kept(case, problem.logical)
        self.exact = {n: np.asarray(x, dtype=np.float64) for n, x in problem.logical.items() if n != "keep"}
        self.clean = {n: x if np.isfinite(x).all() else np.where(np.isfinite(x), x, 0.0) for n, x in self.exact.items()}
        if "bias" in self.exact:
            self.clean["bias"] = np.where(np.isneginf(self.exact["bias"]), -np.inf, self.clean["bias"])
        self.group = case.H // case.Hkv if case.Hkv else 1
        self.scale = oracle.scale_of(case.scale, case.D)
        self.slack = _slack(case, self.clean, precision)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the oracle, but for dropout."""
        case, x = self.case, self.exact
        options = {
            "mask": case.visibility, "bias": x.get("bias"), "scale": case.scale, "softcap": case.softcap,
            "sinks": x.get("sinks"),
        }  # fmt: skip
        return options if case.score_mod is None else options | {"score_mod": SCORE_MODS[case.score_mod]}

    def nonfinite(self, conventions: Conventions) -> Nonfinite | None:
        """Where an infinity or a NaN is an honest answer, if any input is not finite."""
        if all(np.isfinite(x).all() for x in self.exact.values()):
            return None
        return Nonfinite(self.case, self.exact, conventions)

    def sink(self, h: int) -> float | None:
        """The logit of a head's sink; None without one, which -inf says too."""
        if "sinks" not in self.exact or np.isneginf(self.exact["sinks"][h]):
            return None
        return float(self.clean["sinks"][h])

    # of some heads at once: arrays (b, h, rows, keys), or such that broadcast to it

    def _bias_of(self, bs: slice, hs: slice, rows: slice, keys: slice) -> Array | None:
        if "bias" not in self.clean:
            return None
        x = self.clean["bias"]
        return x[tuple(at if n > 1 else EVERYTHING for at, n in zip((bs, hs, rows, keys), x.shape, strict=True))]

    def of_queries(self, x: Array, bs: slice, hs: slice) -> Array:
        """What belongs to key heads, repeated for each query head."""
        heads = np.arange(self.case.H)[hs]
        return x[bs] if self.group == 1 and len(heads) == x.shape[1] else x[bs, heads // self.group]

    def sinks(self, hs: slice) -> Array | None:
        """(h, 1, 1); -inf where there is none."""
        if "sinks" not in self.exact:
            return None
        return np.where(np.isneginf(self.exact["sinks"]), -np.inf, self.clean["sinks"])[hs].reshape(-1, 1, 1)

    def tiles_of(self, bs: slice, hs: slice) -> tuple[Tile, Tile]:
        """visible and bias, which is 0 where it hides."""

        def bias(rows: slice, keys: slice) -> Array | None:
            found = self._bias_of(bs, hs, rows, keys)
            return None if found is None else np.where(np.isneginf(found), 0.0, found)

        return partial(self._visible_of, bs, hs), bias

    def _visible_of(self, bs: slice, hs: slice, rows: slice, keys: slice) -> Array:
        one = bs.stop - bs.start == hs.stop - hs.start == 1
        where = (bs.start, hs.start) if one else ()
        seen = self.case.visibility.tile(rows, keys, *where)
        seen = seen[None, None] if one else seen[bs, hs]
        bias = self._bias_of(bs, hs, rows, keys)
        seen = seen if bias is None else seen & ~np.isneginf(bias)
        mod = None if self.case.score_mod is None else SCORE_MODS[self.case.score_mod]
        if mod is None or mod.hides is None:
            return seen
        b, h, i, j = np.ogrid[bs, hs, : self.case.Lq, : self.case.Lk]
        return seen & ~mod.hides(b, h, i[:, :, rows], j[..., keys])

    def extras_of(self, bs: slice, hs: slice) -> Extras:
        case, factors = self.case, self.kept
        b, h, i, j = np.ogrid[bs, hs, : case.Lq, : case.Lk]

        def place(rows: slice, keys: slice) -> tuple[Any, Any, Any, Any]:
            return b, h, i[:, :, rows], j[..., keys]

        def kept(rows: slice, keys: slice) -> Array:
            return np.asarray(factors[bs, hs, rows, keys])  # type: ignore[index]

        mod = None if case.score_mod is None else SCORE_MODS[case.score_mod]
        slack = {n: x[bs, hs] if n == "q" else self.of_queries(x, bs, hs) for n, x in self.slack.items()}
        independent = bool(self.independent[bs, hs].any())
        kept_or_none = None if factors is None else kept
        return Extras(mod, place, kept_or_none, slack.get("q"), slack.get("k"), slack.get("v"), independent)

    # of one head: (rows, keys)

    def visible(self, b: int, h: int, rows: slice, keys: slice) -> Array:
        return self._visible_of(slice(b, b + 1), slice(h, h + 1), rows, keys)[0, 0]

    def tiles(self, b: int, h: int) -> tuple[Tile, Tile]:
        """visible and bias of one head."""
        _, bias_of = self.tiles_of(slice(b, b + 1), slice(h, h + 1))

        def bias(rows: slice, keys: slice) -> Array | None:
            found = bias_of(rows, keys)
            return None if found is None else found[0, 0]

        return partial(self.visible, b, h), bias

    def extras(self, b: int, h: int) -> Extras:
        case, factors = self.case, self.kept

        def place(rows: slice, keys: slice) -> tuple[Any, Any, Any, Any]:
            return b, h, np.arange(case.Lq)[rows, None], np.arange(case.Lk)[None, keys]

        def kept(rows: slice, keys: slice) -> Array:
            return np.asarray(factors[b, h, rows, keys])  # type: ignore[index]

        slack = {n: x[b, h if n == "q" else h // self.group] for n, x in self.slack.items()}
        return Extras(
            None if case.score_mod is None else SCORE_MODS[case.score_mod], place, None if factors is None else kept,
            slack.get("q"), slack.get("k"), slack.get("v"), bool(self.independent[b, h]),
        )  # fmt: skip

    @cached_property
    def independent(self) -> Array:
        """(B, H): whether the errors of a head's rotated inputs are (`Extras.independent`)."""
        heads = np.ndindex(self.case.B, self.case.H)
        return np.array([self._independent(b, h) for b, h in heads]).reshape(self.case.B, self.case.H)

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
