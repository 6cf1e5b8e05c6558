"""Drawn problems with every feature, and a-priori bounds of what one float64 evaluation of them may be off.

`bounds` knows the sizes that dense NumPy makes of a problem, and no error that anybody has measured.
With A = |scale| |q|·|k| the exact scores are known to e_s = (D + 4) u A, the logits to that times
the steepest slope of the modifier and the roundings of its terms; a weight is then off by a factor
within 1 ± w, w = 2 e + (Lk + 64) u, where e is the largest error in the row.  The rest follows by
taking each product and sum with absolute values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from refattn.masks import BlockSparse, Causal, Documents, Padding, Prefix, SinkTokens, Visibility, Window
from refattn.score_mods import SCORE_MODS

Array = np.ndarray[Any, Any]
Problem = dict[str, Any]

U = 2.0**-53
_MODS = [mod for mod in SCORE_MODS.values() if mod.hides is None]
SCORES = ("mask", "bias", "scale", "softcap", "sinks", "score_mod")
OPTIONS = (*SCORES, "dropout", "keep")


def random_mask(rng: np.random.Generator, B: int, H: int, Lq: int, Lk: int) -> Any:
    align = ("top_left", "bottom_right")[rng.integers(2)]
    return [
        lambda: None,
        lambda: Causal(align),
        lambda: Window(int(rng.integers(5)), int(rng.integers(3)), align) | SinkTokens(1),
        lambda: Prefix(int(rng.integers(4)), align) & Padding(tuple(rng.integers(0, Lk + 1, B))),
        lambda: ~Documents(tuple(rng.integers(0, 3, Lq)), tuple(rng.integers(0, 3, Lk))),
        lambda: BlockSparse(("x.x", ".xx"), 7, 11),
        lambda: rng.random((B, 1, Lq, Lk)) < 0.3,
        lambda: rng.random((H, 1, Lk)) < 0.5,
        lambda: Visibility(Causal(align), B, H, Lq, Lk, *(tuple(rng.integers(0, L + 1, B)) for L in (Lq, Lk))),
    ][rng.integers(9)]()


def random_problem(seed: int) -> Problem:
    """Arrays and options; sizes from 0 on, and every feature on or off."""
    rng = np.random.default_rng(seed)
    B, Hkv, group, D, Dv = rng.integers([1, 1, 1, 0, 1], [3, 3, 4, 9, 7])
    Lq, Lk = rng.choice([0, 1, 2, 3, 15, 17, 40], 2)
    B, Hkv, H, Lq, Lk, D, Dv = map(int, (B, Hkv, Hkv * group, Lq, Lk, D, Dv))
    size = 10 ** rng.uniform(-1, 1)
    x: Problem = {
        "q": size * rng.standard_normal((B, H, Lq, D)),
        "k": rng.standard_normal((B, Hkv, Lk, D)),
        "v": rng.standard_normal((B, Hkv, Lk, Dv)),
        "dout": rng.standard_normal((B, H, Lq, Dv)),
        "dlse": rng.standard_normal((B, H, Lq)),
        "mask": random_mask(rng, B, H, Lq, Lk),
        "scale": (None, 0.0, -0.3, 2.0)[rng.integers(4)],
        "softcap": (None, 3.0)[rng.integers(2)],
        "sinks": rng.standard_normal(H) if rng.integers(2) else None,
        "bias": None,
        "score_mod": None,
        "dropout": None,
        "keep": None,
    }
    if rng.integers(2):
        shape = [(B, H, Lq, Lk), (H, Lq, Lk), (1, 1, Lq, 1), (Lk,), (B, 1, 1, Lk), ()][rng.integers(6)]
        bias = rng.standard_normal(shape)
        x["bias"] = np.where(rng.random(shape) < 0.2, -np.inf, bias) if len(shape) == 4 else bias
    if rng.integers(2):
        x["score_mod"] = _MODS[rng.integers(len(_MODS))]
    if rng.integers(2):
        x["dropout"] = float(rng.choice([0.0, 0.1, 0.75, 1.0]))
        shape = [(B, H, Lq, Lk), (H, Lq, 1), (Lk,)][rng.integers(3)]
        x["keep"] = np.asarray(rng.random(shape) >= x["dropout"])
    return x


def solve(module: Any, x: Problem, **more: Any) -> dict[str, Array]:
    """All outputs of `attention` and `attention_grad` by name; dbias, dsinks and dsoftcap where there are any."""
    options = {name: x[name] for name in OPTIONS} | more
    found = module.attention(x["q"], x["k"], x["v"], **options)._asdict()
    found |= module.attention_grad(x["q"], x["k"], x["v"], x["dout"], x["dlse"], **options)._asdict()
    return {name: y for name, y in found.items() if y is not None}


def shape_of(x: Problem) -> tuple[int, int, int, int]:
    return (*x["q"].shape[:3], x["k"].shape[2])


def visible_of(x: Problem) -> Array:
    shape = shape_of(x)
    mask = np.ones((), bool) if x["mask"] is None else x["mask"]
    seen = np.broadcast_to(mask.dense(*shape) if hasattr(mask, "dense") else mask, shape)
    return seen if x["bias"] is None else seen & ~np.isneginf(x["bias"])


def scale_of(x: Problem) -> float:
    D = x["q"].shape[-1]
    return x["scale"] if x["scale"] is not None else D**-0.5 if D else 1.0


class Sizes(NamedTuple):
    """(B, H, Lq, Lk): weights, error of a weight relative to it; errors of the scores at each stage; slopes."""

    p: Array
    w: Array
    lse: Array
    scores: Array
    capped: Array
    biased: Array
    slope: Array
    slope_error: Array
    bend: Array
    bend_error: Array
    by_softcap: Array
    by_softcap_error: Array


def sizes(x: Problem) -> Sizes:
    k = np.repeat(x["k"], x["q"].shape[1] // x["k"].shape[1], 1).swapaxes(-1, -2)
    shape, visible = shape_of(x), visible_of(x)
    s = scale_of(x) * x["q"] @ k
    A = abs(scale_of(x)) * np.abs(x["q"]) @ np.abs(k)
    e_s = U * (x["q"].shape[-1] + 4) * A
    t, e_t, terms = s, e_s, A
    slope = bend = np.ones(shape)
    slope_error = bend_error = by_softcap = by_softcap_error = np.zeros(shape)
    if x["softcap"] is not None:
        z, e_z = s / x["softcap"], e_s / x["softcap"] + U * np.abs(s) / x["softcap"]
        t, e_t = x["softcap"] * np.tanh(z), e_s + 6 * U * np.abs(s)
        bend = np.cosh(z) ** -2.0
        bend_error = bend * (2 * e_z + 16 * U)
        by_softcap = np.abs(np.tanh(z)) + np.abs(z) * bend
        by_softcap_error = e_z + 16 * U * by_softcap
    if x["score_mod"] is not None:
        f, place = x["score_mod"], np.ogrid[tuple(slice(n) for n in shape)]
        steepest = np.broadcast_to(f.steepest(t, e_t, *place), shape)
        slope = np.broadcast_to(f.slope(t, *place), shape)
        slope_error = f.bend * e_t + 4 * U * (1 + np.abs(slope)) * np.maximum(1, np.abs(t))
        e_t = steepest * e_t + f.roundings * U * f.terms(t, *place)
        terms = steepest * A + f.terms(t, *place)
        t = f(t, *place)
    capped = e_t
    if x["bias"] is not None:
        bias = np.where(np.isneginf(x["bias"]), 0, x["bias"])
        t, e_t, terms = t + bias, e_t + U * np.abs(t + bias), terms + np.abs(bias)
    sinks = np.full(shape[1], -np.inf) if x["sinks"] is None else x["sinks"]
    sinks = np.broadcast_to(sinks[:, None, None], (*shape[:3], 1))
    hidden = np.where(visible, t, -np.inf)
    lse = np.logaddexp.reduce(np.concatenate([hidden, sinks], -1), -1, keepdims=True)
    largest = np.where(visible, e_t + 4 * U * terms, 0.0).max(-1, keepdims=True, initial=0)
    largest = np.maximum(largest, 16 * U * np.where(np.isneginf(sinks), 0, np.abs(sinks)))
    p = np.exp(hidden - np.where(np.isneginf(lse), 0, lse))
    w = 2 * largest + (shape[3] + 64) * U
    return Sizes(
        p, w, lse[..., 0], e_s, capped, e_t, np.abs(slope), slope_error, bend, bend_error, by_softcap, by_softcap_error
    )


def bounds(x: Problem) -> dict[str, Array]:
    """For each output, the scores and the weights included, the largest error of one float64 evaluation."""
    group = x["q"].shape[1] // x["k"].shape[1]
    k, v = (np.abs(np.repeat(x[n], group, 1)) for n in "kv")
    q, dout, dlse = (np.abs(x[n]) for n in ("q", "dout", "dlse"))
    (B, H, Lq, D), Lk = q.shape, k.shape[2]
    z, scale = sizes(x), abs(scale_of(x))
    p, w = z.p, z.w
    r = 1.0
    if x["dropout"] is not None:
        r = np.broadcast_to(x["keep"], p.shape) * (1 / (1 - x["dropout"]) if x["dropout"] < 1 else 0.0)
    found = {"out": w * (p * r @ v), "lse": w[..., 0] + 4 * U * np.abs(np.where(np.isneginf(z.lse), 0, z.lse))}
    found |= {"scores": z.scores, "capped": z.capped, "biased": z.biased, "weights": w * p}
    dp = r * (dout @ v.swapaxes(-1, -2))
    delta = (p * dp).sum(-1, keepdims=True)
    dt = p * (dp + delta + dlse[..., None])
    more = 4 * w + U * (B * H * Lq + Lk + D + dout.shape[-1] + 64)
    dc, dc_error = dt * z.slope, dt * (more * z.slope + z.slope_error)
    ds_error = dc_error * z.bend + (dc + dc_error) * z.bend_error
    summed = {
        "dq": scale * ds_error @ k,
        "dk": scale * ds_error.swapaxes(-1, -2) @ q,
        "dv": (more * p * r).swapaxes(-1, -2) @ dout,
    }
    for name in ("dk", "dv"):
        y = summed[name]
        summed[name] = y.reshape(B, H // group, group, *y.shape[2:]).sum(2)
    found |= summed | {"dscale": (ds_error * (q @ k.swapaxes(-1, -2))).sum()}
    if x["softcap"] is not None:
        found["dsoftcap"] = (dc_error * z.by_softcap + (dc + dc_error) * z.by_softcap_error).sum()
    if x["bias"] is not None:
        full = (1,) * (4 - x["bias"].ndim) + x["bias"].shape
        stretched = tuple(axis for axis, n in enumerate(full) if n == 1)
        found["dbias"] = (2 * more * dt).sum(stretched, keepdims=True).reshape(x["bias"].shape)
    if x["sinks"] is not None:
        alive = ~np.isneginf(z.lse[..., None])
        share = np.exp(np.minimum(x["sinks"][:, None, None] - np.where(alive, z.lse[..., None], 0), 0)) * alive
        found["dsinks"] = (2 * more * share * (delta + dlse[..., None])).sum((0, 2, 3))
    return found


def worst_ratio(got: Any, expected: Any, bound: Any) -> float:
    """Largest |got - expected| / bound, where either may be off by the bound; NaN anywhere but in both fails."""
    got, expected = np.asarray(got), np.asarray(expected)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.where(same, 0.0, np.abs(got - expected) / (2 * bound)).max(initial=0.0))
