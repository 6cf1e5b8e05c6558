"""Each decision of the kernel, by name: `forward` and `backward` are loops that ask these rules.

A rule is one method, so that a kernel with one thing wrong (`refattn.mutants`) is a subclass with
one method.  The rules also hold the arithmetic: all is computed in the accumulators' dtype of the
contract, and rounded where the contract says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import memory, online
from ..case import Cache, Case
from ..dtypes import FORMATS, round_to
from ..online import State
from ..precision import Precision
from ..quantise import Kind, dequantise
from ..rotary import Rotary, rotate, unrotate

__all__ = ["Logits", "Rules", "Schedule", "toward_zero"]

Array = np.ndarray[Any, Any]
Modify = Callable[[Array], Array]
"""score_mod, of the scores of one tile"""


@dataclass(frozen=True)
class Schedule:
    """What an implementer may choose freely, and what honest kernels therefore differ in.

    tile_q x tile_k scores are held at a time.  `order` is that of the key tiles (random: shuffled
    by `seed`).  `splits` > 1 cuts the key tiles into so many parts, each with its own state, merged
    at the end.  `exp` is how exp(x - m) is had:

    - "exp": one subtraction, then e to it, off by no more than 1 ulp;
    - "exp2": exp2 of fma(x, c, -(m c)) with c = log2(e), as GPUs do;
    - "numpy": NumPy's own exp in the accumulators' dtype: in float32 up to 1.8 ulp off, so it wants
      a contract with exp_ulp=4.
    """

    tile_q: int = 256
    tile_k: int = 1024
    order: Literal["forward", "reverse", "random"] = "forward"
    splits: int = 1
    exp: Literal["exp", "exp2", "numpy"] = "exp"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tile_q", "tile_k", "splits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be >= 1")
        for name, known in (("order", ("forward", "reverse", "random")), ("exp", ("exp", "exp2", "numpy"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(known)}")


class Logits(NamedTuple):
    """Of a tile: what enters the softmax, s / softcap if there is one, what score_mod was given if there is one."""

    t: Array
    in_caps: Array | None = None
    before: Array | None = None


class Rules:
    """An honest kernel under the contract `precision`."""

    def __init__(self, precision: Precision, schedule: Schedule) -> None:
        self.precision, self.schedule = self.contract(precision), schedule
        self.dtype = FORMATS[self.precision.accumulate].dtype
        if schedule.tile_k < precision.tile:
            raise ValueError(
                f"tile_k={schedule.tile_k} rescales more often than precision.tile={precision.tile} promises; "
                f"use a tile_k of at least that, or a contract with a smaller tile"
            )

    def contract(self, precision: Precision) -> Precision:
        """What is kept of the contract: all of it."""
        return precision

    # what is handed over

    def read(self, case: Case) -> Case:
        """The case as it is understood."""
        return case

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        """The dense arrays out of the memory that they are handed over in."""
        return memory.take(case, given)

    # what is attended to

    def geometry(self, mask: Any) -> Any:
        return mask

    def key_head(self, h: int, H: int, Hkv: int) -> int:
        return h // (H // Hkv)

    def default_scale(self, D: int) -> float:
        return D**-0.5 if D else 1.0

    def sink(self, sinks: Array, h: int) -> Array | None:
        return sinks[h].astype(self.dtype)

    # what inputs are made of

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        """q, k or v, by name."""
        return self.round(dequantise(codes, scale, kind).astype(self.dtype), self.precision.dequantised)

    def query_positions(self, i: Array, lq: Array, lk: Array) -> Array:
        """Where query i stands among the keys, for the rotation."""
        return i + lk - lq

    def rotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        y = rotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)
        return self.round(y, self.precision.rotated)

    def unrotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        return unrotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)

    def rotated_before(self, case: Case, past: Array) -> Array:
        """Which keys lie in a cache already, rotated; `past` are those from before the first query."""
        return past & isinstance(case.storage, Cache)

    def to_cache(self, turned: Array, plain: Array) -> Array:
        """The keys that are appended, of those after the rotation and those before it."""
        return turned

    # scores

    def products(self, q: Array, k: Array, scale: float) -> Array:
        """scale q kᵀ; (rows, D), (keys, D) -> (rows, keys)."""
        factor = self.dtype.type(scale)
        if self.precision.scaled_q is not None:
            s = self.matmul(self.round(q * factor, self.precision.scaled_q), k.T)
        else:
            s = self.matmul(q, k.T)
            s *= factor
        return self.round(s, self.precision.scores)

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Modify | None = None
    ) -> Logits:
        """What enters the softmax, -inf where hidden, and on what the slopes depend; may overwrite s."""
        s, in_caps = self.capped(s, softcap)
        before = None
        if modify is not None:
            before, s = s, self.round(modify(s), self.precision.scores)
        if bias is not None:
            s = self.round(s + bias, self.precision.scores)
        return Logits(self.hide(s, visible), in_caps, before)

    def place(self, b: Any, h: Any, i: Any, j: Any) -> tuple[Any, Any, Any, Any]:
        """What score_mod is told of a score's place."""
        return b, h, i, j

    def capped(self, s: Array, softcap: float | None) -> tuple[Array, Array | None]:
        if softcap is None:
            return s, None
        cap = self.dtype.type(softcap)
        in_caps = s / cap
        return cap * np.tanh(in_caps), in_caps

    def hide(self, s: Array, visible: Array | None) -> Array:
        if visible is not None:
            np.copyto(s, -np.inf, where=~visible)
        return s

    # the softmax, online

    def start(self, rows: int, Dv: int) -> State:
        return online.empty(rows, Dv, self.dtype)

    def exp(self, x: Array, shift: Array) -> Array:
        """exp(x - shift)."""
        if self.schedule.exp == "exp2":
            log2e = self.dtype.type(np.log2(np.e))
            if x.ndim == 1:  # of maxima, when a row is rescaled, the difference comes first
                return np.asarray(np.exp2((x - shift) * log2e))
            with np.errstate(over="ignore"):
                top = shift * log2e
            fused = x.astype(np.float64) * np.float64(log2e) - top.astype(np.float64)
            fused = np.where(np.isinf(top), x - shift, fused)  # near the lowest number: 0, or far below
            return np.asarray(np.exp2(fused.astype(self.dtype)))
        if self.schedule.exp == "numpy" or self.dtype == np.float64:
            return online.shifted_exp(x, shift)
        return np.asarray(np.exp((x - shift).astype(np.float64)).astype(self.dtype))

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        """The state after a tile of logits t (rows, keys) and values v (keys, Dv)."""
        return online.update(state, t, v, self.exp, lambda p, v: self.weigh(p, v, visible, kept))

    def weigh(
        self, p: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> tuple[Array, Array]:  # fmt: skip
        """The row sums, which know nothing of dropout, and the product with the values."""
        rounded = self.round(p, self.precision.weights)
        summed = rounded if self.precision.sum_rounded_weights else p
        return summed.sum(-1), self.selected(self.drop(rounded, kept), v, visible)

    def drop(self, p: Array, kept: Array | None) -> Array:
        return p if kept is None else np.where(kept, p, 0)

    def undropped(self, dropout: float | None) -> Array:
        """What makes up for the weights that are dropped: 1 / (1 - dropout)."""
        return self.dtype.type(1 if dropout is None else 0 if dropout == 1 else 1 / (1 - dropout))

    def stages(self, scores: Array, capped: Array, biased: Array, weights: Array) -> dict[str, Array]:
        """A tile of each matrix that a case may ask for, by name."""
        return {"scores": scores, "capped": capped, "biased": biased, "weights": weights}

    def merge(self, a: State, b: State) -> State:
        return online.merge(a, b, self.exp)

    def finish(self, state: State) -> tuple[Array, Array]:
        """out and lse of rows that have seen all, the sink included."""
        return online.finish(state)

    def lse(self, lse: Array) -> Array:
        return lse

    # gradients

    def delta(self, out: Array, dout: Array) -> Array:
        """What softmax subtracts: sum_j p_j dp_j = out · dout, for each row."""
        return (out * dout).sum(-1)

    def from_forward(self, shift: Array, factor: Array) -> tuple[Array, Array]:
        """What the backward takes a head's weights from: p = exp(t - shift) * factor, (Lq,) each."""
        return shift, factor

    def arriving(self, dlse: Array) -> Array:
        """The gradient that arrives at lse."""
        return dlse

    def kept_again(self, kept: Array) -> Array:
        """Which weights the backward takes for kept: those that the forward kept."""
        return kept

    def through_dropout(self, dp: Array, kept: Array, undropped: Array) -> Array:
        """The gradient of the weights, from that of the weights that were dropped and scaled."""
        return self.drop(dp, kept) * undropped

    def through_mod(self, dt: Array, slope: Array) -> Array:
        """The gradient of the scores before score_mod."""
        return dt * slope

    def slope(self, in_caps: Array) -> Array:
        """d(softcap tanh(s / softcap)) / ds = 1 - tanh² = 1 / cosh²: the first, as kernels have it, cancels."""
        if self.dtype == np.float64:
            return np.asarray(np.cosh(in_caps) ** -2.0)
        tanh = np.tanh(in_caps)
        return np.asarray(1 - tanh * tanh)

    def cap_share(self, dc: Array, in_caps: Array, slope: Array) -> Array:
        """What each score adds to dsoftcap, z = s / softcap."""
        return dc * (np.tanh(in_caps) - np.where(slope == 0, 0, in_caps * slope))

    def scale_dq(self, dq: Array, scale: Array) -> Array:
        return dq * scale

    def scale_dk(self, dk: Array, scale: Array) -> Array:
        return dk * scale

    def dscale(self, ds_qk: Array, scale: Array) -> Array:
        """dscale from the sum of ds times q·k."""
        return ds_qk

    def add_up(self, name: str, so_far: Array, part: Array) -> Array:
        """A sum with one more term: dq, dk, dv by tiles, dbias and dsinks over what they broadcast over."""
        return so_far + part

    def gradient_head(self, h: int, H: int, Hkv: int) -> int:
        """The key head to whose dk and dv a query head adds."""
        return self.key_head(h, H, Hkv)

    def add_head(self, total: Array, part: Array) -> Array:
        """dk and dv of a key head: the sum over the query heads that share it."""
        return total + part

    # arithmetic

    def matmul(self, w: Array, x: Array) -> Array:
        """w @ x, (M, N) by (N, D); where the contract truncates, 8 products at a time, as tensor cores do."""
        if self.precision.accumulate_rounding == "nearest":
            return w @ x
        total = np.zeros((len(w), x.shape[1]), self.dtype)
        wide, x = w.astype(np.float64), x.astype(np.float64)
        for n in range(0, len(x), 8):
            total = toward_zero(total + wide[:, n : n + 8] @ x[n : n + 8], self.dtype)
        return total

    def selected(self, w: Array, x: Array, visible: Array | None) -> Array:
        """w @ x, where the x of a pair that is hidden takes no part: there 0 * NaN is 0.

        w (M, N), 0 where hidden; x (N, D); visible (M, N), None where all is.
        """
        if visible is None:
            return self.matmul(w, x)
        finite = np.isfinite(x)
        if finite.all():
            return self.matmul(w, x)
        y = self.matmul(w, np.where(finite, x, 0))
        for n in np.flatnonzero(~finite.all(1)):
            rows = np.flatnonzero(visible[:, n])
            columns = np.flatnonzero(~finite[n])
            y[np.ix_(rows, columns)] += w[rows, n, None] * x[n, columns]
        return y

    def round(self, x: Array, name: str | None) -> Array:
        """`x` rounded to the format and back in the accumulators' dtype; None: x itself."""
        if name is None or FORMATS[name].bits >= FORMATS[self.precision.accumulate].bits:
            return x
        if x.dtype == np.float32 and FORMATS[name].overflow == "inf":  # a direct cast rounds once
            with np.errstate(over="ignore"):
                return np.asarray(x.astype(FORMATS[name].dtype).astype(np.float32))
        return round_to(x, name).astype(self.dtype)

    def store(self, x: Array, name: str) -> Array:
        """`x` as an array of the format, rounded once."""
        y = round_to(x, name)
        if self.precision.flush_subnormal:
            y = np.where(np.abs(y) < FORMATS[name].smallest_normal, np.copysign(0.0, y), y)
        return y.astype(FORMATS[name].dtype)


def toward_zero(x: Array, dtype: Any) -> Array:
    """x in a narrower dtype, truncated."""
    y = x.astype(dtype)
    return np.where(np.abs(y) > np.abs(x), np.nextafter(y, y.dtype.type(0)), y)
