"""The backward of one head, FlashAttention-2's: the weights are had again from each row's lse.

With p = exp(t - lse), delta = out · dout (its own out, as stored) and dp = dout vᵀ, tile by tile

    dt = p (dp - delta + dlse),   dc = dt * slope of score_mod,   ds = dc * slope of the softcap,
    dv += pᵀ dout,   dq += scale ds k,   dk += scale dsᵀ q,   dbias += dt,
    dscale += sum q (ds k),   dsoftcap += sum dc (tanh z - z slope),   z = s / softcap,

p and ds rounded as the contract says before the products; under dropout p of dv and dp are multiplied
by keep / (1 - dropout).  Dao 2023, "FlashAttention-2", algorithm 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arguments import Arguments
from .forward import Head, Rows, key_tiles, tiles
from .rules import Rules

__all__ = ["Sums", "backward"]

Array = np.ndarray[Any, Any]


class Sums:
    """The gradients so far, in the accumulators' dtype."""

    def __init__(self, x: Arguments) -> None:
        self.dq, self.dk, self.dv = (np.zeros(a.shape, x.dtype) for a in (x.q, x.k, x.v))
        self.dbias = None if x.bias is None else np.zeros(x.bias.shape, x.dtype)
        self.dsinks = None if x.sinks is None else np.zeros(x.H, x.dtype)
        self.dscale = self.dsoftcap = x.dtype.type(0)

    def add_bias(self, rules: Rules, dt: Array, b: int, h: int, rows: slice, keys: slice) -> None:
        """Adds a tile, summed over the dimensions that the bias was broadcast over."""
        if self.dbias is None:
            return
        dbias = self.dbias.reshape((1,) * (4 - self.dbias.ndim) + self.dbias.shape)
        head = dbias[b if dbias.shape[0] > 1 else 0, h if dbias.shape[1] > 1 else 0]
        if head.shape[0] == 1:
            dt, rows = dt.sum(0, keepdims=True), slice(0, 1)
        if head.shape[1] == 1:
            dt, keys = dt.sum(1, keepdims=True), slice(0, 1)
        head[rows, keys] = rules.add_up("dbias", head[rows, keys], dt)


def backward(head: Head, done: Rows, out: Array, dout: Array, dlse: Array, sums: Sums) -> None:
    """Adds the gradients of one head; out, dout (Lq, Dv) and dlse (Lq,) in the accumulators' dtype."""
    rules, x, b, h = head.rules, head.x, head.b, head.h
    contract = rules.precision
    scale, undropped = x.dtype.type(head.scale), rules.undropped(x.dropout)
    dq, dk, dv = np.zeros_like(head.q), np.zeros_like(head.k), np.zeros_like(head.v)

    shift, factor = rules.from_forward(done.shift, done.factor)
    alive = ~np.isneginf(done.lse)
    delta = np.where(done.seen, rules.delta(out, dout), 0)  # a row that sees a sink alone has no use of dout
    incoming = np.where(alive, rules.arriving(dlse), 0) - delta
    if sums.dsinks is not None and head.sink is not None:
        share = np.where(alive, rules.exp(head.sink, shift) * factor, 0)
        sums.dsinks[h] = rules.add_up("dsinks", sums.dsinks[h], np.where(alive, share * incoming, 0).sum())

    for rows in tiles(x.Lq, contract.grad_q_block or rules.schedule.tile_q):
        for keys in key_tiles(x.Lk, rules.schedule, contract.grad_k_block):
            tile = head.logits(rows, keys)
            if tile is None:
                continue
            (t, in_caps, before), visible, kept = tile
            kept = None if kept is None else rules.kept_again(kept)
            p = rules.exp(t, shift[rows, None])
            if x.dtype == np.float64:
                p *= factor[rows, None]
            dt = rules.matmul(dout[rows], head.v[keys].T)
            if kept is not None:
                dt = rules.through_dropout(dt, kept, undropped)
            dt += incoming[rows, None]
            dt *= p
            if visible is not None:
                np.copyto(p, 0, where=~visible)
                np.copyto(dt, 0, where=~visible)
            sums.add_bias(rules, dt, b, h, rows, keys)
            dc = dt
            if before is not None:
                dc = _hidden_is_0(rules.through_mod(dt, head.slope_of_mod(before, rows, keys)), visible)
            ds = dc
            if in_caps is not None:
                slope = rules.slope(in_caps)
                ds = _hidden_is_0(dc * slope, visible)
                sums.dsoftcap += _hidden_is_0(rules.cap_share(dc, in_caps, slope), visible).sum()
            p, ds = rules.round(p, contract.weights), rules.round(ds, contract.weights)
            across = None if visible is None else visible.T
            part_v = rules.selected(rules.drop(p, kept).T, dout[rows], across)
            part_k = rules.scale_dk(rules.selected(ds.T, head.q[rows], across), scale)
            part_q = rules.selected(ds, head.k[keys], visible)
            sums.dscale += rules.dscale(np.where(done.seen[rows, None], part_q * head.q[rows], 0).sum(), scale)
            part_q = rules.scale_dq(part_q, scale)
            part_v = part_v if kept is None else part_v * undropped
            dv[keys] = _add(rules, "dv", dv[keys], part_v, contract.grad_q_block)
            dk[keys] = _add(rules, "dk", dk[keys], part_k, contract.grad_q_block)
            dq[rows] = _add(rules, "dq", dq[rows], part_q, contract.grad_k_block)
    sums.dq[b, h] = dq
    own = rules.gradient_head(h, x.H, x.Hkv)
    for total, part in ((sums.dk, dk), (sums.dv, dv)):
        total[b, own] = rules.add_head(total[b, own], part)


def _hidden_is_0(x: Array, visible: Array | None) -> Array:
    return x if visible is None else np.where(visible, x, 0)


def _add(rules: Rules, name: str, total: Array, part: Array, block: int) -> Array:
    """total + part; accumulated in the output's dtype where the contract has blocks."""
    return rules.round(rules.add_up(name, total, part), rules.precision.out if block else None)
