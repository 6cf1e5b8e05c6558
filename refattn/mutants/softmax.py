"""A wrong softmax: the running maximum, sum and output, from tile to tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import online
from ..case import Case
from ..online import State
from ..streaming import Logits, Rules
from .catalogue import TILES, always, hides, mutant

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _many_tiles(case: Case) -> bool:
    return case.Lk > TILES.tile_k


@mutant("online", "flash-attention#991 CUDATutorial#69", _many_tiles, caught="rising-bf16")
class missing_rescale(Rules):
    """The output so far is not multiplied by exp(m_old - m_new) when the maximum grows."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state._replace(o=np.zeros_like(state.o)), t, v, visible, kept)
        return after._replace(o=after.o + state.o)


@mutant("online", "CUDATutorial#69", _many_tiles, "missing_rescale", caught="rising-bf16")
class sum_not_rescaled(Rules):
    """The row sum so far is not multiplied by exp(m_old - m_new) when the maximum grows."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state._replace(l=np.zeros_like(state.l)), t, v, visible, kept)
        return after._replace(l=after.l + state.l)


@mutant("online", "flash-attention#991", _many_tiles, "missing_rescale", caught="rising-bf16")
class rescale_squared(Rules):
    """The output so far is multiplied by exp(m_old - m_new) twice."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        m = np.maximum(state.m, t.max(-1, initial=-np.inf))
        keep = self.exp(state.m, online.shift_of(m))
        return super().update(state._replace(o=state.o * keep[:, None]), t, v, visible, kept)


@mutant(
    "online", "tilelang#1148", _many_tiles, "rescale_underflow", caught="large-logits-f64",
    equal="where no maximum of a row falls by 88 from tile to tile, and no tile is hidden, up to roundings",
)  # fmt: skip
class max_of_this_tile(Rules):
    """The maximum is that of this tile, not of all so far: exp(m_old - m_new) overflows where it falls."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        own = super().update(self.start(len(t), v.shape[1]), t, v, visible, kept)
        keep = self.exp(state.m, online.shift_of(own.m))
        return State(own.m, state.l * keep + own.l, state.o * keep[:, None] + own.o)


@mutant("online", "llama.cpp#13991", _many_tiles, "rescale_underflow", caught="q8-gqa-6-bf16")
class small_growth_not_rescaled(Rules):
    """Nothing is rescaled where the maximum grows by less than 8, though the new maximum is used."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        m = np.maximum(state.m, t.max(-1, initial=-np.inf))
        small = (m > state.m) & (m < state.m + 8)
        return super().update(state._replace(m=np.where(small, m, state.m)), t, v, visible, kept)


@mutant(
    "online", "flash-attention#2082 flash-attention#2083 flash-attention#2174", always, "max_zero_start",
    caught="negative-f64",
)  # fmt: skip
class max_starts_at_zero(Rules):
    """The running maximum starts at 0, so that exp underflows where all logits are far below."""

    def start(self, rows: int, Dv: int) -> State:
        state = super().start(rows, Dv)
        return state._replace(m=np.zeros_like(state.m))


@mutant("online", "flash-attention#2082", always, "max_zero_start", caught="far-below-f32")
class max_starts_at_minus_10000(Rules):
    """The running maximum starts at -10000."""

    def start(self, rows: int, Dv: int) -> State:
        state = super().start(rows, Dv)
        return state._replace(m=np.full_like(state.m, -1e4))


@mutant(
    "online", "flash-attention#2082", always, "max_zero_start", caught="bias-1e9-negative-f64",
    equal="where any visible logit is above -1e9: the running maximum is that of the logits then",
)  # fmt: skip
class max_starts_at_minus_1e9(Rules):
    """The running maximum starts at -1e9."""

    def start(self, rows: int, Dv: int) -> State:
        state = super().start(rows, Dv)
        return state._replace(m=np.full_like(state.m, -1e9))


@mutant("online", "tinygrad#4985", always, "large_logits", caught="large-logits-f64")
class max_not_subtracted(Rules):
    """exp is taken of the logits as they are: it overflows."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = online.update(state, t + 0, v, lambda x, shift: self.exp(x, 0 * shift), lambda p, v: self.weigh(
            p, v, visible, kept))  # fmt: skip
        return after._replace(m=np.where(np.isneginf(after.m), after.m, 0))


@mutant("online", "flash-attention#2082", hides, "max_before_mask", caught="causal-f16")
class max_over_hidden_keys(Rules):
    """The maximum is taken over hidden keys too: where those are far above, all else underflows."""

    peak: Array | None = None

    def hide(self, s: Array, visible: Array | None) -> Array:
        self.peak = s.max(-1, initial=-np.inf)
        return super().hide(s, visible)

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        m = state.m if self.peak is None else np.maximum(state.m, np.where(np.isfinite(self.peak), self.peak, -np.inf))
        sees = np.isfinite(t).any(-1) | np.isfinite(state.m)
        shift = online.shift_of(m)
        moved = State(m, state.l * self.exp(state.m, shift), state.o * self.exp(state.m, shift)[:, None])
        after = super().update(moved, t, v, visible, kept)
        return after._replace(m=np.where(sees, after.m, state.m))


@mutant("online", "triton:tutorials/06-fused-attention", always, "grad_scale", caught="grad-scale-0-f32")
class exp2_for_exp(Rules):
    """exp2 is taken of logits that were not multiplied by log2(e)."""

    def exp(self, x: Array, shift: Array) -> Array:
        return np.asarray(np.exp2((x - shift).astype(np.float64)).astype(self.dtype))


@mutant("online", "KernelBench#165 Xilinx/mlir-air#1427", always, caught="full-f32")
class mean_of_v(Rules):
    """All visible keys weigh the same, as on inputs whose softmax is flat."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        return super().logits(np.zeros_like(s), softcap, bias, visible, modify)


@mutant("online", "", always, "mean_of_v", caught="full-f32")
class weights_unsummed(Rules):
    """The output is not divided by the row sum."""

    def finish(self, state: State) -> tuple[Array, Array]:
        return state.o, super().finish(state)[1]


@mutant("online", "", always, "polarity", caught="causal-tiny-f32")
class softmin(Rules):
    """Scores have the other sign."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        return super().products(-q, k, scale)
