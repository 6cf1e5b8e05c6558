"""The cheap truth: values, and narrower intervals of all heads at once, or of those that share a key head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..case import CACHES, OUTPUTS
from ..dtypes import FORMATS
from ..inputs import Problem
from ..nonfinite import Nonfinite
from ..precision import Conventions, Precision
from ..tolerance import forward_lite
from ..tolerance.lite_backward import backward_lite
from ..tolerance.lite_radii import Lite
from ..tolerance.pairs import Head, Keys
from ..tolerance.rounding import Units
from .expected import Expected
from .finish import finish
from .solver import solve
from .sums import BiasSum
from .view import View

__all__ = ["narrow_truth"]

Array = np.ndarray[Any, Any]
Parts = tuple[Array, ...]
"""(b, heads, ...): value, rigorous radius, sharp radius, and of out the deviation; of dsinks value and error"""

TOGETHER = 1 << 17  # scores up to which all heads are bounded at once
GROUP = 1 << 18  # scores of the heads of a key head up to which gradients have a cheap form
CHEAP = {*OUTPUTS, *CACHES, "dq", "dk", "dv", "dbias", "dsinks"}
USUAL = Conventions()


def narrow_truth(problem: Problem, precision: Precision) -> dict[str, Expected] | None:
    """What the case wants, under the usual conventions; None where there is no cheap form."""
    case = problem.case
    if not case.want <= CHEAP or case.backward and case.rotary is not None:
        return None
    if case.backward and case.H // max(1, case.Hkv) * case.Lq * case.Lk > GROUP:
        return None
    found = _solved(View(problem, precision), precision)
    if found is None:
        return None
    bounds, values, nonfinite = found
    empty = np.isneginf(bounds["lse"][0])
    expected = {
        name: finish(name, values[name], rigorous, sharp, case, precision, USUAL, empty, nonfinite)
        for name in sorted(case.want)
        for _, rigorous, sharp, *_ in (bounds[name],)
    }
    if "out" in expected:
        expected["out"] = replace(expected["out"], deviation=bounds["out"][3])
    return {name: replace(e, narrow=True) for name, e in expected.items()}


def _solved(view: View, precision: Precision) -> tuple[dict[str, Parts], dict[str, Array], Nonfinite | None] | None:
    """Bounds and values by name, and where infinities and NaN are honest."""
    case, x = view.case, view.exact
    bounds = _bounds(view, precision)
    if bounds is None:
        return None
    nonfinite = view.nonfinite(USUAL)
    values = {name: bound[0] for name, bound in bounds.items()}
    if nonfinite is not None or precision.accumulate == "float64":
        values |= solve(view, "attention")._asdict()
    if case.backward:
        values |= solve(view, "attention_grad", x["dout"], x.get("dlse"))._asdict()
    return bounds, values, nonfinite


def _bounds(view: View, precision: Precision) -> dict[str, Parts] | None:
    case = view.case
    dbias = BiasSum(case.bias_shape) if "dbias" in case.want else None
    parts: dict[str, list[Parts]] = {}
    for bs, hs in _shares(view):
        bound = _forward(view, precision, bs, hs)
        if bound is None:
            return None
        found: dict[str, Parts] = {
            "out": (bound.out, bound.rigorous, bound.sharp, bound.deviation),
            "lse": (bound.lse[..., 0], bound.lse_rigorous[..., 0], bound.lse_sharp[..., 0]),
        }
        if case.backward:
            found |= _backward(view, precision, bs, hs, bound, dbias)
        for name, part in found.items():
            parts.setdefault(name, []).append(part)
    bounds = {name: tuple(_joined(x, case.B) for x in zip(*each, strict=True)) for name, each in parts.items()}
    for name in case.want.intersection(CACHES):  # keys and values as they lie there, rotated and rounded
        x = view.exact[name[0]]
        bounds[name] = (x, *[view.slack.get(name[0], np.zeros_like(x))] * 2)
    u = FORMATS[precision.accumulate].u
    if dbias is not None:
        bounds["dbias"] = (dbias.terms, *[dbias.radius(u)] * 2)
    if "dsinks" in case.want:
        value, error = (part.sum(0) for part in bounds["dsinks"])
        bounds["dsinks"] = (value, *[error + case.B * u * np.abs(value)] * 2)
    return bounds


def _joined(parts: tuple[Array, ...], B: int) -> Array:
    """(B, heads, ...) out of what belongs to some b and heads, in order."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1).reshape(B, -1, *parts[0].shape[2:])


def _shares(view: View) -> list[tuple[slice, slice]]:
    """Which heads are bounded together: slices of b and h."""
    case = view.case
    alike = view.independent.all() or not view.independent.any()
    if alike and case.scores <= TOGETHER:
        return [(slice(0, case.B), slice(0, case.H))]
    size = view.group if case.backward else 1
    return [(slice(b, b + 1), slice(h, h + size)) for b in range(case.B) for h in range(0, case.H, size)]


def _forward(view: View, precision: Precision, bs: slice, hs: slice) -> Lite | None:
    k, v = (view.of_queries(view.clean[n], bs, hs) for n in "kv")
    return forward_lite(
        view.clean["q"][bs, hs], k, v, *view.tiles_of(bs, hs),
        view.scale, view.case.softcap, view.sinks(hs), precision, view.extras_of(bs, hs), view.case.backward,
    )  # fmt: skip


def _backward(
    view: View, precision: Precision, bs: slice, hs: slice, bound: Lite, dbias: BiasSum | None
) -> dict[str, Parts]:  # fmt: skip
    x, case = view.clean, view.case
    k, v = (view.of_queries(x[n], bs, hs) for n in "kv")
    alive = ~np.isneginf(bound.lse)
    dlse = x["dlse"][bs, hs][..., None] if "dlse" in x else np.zeros((1, 1, 1, 1))
    head = Head(
        x["q"][bs, hs], np.where(alive, x["dout"][bs, hs], 0.0), np.where(alive, dlse, 0.0), bound.whole(),
        *view.tiles_of(bs, hs), view.sinks(hs), view.extras_of(bs, hs), False,
        None if dbias is None else dbias.over(bs, hs),
    )  # fmt: skip
    keys = Keys(k, v, view.scale, case.softcap, precision, Units(precision, case.Lk))
    found = backward_lite(head, keys, view.group)
    parts: dict[str, Parts] = {"dq": found.dq, "dk": found.dk, "dv": found.dv}
    if head.sink is not None:
        none = np.isneginf(head.sink[:, 0, 0])
        parts["dsinks"] = tuple(np.where(none, 0.0, part) for part in found.dsink)
    return parts
