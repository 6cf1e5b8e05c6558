"""A wrong softmax: tails, the running maximum and sum, sinks, lse, precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..online import State
from ..streaming import Logits, Rules
from .catalogue import TILES, always, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@mutant("tails", "pytorch#169222 NNkernels.jl#16", lambda case: case.Lk % TILES.tile_k != 0, "tail_scored")
class tail_keys_scored(Rules):
    """The last tile is filled up with keys and values of zero, which are not masked."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        extra = -t.shape[1] % self.schedule.tile_k
        t, v = np.pad(t, ((0, 0), (0, extra))), np.pad(v, ((0, extra), (0, 0)))
        if visible is not None:
            visible = np.pad(visible, ((0, 0), (0, extra)), constant_values=True)
        if kept is not None:
            kept = np.pad(kept, ((0, 0), (0, extra)), constant_values=True)
        return super().update(state, t, v, visible, kept)


@mutant("online", "CUDATutorial#69 flash-attention#2082", lambda case: case.Lk > TILES.tile_k)
class missing_rescale(Rules):
    """The output so far is not multiplied by exp(m_old - m_new) when the maximum grows."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state._replace(o=np.zeros_like(state.o)), t, v, visible, kept)
        return after._replace(o=after.o + state.o)


@mutant("online", "flash-attention#2082 flash-attention#2083 flash-attention#2174", always, "max_zero_start")
class max_starts_at_zero(Rules):
    """The running maximum starts at 0, so that exp underflows where all logits are far below."""

    def start(self, rows: int, Dv: int) -> State:
        state = super().start(rows, Dv)
        return state._replace(m=np.zeros_like(state.m))


@mutant("online", "flashinfer#2113 flashinfer#4485 sglang#35045 pytorch#181645", wants("lse"))
class lse_base_2(Rules):
    """lse is left as log2 of the sum."""

    def lse(self, lse: Array) -> Array:
        return lse * self.dtype.type(np.log2(np.e))


@mutant("online", "kekzl/imp#1303 kekzl/imp#1345 vllm-metal#550", lambda case: case.sinks is not None)
class sinks_dropped(Rules):
    """The sink does not join the denominator."""

    def sink(self, sinks: Array, h: int) -> Array | None:
        return None


@mutant("online", "KernelBench#165 Xilinx/mlir-air#1427", always)
class mean_of_v(Rules):
    """All visible keys weigh the same, as on inputs whose softmax is flat."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        return super().logits(np.zeros_like(s), softcap, bias, visible, modify)


@mutant("precision", "llama.cpp#17610 llama.cpp#13975", always, "accumulator_16_bit")
class bf16_accumulator(Rules):
    """The running output is kept in bfloat16 between tiles."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        return after._replace(o=self.round(after.o, "bfloat16"))
