"""Values and radii of all that a case wants, and what becomes of them under conventions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import oracle
from ..case import CACHES, MATRICES, OUTPUTS
from ..dtypes import FORMATS
from ..inputs import Problem
from ..inputs.transforms import query_positions, tables_of
from ..precision import Conventions, Precision
from ..rotary import unrotate
from ..tolerance import Forward, Scalars, Total, backward, forward, matrices
from ..tolerance.backward import Bound, Head
from .expected import Expected
from .finish import finish
from .solver import solve
from .sums import BiasSum
from .view import View, pair_norms

__all__ = ["Truth"]

Array = np.ndarray[Any, Any]
Made = tuple[dict[str, Array], dict[str, list[Array]]]
"""values by name, and [rigorous, sharp] radii"""

SCALARS = ("dscale", "dsoftcap")


class Truth:
    """A problem under a contract and conventions."""

    def __init__(self, problem: Problem, precision: Precision, conventions: Conventions) -> None:
        self.case, self.precision, self.conventions = problem.case, precision, conventions
        self.view = View(problem, precision)
        self.nonfinite = self.view.nonfinite(conventions)
        self.heads = {(b, h): self._forward(b, h) for b in range(self.case.B) for h in range(self.case.H)}

    def _forward(self, b: int, h: int, sinks: bool = True) -> Forward:
        view = self.view
        q, k, v = (view.clean[n][b, i] for n, i in (("q", h), ("k", h // view.group), ("v", h // view.group)))
        sink = view.sink(h) if sinks else None
        return forward(
            q, k, v, *view.tiles(b, h), view.scale, self.case.softcap, sink, self.precision, view.extras(b, h)
        )

    # ---- outputs

    def expected(self) -> dict[str, Expected]:
        case = self.case
        values, radii = self.bounds()
        found = {
            name: finish(
                name, values[name], radii[name][0], radii[name][1],
                case, self.precision, self.conventions, self.empty, self.nonfinite,
            )  # fmt: skip
            for name in sorted(case.want)
        }
        if "out" in found:
            deviation = np.array([f.deviation for f in self.heads.values()]).reshape(values["out"].shape)
            found["out"] = replace(found["out"], deviation=deviation)
        return found

    def bounds(self) -> Made:
        """Values by name, and [rigorous, sharp] radii about the exact value, the truth's own error left out."""
        values, radii = self._forward_values(), {}
        for name in OUTPUTS:
            parts = [[self._radius(name, f)[i] for f in self.heads.values()] for i in (0, 1)]
            radii[name] = [np.array(p).reshape(values[name].shape) for p in parts]
        for more in (self._matrices, self._caches, self._backward):
            new_values, new_radii = more()
            values |= new_values
            radii |= new_radii
        self._apply_conventions(values, radii)
        return values, radii

    def _forward_values(self) -> dict[str, Array]:
        out, lse = solve(self.view, "attention")
        if self.conventions.lse_sinks == "excluded" and "sinks" in self.view.exact:
            lse = solve(self.view, "attention", sinks=False)[1]
        return {"out": out, "lse": lse}

    def _radius(self, name: str, f: Forward) -> tuple[Array, Array]:
        if name == "out":
            return f.rigorous, f.sharp
        return f.lse_rigorous, f.lse_sharp

    def _matrices(self) -> Made:
        case, view = self.case, self.view
        if case.want.isdisjoint(MATRICES):
            return {}, {}
        values = oracle.attention_scores(view.exact["q"], view.exact["k"], **view.options)._asdict()
        shape = (case.B, case.H, case.Lq, case.Lk)
        radii = {name: [np.zeros(shape)] * 2 for name in MATRICES}
        for b, h in self.heads:
            q, k = view.clean["q"][b, h], view.clean["k"][b, h // view.group]
            found = matrices(
                q, k, *view.tiles(b, h), view.scale, case.softcap, self.heads[b, h], self.precision, view.extras(b, h)
            )
            for name, radius in found.items():
                radii[name][0][b, h] = radius
        return values, radii

    def _caches(self) -> Made:
        """Keys and values as they lie in the cache: as they are, or rotated and rounded."""
        if self.case.want.isdisjoint(CACHES):
            return {}, {}
        values = {f"{n}_cache": self.view.exact[n] for n in "kv"}
        return values, {f"{n}_cache": [self.view.slack.get(n, np.zeros_like(self.view.exact[n]))] * 2 for n in "kv"}

    def _backward(self) -> Made:
        case, view = self.case, self.view
        if not case.backward:
            return {}, {}
        clean, group, u = view.clean, view.group, FORMATS[self.precision.accumulate].u
        values = solve(view, "attention_grad", view.exact["dout"], view.exact.get("dlse"))._asdict()
        dbias = BiasSum(case.bias_shape) if case.bias is not None else None
        dsinks = np.zeros((2, case.H))
        scalars: list[Scalars] = []
        radii = {n: [np.zeros(clean[n[1:]].shape), np.zeros(clean[n[1:]].shape)] for n in ("dq", "dk", "dv")}
        for b, kv in np.ndindex(case.B, case.Hkv):
            members = range(kv * group, (kv + 1) * group)
            heads = [self._head(b, h, dbias) for h in members]
            found = backward(heads, clean["k"][b, kv], clean["v"][b, kv], view.scale, case.softcap, self.precision)
            placed: list[tuple[str, int, Bound]] = [("dk", kv, found.dk), ("dv", kv, found.dv)]
            placed += [("dq", h, bound) for h, bound in zip(members, found.dq, strict=True)]
            for name, i, bound in placed:
                radii[name][0][b, i], radii[name][1][b, i] = bound.rigorous, bound.sharp
            dsinks[:, kv * group : (kv + 1) * group] += np.array(found.dsink).reshape(-1, 2).T
            scalars += found.scalars
        if dbias is not None:
            radii["dbias"] = [dbias.radius(u)] * 2
        if case.sinks is not None:
            radii["dsinks"] = [dsinks[1] + case.B * u * np.abs(dsinks[0])] * 2
        for name in SCALARS:
            whole = Total.of(getattr(s, name) for s in scalars)
            radii[name] = [np.asarray(radius) for radius in whole.radii(u)]
        self._turn_back(values, radii)
        return values, radii

    def _turn_back(self, values: dict[str, Array], radii: dict[str, list[Array]]) -> None:
        """dq and dk of what was not rotated yet: the transpose, with the roundings of `View.slack`."""
        case, contract = self.case, self.precision
        if case.rotary is None:
            return
        cos, sin = tables_of(case)
        at = query_positions(case)
        kept = FORMATS[contract.rotated] if contract.rotated else None
        u = 3.01 * FORMATS[contract.accumulate].u + (1.01 * kept.u if kept else 0.0)
        eta = FORMATS[contract.accumulate].smallest_normal + (kept.eta if kept else 0.0)
        for name, c, s in (("dq", cos[at], sin[at]), ("dk", cos, sin)):
            values[name] = unrotate(values[name], c, s, case.rotary.interleaved)
            norm = pair_norms(values[name], case.rotary)
            for i, r in enumerate(radii[name]):
                both = pair_norms(r, case.rotary)
                both = np.where(both > FORMATS[contract.accumulate].max, np.inf, both)  # inf - inf is honest there
                radii[name][i] = np.where(norm + both > 0, 1.001 * both + u * (norm + both) + eta, r)

    def _head(self, b: int, h: int, dbias: BiasSum | None) -> Head:
        view = self.view
        clean = view.clean
        dlse = clean["dlse"][b, h][:, None] if "dlse" in clean else np.zeros((self.case.Lq, 1))
        f = self.heads[b, h]
        alive = ~np.isneginf(f.lse)
        on_dt = None if dbias is None else dbias.at(b, h)
        return Head(
            clean["q"][b, h], np.where(alive, clean["dout"][b, h], 0.0), np.where(alive, dlse, 0.0),
            f, *view.tiles(b, h), view.sink(h), view.extras(b, h), not self.case.want.isdisjoint(SCALARS), on_dt,
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
                v = self.view.clean["v"][b, h // self.view.group]
                flat = np.zeros((1, 1)), np.zeros((case.Lk, 1))
                everything = np.ones((1, case.Lk), dtype=bool)
                f = forward(*flat, v, lambda *_: everything, lambda *_: None, 1.0, None, None, self.precision)  # noqa: B023
                values["out"][b, h][empty[b, h]] = v.mean(0)
                for i, radius in enumerate(self._radius("out", f)):
                    radii["out"][i][b, h][empty[b, h]] = radius[0]
