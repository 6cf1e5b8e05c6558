"""The truth of a problem: for each wanted output the value and the interval of each element.

Values come from the oracle, or tile by tile from `streaming` where the scores of all heads would
not fit; intervals from `tolerance`, the truth's own float64 error included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import oracle, streaming
from .dtypes import FORMATS
from .inputs import Problem
from .nonfinite import Nonfinite
from .precision import Conventions, Precision
from .tolerance import Forward, Tile, backward, forward, forward_lite, interval
from .tolerance.backward import Bound, Head

__all__ = ["Expected", "quick_truth", "truth"]

Array = np.ndarray[Any, Any]

DENSE = 1 << 22  # scores of all heads up to which the oracle serves
CHEAP = 1 << 18  # and from which the cheap bound is worth asking first
EVERYTHING = slice(None)
USUAL = Conventions()


@dataclass(frozen=True)
class Expected:
    """One output: an element passes if lo <= got <= hi; all float64, in the output's shape.

    `lo` and `hi` come from the bound that decides, `rigorous_lo` and `rigorous_hi` from the one
    that holds always.  `ignored` elements are not judged (they lie past q_lens or k_lens); where
    `nonfinite`, a NaN or an infinity passes too.
    """

    value: Array
    lo: Array
    hi: Array
    rigorous_lo: Array
    rigorous_hi: Array
    dtype: str
    ignored: Array
    nonfinite: Array
    narrow: bool = False
    """from `quick_truth`: to be outside decides nothing"""


def truth(problem: Problem, precision: Precision, conventions: Conventions = USUAL) -> dict[str, Expected]:
    """What each output that the case wants should be, under a contract and conventions."""
    return _Truth(problem, precision, conventions, forward).expected()


def quick_truth(problem: Problem, precision: Precision) -> dict[str, Expected]:
    """`truth`, or for long forwards in 16 and 8 bits narrower intervals at a tenth of its cost.

    An answer within `narrow` intervals is within those of `truth`; any other, `truth` decides.
    """
    case = problem.case
    long = case.B * case.H * case.Lq * case.Lk > CHEAP
    if long and not case.backward and case.bias is None and case.softcap is None:
        with contextlib.suppress(_TooCoarse):
            narrow = _Truth(problem, precision, USUAL, _lite).expected()
            return {name: replace(e, narrow=True) for name, e in narrow.items()}
    return truth(problem, precision)


class _TooCoarse(Exception):
    """The cheap bound would not be sharp."""


def _lite(
    q: Array, k: Array, v: Array, visible: Tile, bias: Tile, scale: float, softcap: float | None, sink: float | None,
    precision: Precision,
) -> Forward:  # fmt: skip
    found = forward_lite(q, k, v, visible, scale, sink, precision)
    if found is None:
        raise _TooCoarse
    return found


class _Truth:
    def __init__(
        self, problem: Problem, precision: Precision, conventions: Conventions, bound: Callable[..., Forward]
    ) -> None:
        self.bound = bound
        self.case, self.precision, self.conventions = problem.case, precision, conventions
        case = self.case
        self.exact = {name: np.asarray(x, dtype=np.float64) for name, x in problem.logical.items()}
        # the bounds are computed on finite stand-ins; what is not finite is accounted for apart
        self.clean = {name: np.where(np.isfinite(x), x, 0.0) for name, x in self.exact.items()}
        if "bias" in self.exact:
            self.clean["bias"] = np.where(np.isneginf(self.exact["bias"]), -np.inf, self.clean["bias"])
        self.group = case.H // case.Hkv if case.Hkv else 1
        self.scale = oracle.scale_of(case.scale, case.D)
        self.nonfinite = (
            None if all(np.isfinite(x).all() for x in self.exact.values()) else Nonfinite(case, self.exact, conventions)
        )
        self.heads = {(b, h): self._forward(b, h) for b in range(case.B) for h in range(case.H)}

    # ---- one head's view of the problem

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

    def _tiles(self, b: int, h: int) -> tuple[Any, Any]:
        def bias(rows: slice, keys: slice) -> Array | None:
            found = self.bias(b, h, rows, keys)
            return None if found is None else np.where(np.isneginf(found), 0.0, found)

        return (lambda rows, keys: self.visible(b, h, rows, keys)), bias

    def _forward(self, b: int, h: int, sinks: bool = True) -> Forward:
        q, k, v = (self.clean[n][b, i] for n, i in (("q", h), ("k", h // self.group), ("v", h // self.group)))
        sink = self.sink(h) if sinks else None
        return self.bound(q, k, v, *self._tiles(b, h), self.scale, self.case.softcap, sink, self.precision)

    # ---- outputs

    def expected(self) -> dict[str, Expected]:
        case = self.case
        shapes = {"out": (case.B, case.H, case.Lq, case.Dv), "lse": (case.B, case.H, case.Lq)}
        values, radii = self._forward_values(), {}
        for name, shape in shapes.items():
            parts = [[self._radius(name, f)[i] for f in self.heads.values()] for i in (0, 1)]
            radii[name] = [np.array(p).reshape(shape) for p in parts]
        if case.backward:
            gradients, more = self._backward()
            values |= gradients
            radii |= more
        self._apply_conventions(values, radii)
        return {name: self._interval(name, values[name], *radii[name]) for name in sorted(case.want)}

    def _forward_values(self) -> dict[str, Array]:
        out, lse = self._solve("attention")
        if self.conventions.lse_sinks == "excluded" and "sinks" in self.exact:
            lse = self._solve("attention", sinks=False)[1]
        return {"out": out, "lse": lse}

    def _solve(self, name: str, *more: Any, sinks: bool = True) -> Any:
        case, x = self.case, self.exact
        solver = oracle if case.B * case.H * case.Lq * case.Lk <= DENSE else streaming
        return getattr(solver, name)(
            x["q"], x["k"], x["v"], *more, mask=case.visibility, bias=x.get("bias"), scale=case.scale,
            softcap=case.softcap, sinks=x.get("sinks") if sinks else None,
        )  # fmt: skip

    def _radius(self, name: str, f: Forward) -> tuple[Array, Array]:
        if name == "out":
            return f.rigorous, f.sharp
        return f.lse_rigorous, f.lse_sharp

    def _backward(self) -> tuple[dict[str, Array], dict[str, list[Array]]]:
        case, clean = self.case, self.clean
        dlse = self.exact.get("dlse")
        values = self._solve("attention_grad", self.exact["dout"], dlse)._asdict()
        dbias = _BiasSum(case.bias_shape) if case.bias is not None else None
        dsinks = np.zeros((2, case.H))
        radii: dict[str, list[Array]] = {
            n: [np.zeros(clean[n[1:]].shape), np.zeros(clean[n[1:]].shape)] for n in ("dq", "dk", "dv")
        }
        for b in range(case.B):
            for kv in range(case.Hkv):
                members = range(kv * self.group, (kv + 1) * self.group)
                heads = [self._head(b, h, dbias) for h in members]
                found = backward(heads, clean["k"][b, kv], clean["v"][b, kv], self.scale, case.softcap, self.precision)
                placed: list[tuple[str, int, Bound]] = [("dk", kv, found.dk), ("dv", kv, found.dv)]
                placed += [("dq", h, bound) for h, bound in zip(members, found.dq, strict=True)]
                for name, i, bound in placed:
                    radii[name][0][b, i], radii[name][1][b, i] = bound.rigorous, bound.sharp
                dsinks[:, kv * self.group : (kv + 1) * self.group] += np.array(found.dsink).reshape(-1, 2).T
        if dbias is not None:
            radii["dbias"] = [dbias.radius(FORMATS[self.precision.accumulate].u)] * 2
        if case.sinks is not None:
            radii["dsinks"] = [dsinks[1] + case.B * FORMATS[self.precision.accumulate].u * np.abs(dsinks[0])] * 2
        return values, radii

    def _head(self, b: int, h: int, dbias: _BiasSum | None) -> Head:
        clean = self.clean
        dlse = clean["dlse"][b, h][:, None] if "dlse" in clean else np.zeros((self.case.Lq, 1))
        f = self.heads[b, h]
        alive = ~np.isneginf(f.lse)
        on_dt = None if dbias is None else dbias.at(b, h)
        visible, bias = self._tiles(b, h)
        return Head(
            clean["q"][b, h], np.where(alive, clean["dout"][b, h], 0.0), np.where(alive, dlse, 0.0),
            f, visible, bias, self.sink(h), on_dt,
        )  # fmt: skip

    # ---- what differs by convention

    @property
    def empty(self) -> Array:
        """(B, H, Lq): rows that see no key and no sink."""
        case = self.case
        lse = np.array([f.lse[:, 0] for f in self.heads.values()]).reshape(case.B, case.H, case.Lq)
        return np.isneginf(lse)

    def _apply_conventions(self, values: dict[str, Array], radii: dict[str, list[Array]]) -> None:
        case, conventions, empty = self.case, self.conventions, self.empty
        if conventions.lse_sinks == "excluded" and case.sinks is not None:
            bounds = [self._forward(b, h, sinks=False) for b, h in self.heads]
            radii["lse"] = [
                np.array([self._radius("lse", f)[i] for f in bounds]).reshape(values["lse"].shape) for i in (0, 1)
            ]
        if conventions.lse_base == "2":
            values["lse"] = values["lse"] / np.log(2.0)
            u = FORMATS[self.precision.accumulate].u
            own = 2 * u * np.abs(np.where(np.isfinite(values["lse"]), values["lse"], 0.0))
            radii["lse"] = [r / np.log(2.0) + own for r in radii["lse"]]
        if conventions.empty_lse != "any":
            values["lse"] = np.where(empty, float(conventions.empty_lse), values["lse"])
        if conventions.empty_rows == "nan":
            values["out"] = np.where(empty[..., None], np.nan, values["out"])
        if conventions.empty_rows == "mean_all" and case.Lk:
            for b, h in {(int(b), int(h)) for b, h, _ in np.argwhere(empty)}:
                v = self.clean["v"][b, h // self.group]
                flat = np.zeros((1, 1)), np.zeros((case.Lk, 1))
                everything = np.ones((1, case.Lk), dtype=bool)
                f = forward(*flat, v, lambda *_: everything, lambda *_: None, 1.0, None, None, self.precision)  # noqa: B023
                values["out"][b, h][empty[b, h]] = v.mean(0)
                for i, radius in enumerate(self._radius("out", f)):
                    radii["out"][i][b, h][empty[b, h]] = radius[0]

    def _interval(self, name: str, value: Array, rigorous: Array, sharp: Array) -> Expected:
        case, precision, conventions = self.case, self.precision, self.conventions
        dtype = {"out": case.out_dtype, "lse": precision.lse}.get(name, case.dtype)
        if name == "dbias" and case.bias is not None:
            dtype = case.bias.dtype
        # the truth's own error: as large as a float64 kernel's, else far below one of lower precision's
        own = rigorous * 2.0**-27
        lo, hi, rigorous_lo, rigorous_hi = (
            end
            for t in (sharp, rigorous)
            for end in interval(
                value, 2 * t if precision.accumulate == "float64" else t + own, dtype, precision.flush_subnormal
            )
        )
        ignored = np.broadcast_to(self._ignored(name), value.shape)
        if name not in ("out", "lse") and conventions.empty_rows != "zero" and self.empty.any():
            ignored = np.ones(value.shape, dtype=bool)
        if name == "lse" and conventions.empty_lse == "any":
            ignored = ignored | self.empty
        nonfinite = np.isnan(value) | np.isinf(rigorous)  # an endless bound: an overflow is honest
        if self.nonfinite is not None:
            nonfinite = nonfinite | self.nonfinite.of(name)
        return Expected(value, lo, hi, rigorous_lo, rigorous_hi, dtype, ignored, nonfinite)

    def _ignored(self, name: str) -> Array:
        """Elements whose memory does not exist."""
        case = self.case
        q_gone, k_gone = (
            np.arange(n)[None, None, :, None] >= np.array([n] * case.B if lens is None else lens)[:, None, None, None]
            for n, lens in ((case.Lq, case.q_lens), (case.Lk, case.k_lens))
        )
        if name in ("out", "dq"):
            return q_gone
        if name == "lse":
            return q_gone[..., 0]
        if name in ("dk", "dv"):
            return k_gone
        if name == "dbias":
            gone = q_gone | k_gone.swapaxes(-1, -2)
            stretched = tuple(a for a, n in enumerate(case.bias_shape) if n == 1)
            return np.asarray(gone.all(axis=stretched, keepdims=True) & (gone.size > 0))
        return np.zeros((), dtype=bool)


class _BiasSum:
    """dbias' rigorous bound: sums of |dT| and of its error over what the bias broadcast over."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.error, self.terms, self.count = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    def at(self, b: int, h: int) -> Any:
        B, H, Lq, Lk = self.error.shape

        def add(rows: slice, dT: Array, error: Array) -> None:
            for total, part in ((self.error, error), (self.terms, np.abs(dT)), (self.count, np.ones_like(dT))):
                place = total[b if B > 1 else 0, h if H > 1 else 0]
                if Lq == 1:
                    part = part.sum(0, keepdims=True)
                if Lk == 1:
                    part = part.sum(1, keepdims=True)
                place[rows if Lq > 1 else EVERYTHING] += part

        return add

    def radius(self, u: float) -> Array:
        return self.error + self.count * u * (self.terms + self.error)
