"""PTX -> ptxas -> nvdisasm: what a kernel takes and does on a device, without one."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .listing import Instruction, Loop, blocks, loops, parse
from .mix import Mix, access_width, is_tensor
from .toolchain import nvdisasm, ptxas

__all__ = ["LoopReport", "Report", "assemble", "count", "read"]

_COUNTED = (
    *("HMMA", "HGMMA", "LDSM", "STSM", "MUFU.EX2", "LDL", "STL", "LDS", "STS", "SHFL", "BAR", "CALL"),
    *("ATOM", "ATOMG", "ATOMS", "RED", "UTMALDG", "FFMA", "FMUL", "FADD"),
)
_BY_WIDTH = ("LDG", "STG", "LDGSTS", "LD", "ST")


@dataclass(frozen=True)
class LoopReport:
    """A loop of the SASS: `mix` of an iteration that takes no branch but those that prefetch (cp.async).

    So it is an iteration on a tile that is neither masked nor the last.  `largest` is with every block.  `nested`
    counts the matrix products in loops within it, which `mix` lacks: how often those go round is not known.
    """

    depth: int
    mix: Mix
    largest: Mix
    nested: int


@dataclass(frozen=True)
class Report:
    """Registers of a thread; stack, spills and static shared memory in bytes; instructions by opcode.

    `counts` has the opcodes without modifiers, but global access by width: LDG.128, LDG.64, LDG.32, LDG.U16, LDG.U8.
    """

    arch: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    instructions: int
    counts: dict[str, int]
    loops: tuple[LoopReport, ...]
    warnings: tuple[str, ...]

    @property
    def tensor(self) -> int:
        """Matrix products, HMMA and HGMMA together."""
        return self.counts.get("HMMA", 0) + self.counts.get("HGMMA", 0)

    @property
    def local(self) -> int:
        """Accesses of local memory."""
        return self.counts.get("LDL", 0) + self.counts.get("STL", 0)

    @property
    def global_access(self) -> dict[str, int]:
        """Accesses of global memory (and generic ones, LD and ST) by width."""
        return {k: n for k, n in sorted(self.counts.items()) if k.partition(".")[0] in _BY_WIDTH}

    @property
    def main_loop(self) -> LoopReport | None:
        """The loop over tiles: that with matrix products whose own instructions have most exponentials.

        Neither a loop around it (over several problems) nor one within (over parts of a product) has them.  Where
        whole and masked tiles have loops of their own, it is the one with fewer other instructions.
        """
        having = [loop for loop in self.loops if loop.mix.tensor + loop.nested]
        return max(having, key=lambda one: (one.mix.ex2, one.mix.tensor + one.nested, -one.mix.issue), default=None)


def assemble(ptx: str, arch: str) -> Report:
    """Assembles `ptx` (one kernel) for `arch`, as 'sm_90a', and reports.  ValueError where ptxas refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        log = ptxas().run(f"-arch={arch}", "-v", source, "-o", cubin)
        listing = nvdisasm().run("-c", cubin).stdout
    return read(arch, log.stdout + log.stderr, listing)


def read(arch: str, log: str, listing: str) -> Report:
    """The report from what `ptxas -v` and `nvdisasm -c` printed."""
    if len(kernels := re.findall(r"Compiling entry function '(\S+)'", log)) != 1:
        raise ValueError(f"the PTX holds {len(kernels)} kernels, must be 1")
    functions = parse(listing)
    items = functions[kernels[0]]
    instructions = [one for body in functions.values() for one in body if isinstance(one, Instruction)]

    def first(pattern: str) -> int:
        """The largest, for functions that are called have figures of their own."""
        return max(map(int, re.findall(pattern, log)), default=0)

    return Report(
        arch=arch,
        registers=first(r"Used (\d+) registers"),
        stack=max(first(r"(\d+) bytes stack frame"), first(r"(\d+) bytes cumulative stack")),
        spill_stores=first(r"(\d+) bytes spill stores"),
        spill_loads=first(r"(\d+) bytes spill loads"),
        shared=first(r"(\d+) bytes smem"),
        instructions=len(instructions),
        counts=count(instructions),
        loops=tuple(_loop_report(loop) for loop in loops(blocks(items))),
        warnings=tuple(re.findall(r"(?:warning|info)\s*: (.*(?:Potential Performance Loss|serialized).*)", log)),
    )


def count(instructions: list[Instruction]) -> dict[str, int]:
    """How often each opcode of interest occurs; those that do not occur are left out."""
    found: Counter[str] = Counter()
    for one in instructions:
        if one.name in _BY_WIDTH:
            found[f"{one.name}.{access_width(one)}"] += 1
        for opcode in _COUNTED:
            if one.opcode == opcode or one.opcode.startswith(opcode + "."):
                found[opcode] += 1
    return dict(sorted(found.items()))


def _loop_report(loop: Loop) -> LoopReport:
    usual = list(loop.instructions(every=False))
    for block in loop.sometimes:
        if any(one.name == "LDGSTS" or is_tensor(one) for one in block.instructions):
            usual += block.instructions
    nested = sum(is_tensor(one) for block in loop.nested for one in block.instructions)
    return LoopReport(loop.depth, Mix.of(usual), Mix.of(loop.instructions()), nested)
