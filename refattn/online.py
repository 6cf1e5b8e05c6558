"""The online softmax: what a row has seen so far, as three numbers that can be merged.

The state of a row after some keys with scores t_j and values v_j is

    m = max_j t_j,    l = sum_j exp(t_j - m),    o = sum_j exp(t_j - m) v_j

and the states of two disjoint sets of keys merge into that of their union:

    m = max(m1, m2),    l = l1 exp(m1 - m) + l2 exp(m2 - m),    o likewise.

`empty` (m = -inf, l = 0, o = 0) is the identity, and `merge` is associative and commutative up to
rounding, so the keys may be cut and ordered at will: tile by tile (FlashAttention), in parallel
splits (flash-decoding), around a ring.  exp(-inf - -inf), which would be NaN, never happens: where
m is -inf the shift is 0.  A sink is a key with the value 0; it enters once, when a row is
finished, and never in each part.

Arrays: m and l (..., rows), o (..., rows, Dv), all of one floating dtype, which is kept.

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", section 3;
Dao et al. 2022, "FlashAttention", section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["State", "empty", "finish", "join_sink", "merge", "shift_of", "shifted_exp", "update", "weigh"]

Array = np.ndarray[Any, Any]
Exp = Callable[[Array, Array], Array]
"""exp(x - shift)"""
Weigh = Callable[[Array, Array], "tuple[Array, Array]"]
"""(weights, values) -> (row sums, weights @ values)"""


class State(NamedTuple):
    """m and l (..., rows), o (..., rows, Dv)."""

    m: Array
    l: Array  # noqa: E741 - its name in the literature
    o: Array


def empty(rows: int | tuple[int, ...], Dv: int, dtype: Any = np.float64) -> State:
    """The state of rows that have seen nothing."""
    shape = (rows,) if isinstance(rows, int) else rows
    return State(np.full(shape, -np.inf, dtype), np.zeros(shape, dtype), np.zeros((*shape, Dv), dtype))


def shift_of(m: Array) -> Array:
    """What is subtracted from scores: m, and 0 for a row that has seen nothing."""
    return np.where(np.isneginf(m), np.zeros_like(m), m)


def shifted_exp(x: Array, shift: Array) -> Array:
    """exp(x - shift)."""
    with np.errstate(invalid="ignore"):  # inf - inf, where a visible score is infinite, is rightly NaN
        y = x - shift
        return np.asarray(np.exp(y, out=y))


def weigh(weights: Array, values: Array) -> tuple[Array, Array]:
    """The row sums, and weights @ values."""
    return weights.sum(-1), weights @ values


def update(state: State, scores: Array, values: Array, exp: Exp = shifted_exp, weigh: Weigh = weigh) -> State:
    """The state after a further tile: scores (..., rows, keys), -inf where hidden; values (..., keys, Dv).

    `exp` and `weigh` may be replaced, to round as some machine would.

    >>> s = update(empty(1, 1), np.log([[1.0, 3.0]]), np.array([[0.0], [1.0]]))
    >>> out, lse = finish(s)
    >>> out.item(), float(np.exp(lse).item())
    (0.75, 4.0)
    """
    m = np.maximum(state.m, scores.max(-1, initial=-np.inf))
    shift = shift_of(m)
    keep = exp(state.m, shift)
    sums, products = weigh(exp(scores, shift[..., None]), values)
    return State(m, state.l * keep + sums, state.o * keep[..., None] + products)


def merge(a: State, b: State, exp: Exp = shifted_exp) -> State:
    """The state of the keys of both."""
    m = np.maximum(a.m, b.m)
    shift = shift_of(m)
    x, y = exp(a.m, shift), exp(b.m, shift)
    return State(m, a.l * x + b.l * y, a.o * x[..., None] + b.o * y[..., None])


def join_sink(state: State, sink: Any, exp: Exp = shifted_exp) -> State:
    """The state after one more key, of score `sink` (broadcasts to m) and value 0."""
    m = np.asarray(np.broadcast_to(np.asarray(sink, state.m.dtype), state.m.shape))
    one = np.where(np.isneginf(m), np.zeros_like(m), np.ones_like(m))
    return merge(state, State(m, one, np.zeros_like(state.o)), exp)


def finish(state: State, sink: Any = None, exp: Exp = shifted_exp) -> tuple[Array, Array]:
    """(out, lse): o / l and m + log l, after the sink has joined; 0 and -inf where nothing was seen."""
    if sink is not None:
        state = join_sink(state, sink, exp)
    nothing = state.l == 0
    with np.errstate(divide="ignore"):
        lse = state.m + np.log(state.l.astype(np.float64)).astype(state.l.dtype)
    return state.o / np.where(nothing, np.ones_like(state.l), state.l)[..., None], lse
