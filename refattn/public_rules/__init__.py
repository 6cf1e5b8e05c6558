"""The rules by which published tests accept an attention kernel, and the inputs that they are used with.

They are here to be compared with: `refattn teeth` says which of the mutants each of them notices.  Each is written
anew from its description; `who` says whose it is and where it is documented.  To add one, add a function to
`comparisons`, its usual problems to `inputs`, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..case import NAMES, Case
from . import comparisons
from .inputs import FLASH, FP8, GGML, PERCENT, PLAIN, SDPA

__all__ = ["RULES", "PublicRule"]

Array = np.ndarray[Any, Any]
Passes = Callable[[str, Array, Array, Array, str], bool]

_GRADS = frozenset({"out", "dq", "dk", "dv", "dbias"})


@dataclass(frozen=True)
class PublicRule:
    """A rule of others.

    title       as tables have it
    who         whose it is
    passes      (output, got, exact in float64, eager, dtype) -> bool: see `comparisons`
    compares    the outputs that its tests look at; the others it does not see
    inputs      the problems that it is usually used with
    """

    name: str
    title: str
    who: str
    passes: Passes
    compares: frozenset[str]
    inputs: tuple[Case, ...]

    @property
    def states(self) -> str:
        return " ".join((self.passes.__doc__ or "").split())

    def accepts(
        self, case: Case, got: Mapping[str, Array], exact: Mapping[str, Array], eager: Mapping[str, Array],
        dtypes: Mapping[str, str],
    ) -> bool:  # fmt: skip
        """Whether an answer passes: all that is compared, of the case's outputs that `exact` has.

        One that is not there, or of another shape, does not.
        """
        for name in exact:
            if name not in self.compares or name not in case.want:
                continue
            if name not in got or got[name].shape != exact[name].shape:
                return False
            with np.errstate(all="ignore"):
                if not self.passes(name, got[name], exact[name], eager[name], dtypes[name]):
                    return False
        return True


RULES: dict[str, PublicRule] = {
    rule.name: rule
    for rule in (
        PublicRule(
            "assert_close", "assert_close", "torch.testing.assert_close, its default tolerances by dtype",
            comparisons.assert_close, frozenset(NAMES), PLAIN,
        ),
        PublicRule(
            "one_percent", "atol = rtol = 1e-2", "KernelBench, BackendBench, Triton's tutorial, jax.nn's tests",
            comparisons.one_percent, _GRADS - {"dbias"}, PERCENT,
        ),
        PublicRule(
            "twice_eager", "FlashAttention, 2x", "flash-attention, tests/test_flash_attn.py",
            comparisons.twice_eager, _GRADS - {"dbias"} | {"k_cache", "v_cache"}, FLASH,
        ),
        PublicRule(
            "nmse", "NMSE 5e-4", "llama.cpp, tests/test-backend-ops.cpp, test_flash_attn_ext",
            comparisons.nmse, frozenset({"out"}), GGML,
        ),
        PublicRule(
            "cosine", "cosine > 0.99", "flash-attention, tests/cute, decoding in float8; many serving engines",
            comparisons.cosine, frozenset({"out"}), FP8,
        ),
        PublicRule(
            "fudge", "SDPA fudge", "pytorch, test/test_transformers.py, _check_equal and its fudge factors on CUDA",
            comparisons.fudge, _GRADS, SDPA,
        ),
    )
}  # fmt: skip
