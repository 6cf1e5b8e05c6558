"""Kernels that are made to pass and not to attend: constants, caches, special cases, borrowed answers.

Generated kernels do this without intent: what is rewarded is what is tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case, Dense
from ..cases import CASES
from ..dtypes import FORMATS
from ..inputs import Problem
from ..memory import give_answer, take
from ..truth import truth
from .catalogue import Kernel, Wrapped, always, changed, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]
NAMES = frozenset(case.id for case in CASES)


@mutant("cheat", "KernelBench#165", wants("out"), "mean_of_v", caught="full-f32", shows="out", semantic=False)
class returns_zeros(Wrapped):
    """The output is 0."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return changed(case, y, "out", np.zeros_like)


@mutant(
    "cheat", "Xilinx/mlir-air#1427 Xilinx/mlir-air#1450", wants("out"), "mean_of_v", caught="full-f32", shows="out",
    semantic=False,
)  # fmt: skip
class returns_three_quarters(Wrapped):
    """The output is 0.75, the middle of values from 0.5 to 1."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return changed(case, y, "out", lambda x: np.full_like(x, 0.75))


@mutant(
    "cheat", "cubecl#1070 CUDATutorial#69", wants("out"), "empty_rows_nan", caught="no-keys-f32", shows="out",
    semantic=False,
)  # fmt: skip
class returns_nan(Wrapped):
    """The output is NaN, which compares with nothing."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return changed(case, y, "out", lambda x: np.full(x.shape, np.nan))


@mutant(
    "cheat", "agentic-flow#191", lambda case: wants("out")(case) and case.Lk > 0, "mean_of_v", caught="full-f32",
    shows="out", semantic=False,
)  # fmt: skip
class returns_v(Wrapped):
    """The output of row i is the value of key i."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if not case.Lk or case.quant is not None:
            return y
        v = np.repeat(take(case, given)["v"], case.H // case.Hkv, axis=1)
        return changed(case, y, "out", lambda x: v[:, :, np.minimum(np.arange(case.Lq), case.Lk - 1)])


@mutant(
    "cheat", "gpu-mode/kernelbot#501 KernelBench#110", always, caught="key_permutation.softcap-f32",
    shows="law out lse dq dk dv", semantic=False,
)  # fmt: skip
class returns_first_answer(Kernel):
    """The first answer of a shape is kept, and returned for all inputs of that shape."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        key = tuple((name, x.shape, x.dtype) for name, x in given.items()), case.want
        if key not in self.left:
            self.left[key] = super().__call__(case, given)
        return {name: x.copy() for name, x in self.left[key].items()}


@mutant("cheat", "tensara#238", always, caught="repeatability.decode-e4m3", shows="out lse", semantic=False)
class returns_answer_before(Kernel):
    """The answer of the call before is returned where it has the shape that is asked for."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        y = super().__call__(case, given)
        before, self.left["y"] = self.left.get("y", y), y
        fits = {n: (x.shape, x.dtype) for n, x in before.items()} == {n: (x.shape, x.dtype) for n, x in y.items()}
        return {n: x.copy() for n, x in (before if fits else y).items()}


@mutant(
    "cheat", "llm.c#851 KernelBench#110", wants("out"), caught="full-tiny-f32 full-f64", shows="call out",
    semantic=False,
)  # fmt: skip
class right_for_two_calls(Wrapped):
    """The first two calls are right, and later ones return zeros."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        self.left["calls"] = self.left.get("calls", 0) + 1
        return y if self.left["calls"] <= 2 else changed(case, y, "out", np.zeros_like)


USUAL = (64, 128)


@mutant(
    "cheat", "triton#2626 attorch#14", lambda case: wants("out")(case) and case.D not in USUAL, "scale_from_d",
    caught="one-token-f32", shows="out", semantic=False,
)  # fmt: skip
class right_for_usual_sizes(Wrapped):
    """Heads of other sizes than 64 and 128 return zeros."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return y if case.D in USUAL else changed(case, y, "out", np.zeros_like)


@mutant(
    "cheat", "nntile#347 llama.cpp#19115", lambda case: case.id not in NAMES and wants("out")(case),
    caught="unit_values.decode-e4m3", shows="law out",
    equal="on the whole case table, whose ids it knows: laws ask other problems", semantic=False,
)  # fmt: skip
class right_for_known_cases(Wrapped):
    """Cases that are not of the table, which it knows by their ids, return zeros."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return y if case.id in NAMES else changed(case, y, "out", np.zeros_like)


@mutant(
    "cheat", "KernelBench:kernel_static_checker", lambda case: isinstance(case.storage, Dense), shows="",
    survives="its answers are right: only who looks at what it imports can tell", semantic=False,
)  # fmt: skip
class reads_reference(Kernel):
    """Nothing is computed: the reference is called, and its answer returned."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        if not isinstance(case.storage, Dense) or case.rotary is not None or case.quant is not None:
            return super().__call__(case, given)
        expected = truth(Problem(case, take(case, given)), self.precision(case))
        found = {name: e.value.astype(FORMATS[e.dtype].dtype) for name, e in expected.items()}
        return give_answer(case, found)


# what it does to its inputs


@mutant("cheat", "KernelBench#110 KernelBench#82", always, caught="drawn-per-head-f32", shows="call", semantic=False)
class scales_q_in_place(Wrapped):
    """The array q that it is handed is multiplied by 0 afterwards."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        given["q"][...] = 0
        return y


@mutant(
    "cheat", "KernelBench#110", lambda case: wants("out")(case) and case.Lq > 0, caught="dropout-one-key-f32",
    shows="call", semantic=False,
)  # fmt: skip
class out_written_into_q(Wrapped):
    """The output is written into the memory of q, which is returned."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        q = given["q"]
        if "out" not in y or q.shape != y["out"].shape or q.dtype != y["out"].dtype:
            return y
        q[...] = y["out"]
        return {**y, "out": q}
