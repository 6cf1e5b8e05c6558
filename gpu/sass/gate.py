"""The rules that a compiled kernel keeps, and the comparison with what the table says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .report import Report

__all__ = ["SHARED_LIMIT", "broken_rules", "differences", "register_limit", "resident_blocks", "row_of"]

REGISTER_SLACK = 8
"""Registers above the table's that are let pass: the unit in which they are allotted to a warp's threads."""
LOOP_SLACK = 0.02
"""Instructions of the main loop above the table's that are let pass, as a fraction."""
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_90a": 227 * 1024}
"""Bytes of shared memory that a block may have (CUDA C++ Programming Guide, table of compute capabilities)."""
_PER_SM = {"registers": 65536, "threads": 2048, "blocks": 32, "reserved": 1024}


def register_limit(threads: int, blocks: int = 1) -> int:
    """Registers of a thread so that `blocks` blocks fit one multiprocessor; they are allotted in eights."""
    return min(255, _PER_SM["registers"] // (threads * blocks) // 8 * 8)


def resident_blocks(report: Report, threads: int, shared_bytes: int) -> int:
    """Blocks that fit a multiprocessor at a time; 1024 bytes of shared memory of each are the system's."""
    per_thread = -(-report.registers // 8) * 8
    memory = SHARED_LIMIT[report.arch] + _PER_SM["reserved"]
    return min(
        _PER_SM["registers"] // (per_thread * threads),
        memory // (shared_bytes + report.shared + _PER_SM["reserved"]),
        _PER_SM["threads"] // threads,
        _PER_SM["blocks"],
    )


def broken_rules(
    report: Report, *, threads: int, blocks: int = 1, shared_bytes: int = 0, tensor: int = 0, narrow: bool = False
) -> list[str]:
    """What is wrong with a kernel whatever the table says; one line for each rule, empty when all are kept.

    `tensor`: matrix products that it has; `narrow`: it goes element by element, through arrays or unaligned rows.
    """
    found = []
    spills = report.spill_stores + report.spill_loads
    cause = "registers are spilled to it" if spills else "a local array is indexed by a variable; unroll, or select"
    if report.stack:
        found.append(f"stack={report.stack} bytes must be 0: {cause}")
    if spills:
        found.append(
            f"spill_stores={report.spill_stores}, spill_loads={report.spill_loads} bytes must be 0: "
            f"{report.registers} registers do not hold a thread's tile; make the tile smaller or the warps more"
        )
    if report.local:
        counts = ", ".join(f"{k}={report.counts[k]}" for k in ("LDL", "STL") if k in report.counts)
        found.append(f"local memory is accessed ({counts}), must not be: {cause}")
    if report.tensor != tensor:
        found.append(f"tensor={report.tensor} matrix products (HMMA and HGMMA) must be {tensor}")
    accessed = report.global_access
    if bytewise := {k: n for k, n in accessed.items() if k.endswith(".U8")}:
        found.append(f"global memory is accessed byte by byte ({bytewise}): load 16 bytes at a time")
    generic = {k: n for k, n in accessed.items() if k.startswith(("LD.", "ST."))}
    if generic and not narrow:  # numba's arrays know no address space
        found.append(f"accesses whose memory is not known at compile time ({generic}): name the space in the PTX")
    loads = {k.partition(".")[2]: n for k, n in accessed.items() if k.startswith("LD")}
    if not narrow and loads and "128" not in loads:
        found.append(f"no load of 16 bytes from global memory (widths: {loads}): load rows 16 bytes at a time")
    if report.registers > (limit := register_limit(threads, blocks)):
        found.append(f"registers={report.registers} must be <= {limit} for {threads} threads x {blocks} blocks")
    if shared_bytes + report.shared > SHARED_LIMIT[report.arch]:
        total, most = shared_bytes + report.shared, SHARED_LIMIT[report.arch]
        found.append(f"shared memory={total} bytes must be <= {most} on {report.arch}: take smaller tiles")
    found += [f"ptxas warns: {line}" for line in report.warnings]
    return found


def row_of(report: Report, threads: int, shared_bytes: int) -> dict[str, Any]:
    """What the table holds of a kernel, as JSON."""
    loop = report.main_loop
    return {
        "registers": report.registers,
        "stack": report.stack,
        "spills": report.spill_stores + report.spill_loads,
        "local": report.local,
        "tensor": report.tensor,
        "threads": threads,
        "shared": shared_bytes + report.shared,
        "blocks": resident_blocks(report, threads, shared_bytes),
        "global": report.global_access,
        "calls": report.counts.get("CALL", 0),
        "barriers": report.counts.get("BAR", 0),
        "loop": {**{k.rstrip("_"): round(n) for k, n in vars(loop.mix).items()}, "nested": loop.nested} if loop else {},
    }


def differences(row: Mapping[str, Any], held: Mapping[str, Any]) -> list[str]:
    """How a row differs from the table's; one line for each, empty when it agrees.

    Exact, but registers may fall, and rise by REGISTER_SLACK; the main loop may shrink, and grow by LOOP_SLACK.
    """
    found = []
    for key in ("stack", "spills", "local", "tensor", "threads", "shared", "global", "calls", "barriers"):
        if row[key] != held[key]:
            found.append(f"{key}={row[key]}, the table has {held[key]}")
    if row["registers"] > held["registers"] + REGISTER_SLACK:
        found.append(f"registers={row['registers']} must be <= {held['registers']} of the table + {REGISTER_SLACK}")
    if row["blocks"] < held["blocks"]:
        found.append(f"blocks={row['blocks']} of a multiprocessor, the table has {held['blocks']}")
    now, then = row["loop"].get("issue", 0), held["loop"].get("issue", 0)
    if now > then * (1 + LOOP_SLACK):
        found.append(f"{now} instructions in the main loop must be <= {then} of the table + {LOOP_SLACK:.0%}")
    return found
