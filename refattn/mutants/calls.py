"""Wrong between calls: what one leaves to the next, what depends on the batch, on chance, or on how often it is called.

No single answer need be wrong: a second call, or a law, tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import Case
from ..memory import take_answer
from ..streaming import Schedule, Streaming
from .catalogue import Kernel, Wrapped, always, changed, hides, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _times(y: dict[str, Array], factor: float) -> dict[str, Array]:
    return {n: (x.astype(np.float64) * factor).astype(x.dtype) if n == "out" else x for n, x in y.items()}


@mutant("calls", "llm.c#851 llm.c#852", wants("out"), caught="one-token-f32", shows="call out", semantic=False)
class drifts(Wrapped):
    """The output grows by 1 % with every call."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        self.left["calls"] = self.left.get("calls", -1) + 1
        return _times(y, 1 + 0.01 * self.left["calls"])


@mutant(
    "calls", "flash-attention#1678", wants("dq"), "grad_16_bit", caught="repeatability.softcap-f32", shows="law dq",
    semantic=False,
)  # fmt: skip
class workspace_not_cleared(Wrapped):
    """dq is added up in a workspace for its shape that is not cleared: 1 % of the last call's is left."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if "dq" not in y:
            return y
        key, dq = (y["dq"].shape, y["dq"].dtype), y["dq"].astype(np.float64)
        before, self.left[key] = self.left.get(key, 0.0), dq
        return {**y, "dq": (dq + 2.0**-7 * before).astype(y["dq"].dtype)}


@mutant(
    "calls", "flashinfer#1028 TensorRT-LLM#6163", hides, "tree_mask_stale", caught="tree-f32 tree-then-causal-f32",
    shows="out lse", semantic=False,
)  # fmt: skip
class mask_of_call_before(Wrapped):
    """The mask of the first call of a shape is used in all later ones."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        if case.mask is None:
            return case, given
        first = self.left.setdefault((case.B, case.H, case.Lq, case.Lk), case.mask)
        return replace(case, mask=first), given


@mutant(
    "calls", "flash-attention:tests-of-cache-keys", always, "strides_ignored",
    caught="documents-cross-f32 grad-scale-0-f32", semantic=False,
)  # fmt: skip
class compiled_for_another_scale(Wrapped):
    """The kernel is compiled for the sizes of the first call, with its scale and softcap, and found by them again."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        key = case.B, case.H, case.Lq, case.Lk, case.D, case.dtype
        scale, softcap = self.left.setdefault(key, (case.scale, case.softcap))
        if "dsoftcap" in case.want and softcap is None:
            return case, given
        return replace(case, scale=scale, softcap=softcap), given


@mutant(
    "calls", "vllm#32561 vllm#51902 batch_invariant_ops#6", lambda case: case.B * case.H < 8,
    caught="batch_of_one.decode-e4m3", shows="law out lse dq dk dv", semantic=False, invariant=True,
)  # fmt: skip
class splits_by_batch(Kernel):
    """As many splits as leave no core idle: bits depend on the size of the batch, in spite of what is declared."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        splits = max(1, 8 // max(1, case.B * case.H))
        schedule = Schedule(tile_q=64, tile_k=16, splits=splits) if splits > 1 else self.schedule
        return Streaming(schedule=schedule)(case, given)


@mutant(
    "calls", "vllm#32561", lambda case: case.B > 1 and wants("out")(case), "batch_dropped",
    caught="drawn-per-batch-f16", shows="out", semantic=False,
)  # fmt: skip
class last_of_batch_wrong(Wrapped):
    """The last of several batch entries is 1 % too large."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        last = (np.arange(case.B) == case.B - 1) & (case.B > 1)
        return changed(case, y, "out", lambda x: x.astype(np.float64) * (1 + 0.01 * last[:, None, None, None]))


@mutant(
    "calls", "ROCm/triton#953 llama.cpp#26759 flash-attention#359", lambda case: case.Lk > 16, caught="full-f64",
    shows="call law", semantic=False,
)  # fmt: skip
class order_of_the_day(Kernel):
    """Tiles are added in the order in which they happen to finish, though deterministic is declared."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        if case.Lk <= 16:
            return super().__call__(case, given)
        self.left["calls"] = self.left.get("calls", 0) + 1
        order = Schedule(tile_q=16, tile_k=16, order="random", seed=self.left["calls"])
        return Streaming(schedule=order)(case, given)


@mutant(
    "calls", "flash-attention#359 flash-attention#2033 PaddlePaddle/flash-attention#134",
    lambda case: case.Lq > 16 and wants("dq")(case), "grad_16_bit", caught="repeatability.softcap-f32", shows="law dq",
    semantic=False,
)  # fmt: skip
class race_in_dq(Wrapped):
    """Two blocks add to dq at once, and in every other call the sum of one is lost in the first row."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if "dq" not in y or case.Lq <= 16:
            return y
        self.left["calls"] = self.left.get("calls", 0) + 1
        lost = self.left["calls"] % 2 == 0
        return changed(case, y, "dq", lambda x: x * np.where((np.arange(case.Lq) == 0) & lost, 0, 1)[:, None])


@mutant(
    "calls", "flash-attention#2562 KernelBench#82", lambda case: case.Lq > 1 and wants("out")(case), "tail_queries",
    caught="causal-tiny-f32", shows="call out", semantic=False,
)  # fmt: skip
class last_row_of_call_before(Wrapped):
    """The last row is not written: what the call before left in memory of this shape is there, at first 0."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if "out" not in y or case.Lq < 2:
            return y
        key = y["out"].shape, y["out"].dtype
        before, self.left[key] = self.left.get(key, np.zeros_like(y["out"])), y["out"]
        stale = take_answer(case, "out", before)
        last = np.arange(case.Lq) == case.Lq - 1
        return changed(case, y, "out", lambda x: np.where(last[:, None], stale, x))
