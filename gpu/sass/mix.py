"""Which unit of a multiprocessor executes an instruction, and how much of it.

Pipes by opcode: Nsight Compute, Kernel Profiling Guide, "Pipelines" (F2FP is on the ALU since Ampere), and
NVIDIA's statement of the pipes of GH100 (forums.developer.nvidia.com/t/302018): IMAD is executed by the
heavy half of the FMA pipe, FP32 by both halves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields

from .listing import Instruction

__all__ = ["Mix", "access_width", "flop", "is_tensor", "shared_bytes"]

_TENSOR = {"HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "DMMA", "BMMA"}
_FMA = {"FFMA", "FMUL", "FADD", "HFMA2", "HADD2", "HMUL2"}
_HEAVY = {"IMAD", "IMUL", "IDP"}
_XU = {"MUFU", "I2F", "I2FP", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV"}
_SHARED = {"LDS", "STS", "LDSM", "STSM", "LDGSTS"}
_LSU = _SHARED | {"LDG", "STG", "LD", "ST", "LDL", "STL", "SHFL", "ATOM", "ATOMS", "ATOMG", "RED", "MATCH"}
_OTHER = {
    *("BRA", "BRX", "JMP", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "BAR", "NOP", "YIELD", "NANOSLEEP"),
    *("DEPBAR", "LDGDEPBAR", "WARPSYNC", "WARPGROUP", "MEMBAR", "FENCE", "ERRBAR", "CCTL", "SYNCS", "ARRIVES"),
    *("LDC", "S2R", "CS2R", "R2UR", "S2UR", "VOTE", "VOTEU", "UTMALDG", "UTMASTG"),
}


def access_width(one: Instruction) -> str:
    """Width of one lane's access: "128", "64", "32", "U16" or "U8" (signed or not)."""
    for modifier in one.opcode.split(".")[1:]:
        if modifier in ("128", "64"):
            return modifier
        if modifier in ("U16", "S16", "U8", "S8"):
            return "U" + modifier[1:]
    return "32"


def lane_bytes(one: Instruction) -> int:
    """Bytes of one lane's access."""
    return {"128": 16, "64": 8, "32": 4, "U16": 2, "U8": 1}[access_width(one)]


def is_tensor(one: Instruction) -> bool:
    """Whether it is a matrix product on the tensor cores."""
    return one.name in _TENSOR


def flop(one: Instruction) -> float:
    """Floating-point operations of a matrix product, for one warp (a quarter of a warpgroup's)."""
    if wide := re.search(r"\.(\d+)x(\d+)x(\d+)\.", one.opcode + "."):
        m, n, k = map(int, wide.groups())
        return 2 * m * n * k / 4
    shapes = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "884": 8 * 8 * 4, "16832": 16 * 8 * 32}
    for modifier in one.opcode.split("."):
        if modifier in shapes:
            return 2.0 * shapes[modifier]
    raise ValueError(f"{one.opcode} has a shape that is not known here; add it to flop()")


def shared_bytes(one: Instruction) -> float:
    """Bytes of shared memory that one warp's instruction moves where no bank conflict occurs.

    A wgmma of 64 x n x 16 reads its matrix B, and A where a descriptor stands for it, once for its four warps.
    A shuffle occupies the same path for one cycle, and counts as 128 bytes.
    """
    if one.name in ("LDSM", "STSM"):
        last = one.opcode.rpartition(".")[2]
        return 128.0 * (int(last) if last in ("2", "4") else 1)
    if one.name in _SHARED:
        return 32.0 * max(4, lane_bytes(one))
    if one.name == "SHFL":
        return 128.0
    if one.name == "HGMMA":
        m, n, k = map(int, re.search(r"(\d+)x(\d+)x(\d+)", one.opcode).groups())  # type: ignore[union-attr]
        from_memory = one.operands.count("gdesc[") == 2
        return 2.0 * k * (n + m * from_memory) / 4
    return 0.0


@dataclass(frozen=True)
class Mix:
    """What one warp asks of each unit: instructions, but for `flop` and the bytes.

    tensor  matrix products              fma     FP32 add, multiply, fused
    xu      MUFU and conversions         heavy   IMAD: only half of the FMA pipe can
    alu     integer, logic, select, max, pack
    lsu     loads, stores, shuffles      issue   all instructions
    shared  bytes through shared memory  global_ bytes read from global memory
    """

    tensor: int = 0
    flop: float = 0.0
    ex2: int = 0
    xu: int = 0
    fma: int = 0
    heavy: int = 0
    alu: int = 0
    lsu: int = 0
    shared: float = 0.0
    global_: int = 0
    issue: int = 0

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> Mix:
        """Sums over instructions."""
        sums = dict.fromkeys((f.name for f in fields(cls)), 0.0)
        for one in instructions:
            sums["issue"] += 1
            if is_tensor(one):
                sums["tensor"] += 1
                sums["flop"] += flop(one)
            elif one.name in _FMA:
                sums["fma"] += 1
            elif one.name in _HEAVY:
                sums["heavy"] += 1
            elif one.name in _XU:
                sums["xu"] += 1
                sums["ex2"] += one.has("EX2")
            elif one.name in _LSU:
                sums["lsu"] += 1
            elif one.name not in _OTHER and not one.name.startswith("U"):  # U...: the uniform pipe
                sums["alu"] += 1
            sums["shared"] += shared_bytes(one)
            if one.name in ("LDG", "LDGSTS", "LD"):
                sums["global_"] += 32 * lane_bytes(one)
        whole = {f.name: int(sums[f.name]) for f in fields(cls) if f.name not in ("flop", "shared")}
        return cls(flop=sums["flop"], shared=sums["shared"], **whole)
