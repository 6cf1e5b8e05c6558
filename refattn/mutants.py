"""Kernels with one thing wrong: the first of the catalogue of public bugs, forward and backward.

Each is `refattn.streaming` with one rule replaced by a wrong one, and an implementation of its own:
`refattn check refattn.mutants:causal_top_left` must fail.  One decorated class is one row of
MUTANTS; to add a bug, add a class.  Its docstring says what is wrong, `seen` where it was seen in
public, `flag` the entry of `refattn.cases.FLAGS` it belongs to (its own name if not given), and
`separates` which cases can tell it from a correct kernel: on all others its answer is the same,
bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import Case
from .masks import Mask, Visibility, Window
from .online import State
from .streaming import Logits, Rules, Schedule, Streaming

__all__ = ["MUTANTS", "Mutant"]

Array = np.ndarray[Any, Any]
TILES = Schedule(tile_q=64, tile_k=64)
"""small tiles, so that rows of some hundred keys take several"""


@dataclass(frozen=True)
class Mutant:
    """One row of the catalogue."""

    name: str
    family: str
    what: str
    seen: tuple[str, ...]
    separates: Callable[[Case], bool]
    flag: str
    implementation: Streaming


MUTANTS: dict[str, Mutant] = {}


def mutant(
    family: str, seen: str, separates: Callable[[Case], bool], flag: str = ""
) -> Callable[[type[Rules]], Streaming]:
    """Enters a class of wrong rules into MUTANTS, and makes it an implementation."""

    def enter(rules: type[Rules]) -> Streaming:
        name = rules.__name__
        implementation = Streaming(name=name, rules=rules, schedule=TILES)
        what = " ".join((rules.__doc__ or "").split())
        MUTANTS[name] = Mutant(name, family, what, tuple(seen.split()), separates, flag or name, implementation)
        return implementation

    return enter


def always(case: Case) -> bool:
    return True


def wants(*names: str) -> Callable[[Case], bool]:
    return lambda case: not case.want.isdisjoint(names)


def unequal_lengths(case: Case) -> bool:
    q_lens, k_lens = case.q_lens or (case.Lq,) * case.B, case.k_lens or (case.Lk,) * case.B
    return any(lq != lk for lq, lk in zip(q_lens, k_lens, strict=True))


def hides(case: Case) -> bool:
    return not (case.mask is case.q_lens is case.k_lens is case.bias is None)


def rewritten(mask: Any, change: Callable[[Mask], Mask]) -> Any:
    """The mask with each of its leaves changed; a bare array or None as it is."""
    if isinstance(mask, Visibility):
        return dataclasses.replace(mask, mask=rewritten(mask.mask, change))
    if not isinstance(mask, Mask):
        return mask
    parts = {f.name: getattr(mask, f.name) for f in dataclasses.fields(mask)}  # type: ignore[arg-type]
    if any(isinstance(part, Mask) for part in parts.values()):
        return type(mask)(**{name: rewritten(part, change) for name, part in parts.items()})
    return change(mask)


# mask geometry


@mutant(
    "mask", "onnx#8054 onnxruntime#29020 pytorch#108108 mlx#2835 flash-attention#517",
    lambda case: "bottom_right" in repr(case.mask) and unequal_lengths(case),
)  # fmt: skip
class causal_top_left(Rules):
    """Alignment at the bottom right is done at the top left: the offset lk - lq is lost."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            return dataclasses.replace(m, align="top_left") if hasattr(m, "align") else m  # type: ignore[type-var]

        return rewritten(mask, change)


@mutant(
    "mask", "transformers#39408 transformers#29623 vllm#3385 onnxruntime#25927 zml#763",
    lambda case: "Window(" in repr(case.mask),
)  # fmt: skip
class window_off_by_one(Rules):
    """A window is one key too wide: j >= i - w - 1 for j >= i - w."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            if not isinstance(m, Window):
                return m
            if m.left is None:
                return dataclasses.replace(m, right=None if m.right is None else m.right + 1)
            return dataclasses.replace(m, left=m.left + 1)

        return rewritten(mask, change)


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


# the softmax, online


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


# heads, scale, softcap


@mutant("heads", "onnx#7274 jax-js#180 quant.cpp#61", lambda case: 1 < case.Hkv < case.H)
class gqa_tiled(Rules):
    """Key heads are tiled, 0 1 0 1, where they should be repeated, 0 0 1 1."""

    def key_head(self, h: int, H: int, Hkv: int) -> int:
        return h % Hkv


@mutant(
    "scale", "Megatron-LM#1501 Megatron-LM#1429",
    lambda case: case.scale is None and case.D % 32 != 0, "scale_from_d",
)  # fmt: skip
class scale_from_padded_D(Rules):
    """The default scale comes from D rounded up to a multiple of 32."""

    def default_scale(self, D: int) -> float:
        return super().default_scale(-(-D // 32) * 32)


@mutant("scale", "onnx#7865 onnx#7867 flash-attention#1025", lambda case: case.softcap is not None and hides(case))
class softcap_after_mask(Rules):
    """Softcap comes last and turns -inf into -softcap: what is hidden leaks."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        plain = super().logits(s, None, bias, visible, modify)
        return Logits(*self.capped(plain.t, softcap), plain.before)


# precision


@mutant("precision", "llama.cpp#17610 llama.cpp#13975", always, "accumulator_16_bit")
class bf16_accumulator(Rules):
    """The running output is kept in bfloat16 between tiles."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        return after._replace(o=self.round(after.o, "bfloat16"))


# gradients


@mutant("backward", "cudnn-frontend#384", wants("dq", "dk", "dbias", "dsinks"))
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
    lambda case: case.softcap is not None and wants("dq", "dk")(case), "softcap_slope",
)  # fmt: skip
class softcap_slope_missing(Rules):
    """The factor 1 - tanh² is missing."""

    def slope(self, in_caps: Array) -> Array:
        return np.ones_like(in_caps)


@mutant("backward", "flash-attention#1817", wants("dq", "dk", "dbias", "dsinks"))
class dlse_ignored(Rules):
    """The gradient that arrives at lse is dropped."""

    def arriving(self, dlse: Array) -> Array:
        return np.zeros_like(dlse)


@mutant("backward", "triton:tutorials/06-fused-attention", wants("dk"), "grad_scale")
class scale_missing_in_dk(Rules):
    """dk lacks the factor scale."""

    def scale_dk(self, dk: Array, scale: Array) -> Array:
        return dk
