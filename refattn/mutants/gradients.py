"""A wrong backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..streaming import Rules
from .catalogue import mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@mutant("backward", "cudnn-frontend#384", wants("dq", "dk", "dbias", "dsinks", "dscale", "dsoftcap"))
class delta_missing(Rules):
    """ds = p dp, without the delta that softmax subtracts."""

    def delta(self, out: Array, dout: Array) -> Array:
        return np.zeros_like(super().delta(out, dout))


@mutant(
    "backward", "levanter#449 fla#384 FlagGems#898",
    lambda case: case.H != case.Hkv and wants("dk", "dv")(case), "group_not_summed",
)  # fmt: skip
class dkdv_not_summed_over_group(Rules):
    """dk and dv are those of the last query head of each group."""

    def add_head(self, total: Array, part: Array) -> Array:
        return part


@mutant(
    "backward", "flash-attention#2402 flash-attention#1033",
    lambda case: case.softcap is not None and wants("dq", "dk", "dscale", "dsoftcap")(case), "softcap_slope",
)  # fmt: skip
class softcap_slope_missing(Rules):
    """The factor 1 - tanh² is missing."""

    def slope(self, in_caps: Array) -> Array:
        return np.ones_like(in_caps)


@mutant(
    "backward", "flash-attention#1817",
    lambda case: "lse" in case.want and wants("dq", "dk", "dbias", "dsinks", "dscale", "dsoftcap")(case),
)  # fmt: skip
class dlse_ignored(Rules):
    """The gradient that arrives at lse is dropped."""

    def arriving(self, dlse: Array) -> Array:
        return np.zeros_like(dlse)


@mutant("backward", "triton:tutorials/06-fused-attention", wants("dk"), "grad_scale")
class scale_missing_in_dk(Rules):
    """dk lacks the factor scale."""

    def scale_dk(self, dk: Array, scale: Array) -> Array:
        return dk


@mutant(
    "backward", "attention-gym#20 pytorch#145208",
    lambda case: "dscale" in case.want and case.scale != 1 and (case.scale is not None or case.D > 1), "dscale_missing",
)  # fmt: skip
class dscale_times_scale(Rules):
    """dscale is that of the logarithm of scale: sum ds s for sum ds (q·k)."""

    def dscale(self, ds_qk: Array, scale: Array) -> Array:
        return ds_qk * scale


@mutant("backward", "attention-gym#171 pytorch#145208", wants("dsoftcap"), "dscale_missing")
class dsoftcap_zero(Rules):
    """softcap gets no gradient."""

    def cap_share(self, dc: Array, in_caps: Array, slope: Array) -> Array:
        return np.zeros_like(dc)


@mutant("backward", "flash-attention#2402", wants("dsoftcap"), "dscale_missing")
class dsoftcap_of_the_factor(Rules):
    """dsoftcap is that of the factor before tanh alone: softcap within tanh is forgotten."""

    def cap_share(self, dc: Array, in_caps: Array, slope: Array) -> Array:
        return dc * np.tanh(in_caps)
