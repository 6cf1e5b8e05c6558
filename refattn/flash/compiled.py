"""Compiled once: numba's cache, keyed by the sources of this whole package and by the width of a vector."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import FunctionCache

from .vectors import BITS, FUSES

__all__ = ["compiled", "inlined"]

if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT=1: refattn.flash exists compiled only; unset it, or use refattn.streaming")

inlined = njit(nogil=True, error_model="numpy")
"""For what compiled functions call: it becomes a part of them."""


def _digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


_KEY = (_digest(), BITS, FUSES)


class _Cache(FunctionCache):
    """numba looks at the file of the function alone, which would keep a kernel whose inner loops have changed."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return super()._index_key(sig, codegen), _KEY

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            print(f"refattn.flash: compiling {self._py_func.__name__}, once", file=sys.stderr, flush=True)
        return found


def compiled(function: Callable[..., Any]) -> Any:
    """`function` as machine code without the GIL, cached where numba can write."""
    dispatcher = inlined(function)
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError:  # no folder can be written to: compiled anew in each process
        name = function.__name__
        print(f"refattn.flash: no folder for numba's cache; set NUMBA_CACHE_DIR to keep {name}", file=sys.stderr)
    return dispatcher
