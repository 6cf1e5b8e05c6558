"""Tasks in processes of their own, and a file of their rows in which a kill at any point loses nothing.

A task is a word and a name: "mutant:causal_top_left" (a full row), "quick:causal_top_left" (on its killer alone),
"honest:CASE", "power:DTYPE".  Its row is plain data, one line of JSON, with the task in it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ..public_rules import RULES
from .honest import honest_row
from .matrix import full_row, killers, quick_row
from .power import DTYPES, power

__all__ = ["Row", "every_task", "inputs", "made", "read", "run"]

Row = dict[str, Any]
_MAKE: dict[str, Callable[[str], Row]] = {
    "mutant": full_row,
    "quick": quick_row,
    "honest": honest_row,
    "power": lambda dtype: {"name": dtype, "lines": power((dtype,))},
}


def inputs() -> tuple[str, ...]:
    """What honest kernels are asked: all killers, and all inputs of the rules of others."""
    return (*killers(), *(case.id for rule in RULES.values() for case in rule.inputs))


def every_task(mutants: Sequence[str]) -> list[str]:
    """Those of a full run over these mutants."""
    honest = [f"honest:{id}" for id in inputs()]
    return [*(f"mutant:{name}" for name in mutants), *honest, *(f"power:{dtype}" for dtype in DTYPES)]


def made(task: str) -> Row:
    """The row of a task."""
    kind, _, name = task.partition(":")
    return {"task": task, **_MAKE[kind](name)}


def run(
    tasks: Sequence[str], *, jobs: int = 1, out: Path | None = None, header: Row | None = None,
    on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:  # fmt: skip
    """The rows of the tasks, in their order; those that `out` has are not made again, each is there once it is made.

    Refused: a file that was made under another header (its date apart), or is no such file.
    """
    done = {} if out is None else {row["task"]: row for row in read(out, header or {})}
    rows = {task: done[task] for task in tasks if task in done}
    for row in rows.values():
        on_row(row)
    if out is not None and not out.exists():
        _append(out, header or {})
    for row in _in_processes([task for task in tasks if task not in rows], jobs):
        if out is not None:
            _append(out, row)
        rows[row["task"]] = row
        on_row(row)
    return [rows[task] for task in tasks]


def _in_processes(tasks: Sequence[str], jobs: int) -> Iterator[Row]:
    """In processes that are started afresh; an executor and not a Pool, which hangs if a child cannot start."""
    if not tasks:
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=spawn, initializer=_end_with_parent)
    try:
        waiting: list[Future[Row]] = [pool.submit(made, task) for task in tasks]
        for future in as_completed(waiting):
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """A worker of a run that is killed would wait for ever for its next task."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def read(out: Path, header: Row) -> list[Row]:
    """The rows of a file; what a kill left of its last line is taken away."""
    if not out.exists():
        return []
    whole = out.read_bytes().rpartition(b"\n")[0]
    if not whole:
        out.unlink()
        return []
    try:
        first, *rows = [json.loads(line) for line in whole.splitlines()]
        was = {name: first[name] for name in header if name != "date"}
        for row in rows:
            row["task"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{out}: {error!r}; it must be what an earlier run wrote, or not be there") from None
    now = {name: value for name, value in header.items() if name != "date"}
    if was != now:
        raise ValueError(f"{out} was made with {was}, and this is {now}; name another file")
    os.truncate(out, len(whole) + 1)
    return rows


def _append(out: Path, row: Row) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
