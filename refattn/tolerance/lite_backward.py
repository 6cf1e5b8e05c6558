"""The cheap bound of gradients: `backward` without ties, of many heads at once.

Every part of `backward` grows with the forward's radii and with ties, so from those of `lite` and without
ties it is no looser.  Nor is it rigorous for terms of 0, which in the other form may be rounding errors.  Radii
are shortened likewise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .backward import EVERYTHING, Bound, _blocks, _Columns, _columns, _dk_dv_sums, _dq_sums, _dsink, _Sum
from .lite_radii import SHORTER
from .pairs import Head, Keys, delta_errors, pairs, rows_of, slopes
from .ties import NoTies

__all__ = ["LiteBackward", "backward_lite"]

Array = np.ndarray[Any, Any]


class LiteBackward(NamedTuple):
    """dq (B, H, Lq, D), dk (B, Hkv, Lk, D), dv (B, Hkv, Lk, Dv); dsink (B, H), a value and its rigorous error."""

    dq: Bound
    dk: Bound
    dv: Bound
    dsink: tuple[Array, Array]


def backward_lite(h: Head, g: Keys, group: int) -> LiteBackward:
    """Bounds of the gradients of heads; arrays (B, H, ...), sinks (H, 1, 1), those of keys repeated for each head.

    `group` heads that follow one another share a key head.

    dscale and dsoftcap have no cheap form.
    """
    c, precision, none = g.c, g.precision, NoTies()
    B, H, Lq, _ = h.q.shape

    def folded(x: Array) -> Array:
        """(B, H, n, m) -> (B, Hkv, group n, m): the rows of all heads that share a key head."""
        return x.reshape(B, H // group, group * x.shape[-2], x.shape[-1])

    with np.errstate(all="ignore"):
        r = rows_of(h)
        p = pairs(h, r, g, EVERYTHING, EVERYTHING)
        delta_errors(p, h, r, EVERYTHING, none, c)
        s = slopes(p, h, r, g, EVERYTHING)
        if h.on_dt is not None:
            h.on_dt(EVERYTHING, s.dT, s.e_dT)
        seen = np.broadcast_to(p.visible, p.P.shape)
        dq = _Sum(*_dq_sums(p, s, none, h, r, g, EVERYTHING)).finish(
            seen.sum(-1, keepdims=True), _blocks(g.k.shape[-2], precision.grad_k_block), np.zeros(()), c, g.scale, 0.0
        )
        of_head = _columns(p, s, r, c)
        x = _Columns(*(folded(a.swapaxes(-1, -2)).swapaxes(-1, -2) for a in of_head))
        one_of_group = Keys(g.k[:, ::group], g.v[:, ::group], g.scale, g.softcap, precision, c)
        of_dk, of_dv = _dk_dv_sums(x, none, folded(h.q), folded(h.dout), None, one_of_group, h.extras.rough)
        apart_k = apart_v = np.zeros(())
        if precision.grad_per_head:
            each = (abs(g.scale) * np.abs(of_head.dS @ h.q), np.abs(of_head.kept @ h.dout))
            apart_k, apart_v = (a.reshape(B, H // group, group, *a.shape[2:]).sum(2) for a in each)
        count, blocks = x.visible.sum(-1, keepdims=True), _blocks(Lq, precision.grad_q_block, group)
        dk = _Sum(*of_dk).finish(count, blocks, apart_k, c, g.scale, 0.0)
        dv = _Sum(*of_dv).finish(count, blocks, apart_v, c, 1.0, 0.0)
        return LiteBackward(_shortened(dq), _shortened(dk), _shortened(dv), _dsink(h, r, c))


def _shortened(x: Bound) -> Bound:
    return Bound(x.value, x.rigorous * SHORTER, x.sharp * SHORTER)
