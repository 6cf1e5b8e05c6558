"""The choices that are made when a kernel is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu import ptx

__all__ = ["HEAD_SIZES", "Spec"]

HEAD_SIZES = (32, 64, 96, 128, 192, 256)
"""Head sizes that a kernel is compiled for; others up to 256 are zero-padded in shared memory."""


@dataclass(frozen=True)
class Spec:
    """A kernel on 16-bit inputs: dtype, head sizes of q·k and of v, tile, and which features it has.

    A block has `warps` warps with `row_tiles` times 16 rows each, and reads `keys` keys at a time.
    `vector`: rows are 16-byte aligned and copied 16 bytes at a time, else element by element.
    `q_in_registers`: the fragments of q stay there, else they are read again for each tile.
    """

    dtype: str
    D: int
    Dv: int
    warps: int = 4
    row_tiles: int = 1
    keys: int = 64
    q_in_registers: bool = True
    vector: bool = True
    softcap: bool = False
    bias: str | None = None
    alibi: bool = False
    varlen: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("float16", "bfloat16"):
            raise ValueError(f"dtype={self.dtype!r} must be float16 or bfloat16; k2_tiled takes float32 and float64")
        for name in ("D", "Dv"):
            if getattr(self, name) not in HEAD_SIZES:
                raise ValueError(f"{name}={getattr(self, name)} must be one of {', '.join(map(str, HEAD_SIZES))}")
        if self.bias not in (None, "float32", self.dtype):
            raise ValueError(f"bias={self.bias!r} must be float32 or {self.dtype}; pass None for no bias")
        for name, step in (("warps", 1), ("keys", 16)):
            value = getattr(self, name)
            if value < step or value % step:
                raise ValueError(f"{name}={value} must be a positive multiple of {step}")
        if self.row_tiles not in (1, 2):
            raise ValueError(f"row_tiles={self.row_tiles} must be 1 or 2; more do not fit the registers")

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 16 * self.row_tiles * self.warps

    @property
    def modified(self) -> bool:
        """Whether scores are changed before the softmax, beyond their scale."""
        return self.softcap or self.bias is not None or self.alibi

    @property
    def mma(self) -> Any:
        return ptx.mma_bf16 if self.dtype == "bfloat16" else ptx.mma_f16

    @property
    def pack(self) -> Any:
        return ptx.pack_bf16 if self.dtype == "bfloat16" else ptx.pack_f16
