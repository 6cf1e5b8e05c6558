"""What the benchmark shows: a table for each dtype, the machine, a picture."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from .rows import is_ours
from .work import cores

__all__ = ["draw", "machine", "tables"]

Row = dict[str, Any]
FEATURES = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16")


def machine() -> dict[str, Any]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"model name\s*:\s*(.*)", text)
    flags = re.search(r"(?:flags|Features)\s*:\s*(.*)", text)
    has = set(flags[1].split()) if flags else set()
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": cores(), "features": [name for name in FEATURES if name in has],
        "system": platform.platform(), "python": platform.python_version(), "load": os.getloadavg()[0],
    }  # fmt: skip


def problem(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("direction", "causal", "B", "H", "Hkv", "Lq", "N", "D"))


def tables(rows: Sequence[Row]) -> list[Table]:
    """GFLOP/s, a table for each dtype; the best peer is underlined; refattn.flash over it and over a matrix product."""
    found = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        names = list(dict.fromkeys(row["implementation"] for row in of_dtype))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"GFLOP/s, {dtype}", title_justify="left")
        table.add_column("problem", no_wrap=True)
        for name in (*names, "flash / best", "flash / matmul"):
            table.add_column(name.removeprefix("refattn."), justify="right")
        for key in dict.fromkeys(map(problem, of_dtype)):
            here = {row["implementation"]: row for row in of_dtype if problem(row) == key}
            table.add_row(_title(next(iter(here.values()))), *(_rate(here.get(name)) for name in names), *_shares(here))
        found.append(table)
    return found


def _title(row: Row) -> str:
    kind = "decode" if row["Lq"] == 1 else row["direction"]
    heads = f"H={row['H']}/{row['Hkv']} " if row["H"] != row["Hkv"] else ""
    return f"{kind}{' causal' * row['causal']} {heads}N={row['N']} D={row['D']}"


def _rate(row: Row | None) -> str:
    if row is None:
        return "-"
    text = f"{row['gflops']:.0f}" if row["gflops"] >= 10 else f"{row['gflops']:.1f}"
    return f"[underline]{text}[/]" if row["of_best_peer"] == 1 and not is_ours(row["implementation"]) else text


def _shares(here: dict[str, Row]) -> tuple[str, str]:
    row = here.get("refattn.flash", {"of_best_peer": None, "of_matmul": None})
    best, matmul = row["of_best_peer"], row["of_matmul"]
    return "-" if best is None else f"{best:.2f}", "-" if matmul is None else f"{matmul:.0%}"


def draw(figure: Any, rows: Sequence[Row], ceilings: Sequence[Row]) -> None:
    """GFLOP/s of square forwards with D = 64 against N, a panel for each dtype, with and without causal."""
    rows = [row for row in rows if row["direction"] == "forward" and row["Lq"] == row["N"] and row["D"] == 64]
    dtypes, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("dtype", "implementation"))
    panels = figure.subplots(2, max(1, len(dtypes)), sharex=True, squeeze=False)
    for (line, causal), (place, dtype) in ((a, b) for a in enumerate((False, True)) for b in enumerate(dtypes)):
        axes = panels[line][place]
        for i, name in enumerate(names):
            here = [r for r in rows if (r["dtype"], r["causal"], r["implementation"]) == (dtype, causal, name)]
            points = sorted((row["N"], row["gflops"]) for row in here)
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=f"C{i}", label=name, linewidth=1 + is_ours(name))
        best = max((c["rate"] for c in ceilings if (c["ceiling"], c["dtype"]) == ("matmul", dtype)), default=None)
        if best is not None:
            axes.axhline(best, color="gray", linestyle="--", label="matrix product")
        axes.set(xscale="log", ylim=(0, None), title=f"{dtype}{', causal' * causal}", xlabel="N", ylabel="GFLOP/s")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    shown = {line.get_label(): line for axes in panels.flat for line in axes.lines}
    if shown:
        figure.legend(shown.values(), shown.keys(), loc="outside right upper")
