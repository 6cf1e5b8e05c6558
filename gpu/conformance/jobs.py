"""What is run: a case, a kernel, a schedule; all of them, or few that cover each kernel, feature and schedule."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu.implementation import FORCED, GPUAttention
from refattn.case import Case, Dense, Packed, Shared, Strided
from refattn.cases import CASES
from refattn.masks import Causal, Window
from refattn.visibility import And

__all__ = ["Job", "covering", "every", "features", "kernels_for"]

BACKWARD_AFTER = ("tensor_core", "tiled", "varlen")
"""Forward kernels whose answers the backward is tried on; it is the same kernel after all."""


TILES = ("warps=2,row_tiles=1,keys=32", "usual", "warps=2,row_tiles=2,keys=16")
"""Tiles as `gpu.launch.choose` has them: those of the executor, of a device, and odd ones."""


class Job(NamedTuple):
    case: str
    kernel: str
    schedule: str
    tiles: str

    def replay(self) -> str:
        """The command that runs it alone."""
        settings = f"GPU_SCHEDULE={self.schedule} GPU_TILES={self.tiles}"
        return f"{settings} refattn check gpu.implementation:{self.kernel} --case {self.case}"


def kernels_for(case: Case) -> list[str]:
    """The kernels that take a case."""
    if case.dtype in ("float32", "float64"):
        kernels = ["naive", "tiled"]
    else:
        kernels = ["tensor_core", "decode", "wgmma"] + (["varlen"] if isinstance(case.storage, Packed) else [])
    return [k for k in kernels if not case.backward or k in BACKWARD_AFTER]


def every(schedules: Sequence[str], kernels: Iterable[str], chapters: Iterable[str] = ()) -> list[Job]:
    """All jobs, the cheapest first: cases that the door takes, each schedule with tiles of its own."""
    wanted, chosen = set(chapters), set(kernels)
    cases = [c for c in CASES if (not wanted or c.chapter in wanted) and GPUAttention().supports(c) is None]
    cases.sort(key=GPUAttention.work)
    return [
        Job(case.id, kernel, schedule, tiles)
        for case in cases
        for kernel in kernels_for(case)
        if kernel in chosen
        for schedule, tiles in zip(schedules, itertools.cycle(TILES), strict=False)
    ]


def features(case: Case) -> set[str]:
    """What of a case the kernels and their launch have code for."""
    mask, parts = case.mask, []
    while isinstance(mask, And):
        parts.append(mask.right)
        mask = mask.left
    parts = [m for m in (*parts, mask) if m is not None]
    words = {
        "gqa", "D!=Dv", "Lq!=Lk", "scale", "softcap", "bias", "sinks", "q_lens", "k_lens", "backward", "dlse",
        "strided", f"dtype={case.dtype}",
    } & case.features()  # fmt: skip
    words |= {f"{type(m).__name__} {m.align}" for m in parts if isinstance(m, (Causal, Window))}
    for word, has in {
        "mask as bias": any(not isinstance(m, (Causal, Window)) for m in parts),
        "packed": isinstance(case.storage, Packed),
        "gaps": isinstance(case.storage, Packed) and case.storage.gap > 0,
        "far": isinstance(case.storage, Strided),
        "shared": isinstance(case.storage, Shared),
        "unaligned": case.D % 8 or case.Dv % 8,
        "D>64": max(case.D, case.Dv) > 64,
        "D>128": max(case.D, case.Dv) > 128,
        "tiles of rows": case.Lq > 32,
        "tiles of keys": case.Lk > 32,
        "more rows than keys": case.Lq > case.Lk,
        "one row": case.Lq == 1,
        "nothing": 0 in (case.B, case.H, case.Lq, case.Lk, case.D, case.Dv),
        "negative scale": case.scale is not None and case.scale < 0,
        "dense": isinstance(case.storage, Dense),
        "dsinks": "dsinks" in case.want,
    }.items():
        if has:
            words.add(word)
    return words


def covering(jobs: Sequence[Job]) -> list[Job]:
    """Some of the jobs, which have all that the jobs have of (kernel, feature, schedule).

    Always the one that adds most for its work (Chvátal 1979, a greedy cover).
    """
    cases = {case.id: case for case in CASES}
    words = {name: features(case) for name, case in cases.items()}
    seconds = {job: 0.3 + GPUAttention.work(cases[job.case]) / 2e6 for job in jobs}
    items = {job: {(job.kernel, job.schedule, word) for word in words[job.case]} for job in jobs}
    missing = set(itertools.chain.from_iterable(items.values()))
    chosen: list[Job] = []
    while missing:
        best = max(jobs, key=lambda job: len(items[job] & missing) / seconds[job])
        chosen.append(best)
        missing -= items[best]
    return chosen


KERNELS = tuple(FORCED)
