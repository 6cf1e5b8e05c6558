"""How a test provokes an error in the executor: under every schedule, in the line that the kernel's source marks."""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy as np
import pytest

from gpu import simt

__all__ = ["SCHEDULES", "by_address", "refused", "zeros"]

SCHEDULES = ["first", "last", 0, 1]
_BY_ADDRESS: set[Any] = set()


def by_address(kernel: Any) -> Any:
    """A kernel whose arrays are handed over as addresses."""
    _BY_ADDRESS.add(kernel)
    return kernel


def zeros(n: int = 64, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(n, dtype)


def refused(kind: type[Exception], kernel: Any, *args: Any, grid: Any = 2, block: Any = 64, shared: int = 256) -> str:
    """What the error says; it is the same kind under every schedule, and tells the line that is marked `# here`."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    name = os.path.basename(inspect.getfile(kernel.py_func))
    marked = [f"{name}:{first + i}, in " for i, line in enumerate(lines) if "# here" in line]
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    arguments = [a.ctypes.data if isinstance(a, np.ndarray) and kernel in _BY_ADDRESS else a for a in args]
    text = ""
    for schedule in SCHEDULES:
        with pytest.raises(kind) as caught:
            simt.run(kernel, grid, block, shared, arguments, arrays, schedule)
        text = str(caught.value)
        assert kernel.__name__ + ": block (" in text
        assert any(place in text.splitlines()[-1] for place in marked), text
    return text
