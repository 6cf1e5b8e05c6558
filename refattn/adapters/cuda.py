"""What adapters of libraries for CUDA share: they need a GPU, and their tensors lie on it.

Where there is none they refuse every case, so that a matrix can say "not run".  Their tests put a stand-in in the
library's place, which records what it is called with and answers by the oracle, on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..case import Case
from ..exchange import from_torch, to_torch
from ..masks import Causal, Window
from .adapter import Adapter

__all__ = ["CudaAdapter", "bottom_right_window", "from_device", "on_device"]


@dataclass(frozen=True)
class CudaAdapter(Adapter):
    needs: str = "a CUDA GPU"
    device: str = "cuda"

    def supports(self, case: Case) -> str | None:
        reason = super().supports(case)
        return f"needs {self.needs}" if reason is None and not self._has_device() else reason

    def _has_device(self) -> bool:
        import torch

        return self.device == "cpu" or torch.cuda.is_available()


def on_device(given: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The arrays as tensors there; copies even on the CPU."""
    return {name: to_torch(x).clone().to(device) for name, x in given.items()}


def from_device(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: from_torch(x) for name, x in answer.items()}


def bottom_right_window(case: Case) -> tuple[int, int] | None:
    """(left, right) of a mask aligned bottom right, -1 for no limit; None if it is another mask."""
    mask = case.mask
    if mask is None:
        return -1, -1
    if mask == Causal("bottom_right"):
        return -1, 0
    if isinstance(mask, Window) and mask.align == "bottom_right":
        return -1 if mask.left is None else mask.left, -1 if mask.right is None else mask.right
    return None
