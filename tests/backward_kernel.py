"""A FlashAttention-2-like backward in NumPy, and the same with something in its source replaced: a planted bug.

Tiles of keys outside, heads of the group and tiles of rows inside; delta and lse are made beforehand, dq is added up
in memory, dk and dv in accumulators.
"""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from refattn.case import Case, Dense, Packed
from refattn.dtypes import FORMATS, round_to
from refattn.implementation import implementation
from refattn.memory import give_answer, take
from refattn.precision import Precision, preset

__all__ = ["planted", "supports"]

OUTPUTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dscale", "dsoftcap")
ROWS, KEYS = 16, 32


def attention(case: Case, x: Mapping[str, Any]) -> dict[str, Any]:
    acc = np.dtype("float64" if case.dtype == "float64" else "float32").type
    low = case.dtype if case.dtype in ("float16", "bfloat16") else None
    group, cap = case.H // case.Hkv, case.softcap
    scale = acc(case.scale if case.scale is not None else case.D**-0.5)
    kept = acc(1 / (1 - (case.dropout or 0.0)))
    q, k, v = (x[n].astype(acc) for n in "qkv")
    bias = np.broadcast_to(x["bias"], (case.B, case.H, case.Lq, case.Lk)).astype(acc) if "bias" in x else None
    sinks, keep = x.get("sinks"), x.get("keep")
    every = np.broadcast_to(case.visibility.tile(), (case.B, case.H, case.Lq, case.Lk))
    out, lse = np.zeros((case.B, case.H, case.Lq, case.Dv), acc), np.full((case.B, case.H, case.Lq), -np.inf, acc)
    sums = np.ones_like(lse)

    def scores(b: int, h: int, rows: slice, keys: slice) -> tuple[Any, Any, Any]:
        qk = q[b, h, rows] @ k[b, h // group, keys].T
        s = qk * scale
        t = s if cap is None else cap * np.tanh(s / cap)
        return qk, s, t if bias is None else t + bias[b, h, rows, keys]

    for b in range(case.B):
        lq, lk = (slice(0, lens[b]) for lens in case.lengths)
        for h in range(case.H):
            seen = every[b, h, lq, lk]
            t = np.where(seen, scores(b, h, lq, lk)[2], -np.inf)
            m = t.max(-1, initial=-np.inf if sinks is None else sinks[h])
            m = np.where(m == -np.inf, 0, m)
            p = np.exp(t - m[:, None])
            l = p.sum(-1) + (0 if sinks is None else np.exp(acc(sinks[h]) - m))
            lse[b, h, lq], sums[b, h, lq] = m + np.log(l), l
            p = p if keep is None else np.where(keep[b, h, lq, lk], p, 0)
            p = p if low is None else round_to(p, low).astype(acc)
            out[b, h, lq] = p @ v[b, h // group, lk] / np.where(l == 0, 1, l)[:, None] * kept
    y = {"out": out.astype(FORMATS[case.out_dtype].dtype), "lse": lse}
    if not case.backward:
        return y
    dout, dlse = x["dout"].astype(acc), x.get("dlse")
    lse = np.where(lse == -np.inf, 0, lse)
    delta = (out * dout).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    dq, dk, dv = (np.zeros_like(a) for a in (q, k, v))
    dbias, dsinks = np.zeros(case.bias_shape if case.bias else (), acc), np.zeros(case.H, acc)
    dscale, dsoftcap = acc(0), acc(0)
    for b in range(case.B):
        lq, lk = (lens[b] for lens in case.lengths)
        for hkv, j0 in product(range(case.Hkv), range(0, lk, KEYS)):
            j1 = min(lk, j0 + KEYS)
            dk_tile, dv_tile = np.zeros_like(k[b, hkv, j0:j1]), np.zeros_like(v[b, hkv, j0:j1])
            for h, i0 in product(range(hkv * group, (hkv + 1) * group), range(0, lq, ROWS)):
                i1 = min(lq, i0 + ROWS)
                seen = every[b, h, i0:i1, j0:j1]
                qk, s, t = scores(b, h, slice(i0, i1), slice(j0, j1))
                p = np.where(seen, np.exp(t - lse[b, h, i0:i1, None]), 0)
                dp = dout[b, h, i0:i1] @ v[b, hkv, j0:j1].T
                dropped = p
                if keep is not None:
                    mask = keep[b, h, i0:i1, j0:j1]
                    dropped, dp = np.where(mask, p * kept, 0), np.where(mask, dp * kept, 0)
                dv_tile += dropped.T @ dout[b, h, i0:i1]
                ds = p * (dp - delta[b, h, i0:i1, None])
                if bias is not None:
                    full = np.zeros((1, 1, case.Lq, case.Lk), acc)
                    full[..., i0:i1, j0:j1] = ds
                    axes = tuple(a for a in (2, 3) if case.bias_shape[a] == 1)
                    dbias[b % case.bias_shape[0], h % case.bias_shape[1]] += full.sum(axes, keepdims=True)[0, 0]
                if cap is not None:
                    tanh = np.tanh(s / cap)
                    slope = 1 - tanh * tanh
                    dsoftcap += (ds * (tanh - s / cap * slope)).sum()
                    ds = ds * slope
                dscale += (ds * qk).sum()
                dq[b, h, i0:i1] += ds @ k[b, hkv, j0:j1] * scale
                dk_tile += ds.T @ q[b, h, i0:i1]
            dk[b, hkv, j0:j1], dv[b, hkv, j0:j1] = dk_tile * scale, dv_tile
        if sinks is not None:
            dsinks -= (np.exp(sinks[:, None].astype(acc) - lse[b, :, :lq]) * delta[b, :, :lq]).sum(-1)
    y |= {n: a.astype(x[n[1:]].dtype) for n, a in (("dq", dq), ("dk", dk), ("dv", dv))}
    y |= {n: a.astype(x[n[1:]].dtype) for n, a in (("dbias", dbias), ("dsinks", dsinks)) if n[1:] in x}
    return y | {"dscale": dscale, "dsoftcap": dsoftcap}


def supports(case: Case) -> str | None:
    plain = case.D > 0 and case.quant is None and case.rotary is None and case.score_mod is None and case.dropout != 1
    if not plain or not isinstance(case.storage, (Dense, Packed)) or not case.want <= set(OUTPUTS):
        return "of a dense or packed problem the backward alone"
    return None if "poisoned" not in case.family else "what is hidden takes part, times 0"


def precision(case: Case) -> Precision:
    return replace(preset(case.dtype, case.out_dtype), weights_from_lse=True, source="weights are exp(t - lse)")


def planted(name: str, *changes: tuple[str, str]) -> Any:
    """The kernel in whose source some text, which must be there, is replaced by another."""
    source = inspect.getsource(attention)
    for old, new in changes:
        if old not in source:
            raise ValueError(f"{name}: {old!r} is not in the source")
        source = source.replace(old, new)
    space = dict(globals())
    exec(compile("from __future__ import annotations\n" + source, name, "exec"), space)
    kernel: Callable[[Case, Mapping[str, Any]], dict[str, Any]] = space["attention"]

    @implementation(name, outputs=OUTPUTS, supports=supports, precision=precision)
    def called(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            y = give_answer(case, kernel(case, take(case, given)))
        return {n: y[n] for n in case.want}

    return called
