"""How a test shows that a hazard is found: in a kernel with an argument `cured`, which is right if that is 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import simt

__all__ = ["SCHEDULES", "found", "run"]

SCHEDULES = ["first", "last", 0, 1, 2, 3]


def run(kernel: Any, cured: int, schedule: Any, grid: int = 1, block: int = 64) -> np.ndarray:
    """Launches kernel(out, address of out, cured)."""
    out = np.arange(1024, dtype=np.float32)
    simt.run(kernel, grid, block, 2048, [out, out.ctypes.data, cured], [out], schedule)
    return out


def found(kernel: Any, names: str, schedule: Any, grid: int = 1, block: int = 64) -> None:
    """The hazard is found and named by one of `names` (a|b), and who and where; the cured kernel passes.

    If the reader comes before the writer, that nobody has written is found instead.
    """
    with pytest.raises((simt.Race, simt.UninitialisedRead)) as caught:
        run(kernel, 0, schedule, grid, block)
    text = str(caught.value)
    if isinstance(caught.value, simt.Race):
        assert any(name in text for name in names.split("|")), text
    else:
        assert any(name in ("read after write", "syncwarp", "in flight", "nobody wrote") for name in names.split("|"))
    where = text.splitlines()[-1]
    assert all(part in where for part in (f"{kernel.__name__}: block (", ", warp ", ", lane ", "test_gpu_races"))
    run(kernel, 1, schedule, grid, block)
