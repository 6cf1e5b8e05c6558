"""A wrong backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import GRADIENTS, Case
from ..masks import BlockSparse, Mask
from ..streaming import Rules
from .catalogue import TILES, Kernel, Wrapped, mutant, wants
from .masks import Seen, rewritten

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _lopsided(case: Case) -> bool:
    return case.backward and "BlockSparse(" in repr(case.mask)


def _exchanged(m: Mask) -> Mask:
    drawn = isinstance(m, BlockSparse)
    return Seen(m, lambda m, b, h, i, j, lq, lk: m(b, h, j, i, lk, lq)) if drawn else m


@mutant(
    "backward", "cudnn-frontend#384", wants("dq", "dk", "dbias", "dsinks", "dscale", "dsoftcap"), caught="grad-1x1-f32",
)  # fmt: skip
class delta_missing(Rules):
    """ds = p dp, without the delta that softmax subtracts."""

    def delta(self, out: Array, dout: Array) -> Array:
        return np.zeros_like(super().delta(out, dout))


@mutant(
    "backward", "levanter#449 fla#384 FlagGems#898", lambda case: case.H != case.Hkv and wants("dk", "dv")(case),
    "group_not_summed", caught="gathered-grad-bf16",
)  # fmt: skip
class dkdv_not_summed_over_group(Rules):
    """dk and dv are those of the last query head of each group."""

    def add_head(self, total: Array, part: Array) -> Array:
        return part


@mutant(
    "backward", "flash-attention#2402 flash-attention#1033",
    lambda case: case.softcap is not None and wants("dq", "dk", "dscale", "dsoftcap")(case), "softcap_slope",
    caught="dsoftcap-far-below-f64",
)  # fmt: skip
class softcap_slope_missing(Rules):
    """The factor 1 - tanh² is missing."""

    def slope(self, in_caps: Array) -> Array:
        return np.ones_like(in_caps)


@mutant(
    "backward", "flash-attention#1817",
    lambda case: "lse" in case.want and wants("dq", "dk", "dbias", "dsinks", "dscale", "dsoftcap")(case),
    caught="dscale-alone-f32",
)  # fmt: skip
class dlse_ignored(Rules):
    """The gradient that arrives at lse is dropped."""

    def arriving(self, dlse: Array) -> Array:
        return np.zeros_like(dlse)


@mutant("backward", "triton:tutorials/06-fused-attention", wants("dk"), "grad_scale", caught="grad-scale-0-f32")
class scale_missing_in_dk(Rules):
    """dk lacks the factor scale."""

    def scale_dk(self, dk: Array, scale: Array) -> Array:
        return dk


@mutant(
    "backward", "attention-gym#20 pytorch#145208",
    lambda case: "dscale" in case.want and case.scale != 1 and (case.scale is not None or case.D > 1), "dscale_missing",
    caught="dscale-dropout-f64",
)  # fmt: skip
class dscale_times_scale(Rules):
    """dscale is that of the logarithm of scale: sum ds s for sum ds (q·k)."""

    def dscale(self, ds_qk: Array, scale: Array) -> Array:
        return ds_qk * scale


@mutant("backward", "attention-gym#171 pytorch#145208", wants("dsoftcap"), "dscale_missing", caught="dsoftcap-f32")
class dsoftcap_zero(Rules):
    """softcap gets no gradient."""

    def cap_share(self, dc: Array, in_caps: Array, slope: Array) -> Array:
        return np.zeros_like(dc)


@mutant("backward", "flash-attention#2402", wants("dsoftcap"), "dscale_missing", caught="dsoftcap-f32")
class dsoftcap_of_the_factor(Rules):
    """dsoftcap is that of the factor before tanh alone: softcap within tanh is forgotten."""

    def cap_share(self, dc: Array, in_caps: Array, slope: Array) -> Array:
        return dc * np.tanh(in_caps)


@mutant(
    "backward", "flash-attention#2402 flash-attention#1033",
    lambda case: case.softcap is not None and wants("dq", "dk", "dscale", "dsoftcap")(case), "softcap_slope",
    caught="dsoftcap-far-below-f64",
)  # fmt: skip
class softcap_slope_of_scores(Rules):
    """The factor is 1 - (s / softcap)², without tanh."""

    def slope(self, in_caps: Array) -> Array:
        return np.asarray(1 - in_caps * in_caps)


@mutant(
    "backward", "triton:tutorials/06-fused-attention", lambda case: wants("dq")(case) and _scaled(case), "grad_scale",
    caught="grad-scale-0-f32", shows="dq",
)  # fmt: skip
class scale_missing_in_dq(Rules):
    """dq lacks the factor scale."""

    def scale_dq(self, dq: Array, scale: Array) -> Array:
        return dq


def _scaled(case: Case) -> bool:
    return case.scale != 1 and (case.scale is not None or case.D > 1)


@mutant(
    "backward", "triton:tutorials/06-fused-attention", wants("dq"), "grad_scale", caught="dq-alone-bf16", shows="dq",
)  # fmt: skip
class dq_without_ln2(Rules):
    """dq is that of base 2: it lacks the factor ln 2."""

    def scale_dq(self, dq: Array, scale: Array) -> Array:
        return super().scale_dq(dq, scale) * self.dtype.type(np.log2(np.e))


@mutant(
    "backward", "triton:tutorials/06-fused-attention", lambda case: wants("dk")(case) and _scaled(case), "grad_scale",
    caught="dscale-f32", shows="dk",
)  # fmt: skip
class scale_twice_in_dk(Rules):
    """dk has the factor scale twice: q was scaled already."""

    def scale_dk(self, dk: Array, scale: Array) -> Array:
        return super().scale_dk(dk, scale) * scale


@mutant(
    "backward", "cudnn-frontend#384",
    lambda case: case.Lq > 1 and wants("dq", "dk", "dbias", "dsinks", "dscale", "dsoftcap")(case), "delta_missing",
    caught="grad-2x3-f64",
)  # fmt: skip
class delta_of_next_row(Rules):
    """Each row has the delta of the next."""

    def delta(self, out: Array, dout: Array) -> Array:
        return np.roll(super().delta(out, dout), -1)


@mutant(
    "backward", "cudnn-frontend#384", wants("dq", "dk", "dbias", "dsinks", "dscale", "dsoftcap"), "delta_missing",
    caught="grad-1x1-f32",
)  # fmt: skip
class delta_added(Rules):
    """delta is added, and not subtracted."""

    def delta(self, out: Array, dout: Array) -> Array:
        return -super().delta(out, dout)


@mutant(
    "backward", "hpc-ops#6", lambda case: case.B * case.H > 1 and case.backward, "lse_head",
    caught="packed-lse-grad-f64", shows="dq dk dv dbias dsinks dscale dsoftcap",
)  # fmt: skip
class lse_of_head_before(Rules):
    """The backward takes the weights of a head from the lse of the head before."""

    before: tuple[Array, Array] | None = None

    def from_forward(self, shift: Array, factor: Array) -> tuple[Array, Array]:
        found, self.before = self.before or (shift, factor), (shift, factor)
        return found


@mutant(
    "backward", "cudnn-frontend#421", lambda case: case.sinks is not None and case.backward, "sinks_dropped",
    caught="grad-sinks-f64",
)  # fmt: skip
class backward_without_sink(Rules):
    """The backward takes the weights from an lse that lacks the sink, which the forward counted."""

    own: Array | None = None

    def sink(self, sinks: Array, h: int) -> Array | None:
        self.own = super().sink(sinks, h)
        return self.own

    def from_forward(self, shift: Array, factor: Array) -> tuple[Array, Array]:
        if self.own is None:
            return shift, factor
        keys = 1 - self.exp(np.full_like(shift, self.own), shift) * factor
        return shift + np.log(np.where(keys > 0, keys, 1)), factor


@mutant(
    "backward", "flash-attention#2623", _lopsided, "block_mask_scaled", caught="blocks-x-out-f32-f16",
    shows="dq dk dv dbias dsinks dscale dsoftcap",
)  # fmt: skip
class block_mask_transposed_backward(Wrapped):
    """The backward reads the block mask of the forward with its rows and columns exchanged."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if not _lopsided(case):
            return y
        other = dataclasses.replace(case, mask=rewritten(case.mask, _exchanged))
        return y | {n: x for n, x in Kernel.__call__(self, other, given).items() if n in GRADIENTS}


@mutant(
    "backward", "flash-attention#359 PaddlePaddle/flash-attention#134",
    lambda case: case.Lk > TILES.tile_k and wants("dq")(case), "grad_16_bit", caught="grad-v-of-k-bf16", shows="dq",
)  # fmt: skip
class dq_of_last_tile(Rules):
    """dq of a tile of keys is written over that of the tiles before, and not added."""

    def add_up(self, name: str, so_far: Array, part: Array) -> Array:
        return part if name == "dq" else super().add_up(name, so_far, part)


@mutant(
    "backward", "flash-attention#359", lambda case: case.Lq > TILES.tile_q and wants("dk", "dv")(case),
    "tail_backward", caught="grad-tile-65x127-f32", shows="dk dv",
)  # fmt: skip
class dkdv_of_last_tile(Rules):
    """dk and dv of a tile of queries are written over those of the tiles before, and not added."""

    def add_up(self, name: str, so_far: Array, part: Array) -> Array:
        return part if name in ("dk", "dv") else super().add_up(name, so_far, part)


@mutant(
    "backward", "jax#30593 flash-sparse#190", lambda case: "dbias" in case.want and _broadcasts(case),
    "dbias_not_reduced", caught="packed-bias-grad-f32", shows="dbias",
)  # fmt: skip
class dbias_of_last(Rules):
    """dbias is not summed over what the bias was broadcast over: it is that of the last tile."""

    def add_up(self, name: str, so_far: Array, part: Array) -> Array:
        return part if name == "dbias" else super().add_up(name, so_far, part)


def _broadcasts(case: Case) -> bool:
    """Whether an entry of the bias belongs to several tiles."""
    tiles = case.B, case.H, -(-case.Lq // TILES.tile_q), -(-case.Lk // TILES.tile_k)
    return any(n == 1 < several for n, several in zip(case.bias_shape, tiles, strict=True))


@mutant(
    "backward", "cudnn-frontend:dSink-tests", lambda case: "dsinks" in case.want and case.B > 1, "dsinks_not_reduced",
    caught="empty-rows-sinks-grad-f64", shows="dsinks",
)  # fmt: skip
class dsinks_of_last_entry(Rules):
    """dsinks is not summed over the batch: it is that of the last entry."""

    def add_up(self, name: str, so_far: Array, part: Array) -> Array:
        return part if name == "dsinks" else super().add_up(name, so_far, part)


@mutant("backward", "", wants("dv"), "group_not_summed", caught="gathered-grad-bf16", shows="dv")
class dv_negative(Rules):
    """dv has the other sign."""

    def add_up(self, name: str, so_far: Array, part: Array) -> Array:
        return super().add_up(name, so_far, -part if name == "dv" else part)


@mutant("backward", "", wants("dq"), "grad_scale", caught="dq-alone-bf16", shows="dq")
class dq_zero(Rules):
    """dq is 0, as if nothing depended on q."""

    def scale_dq(self, dq: Array, scale: Array) -> Array:
        return np.zeros_like(dq)
