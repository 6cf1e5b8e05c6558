"""Which tile a kernel is compiled with: by head size and device; in the executor a small one.

Small problems should span several tiles in the executor, or nothing between tiles would be tested.  `with tiles(...)`,
or GPU_TILES in the environment, sets fields of `Spec` by hand: warps=2,keys=16; or usual, to take those of a device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from gpu.kernels.spec import HEAD_SIZES, Spec
from gpu.target import SIMULATED

from .checks import Problem, Refused
from .device import Machine

__all__ = ["FIELDS", "features", "fitted", "head_size", "parsed", "tiles"]

FIELDS = ("usual", "warps", "row_tiles", "keys", "q_in_registers")
SMALL = {"warps": 2, "row_tiles": 1, "keys": 32}

_chosen: ContextVar[dict[str, int] | None] = ContextVar("tiles", default=None)


@contextlib.contextmanager
def tiles(**fields: int) -> Iterator[None]:
    """Fields of `Spec` that kernels are compiled with: warps, row_tiles, keys, q_in_registers.

    usual=1: in the executor too, the others are those of a device.
    """
    _check(fields)
    token = _chosen.set({**(_chosen.get() or {}), **fields})
    try:
        yield
    finally:
        _chosen.reset(token)


def parsed(text: str) -> dict[str, int]:
    """The fields of a text such as "warps=2,keys=16", or "usual"."""
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    try:
        fields = {name.strip(): int(value or (name.strip() == "usual" and 1)) for name, _, value in parts}
        if 0 in [fields.get(name, 1) for name in ("warps", "row_tiles", "keys")]:
            raise ValueError
    except ValueError:
        raise ValueError(f"tiles {text!r} must be like warps=2,keys=16, or usual") from None
    _check(fields)
    return fields


def chosen() -> dict[str, int]:
    """What was set by hand, over what the executor takes."""
    fields = {**parsed(os.environ.get("GPU_TILES", "")), **(_chosen.get() or {})}
    small = SIMULATED and not fields.pop("usual", 0)
    return {**(SMALL if small else {}), **fields}


def head_size(n: int, sizes: Sequence[int] = HEAD_SIZES) -> int:
    """The head size that a kernel is compiled for."""
    return next(size for size in sizes if size >= n)


def features(p: Problem, vector: bool) -> dict[str, Any]:
    """The fields of `Spec` that say what scores go through, and how rows are read."""
    bias = None if p.bias is None else "float32" if p.bias.dtype == "float32" else p.dtype
    return {"softcap": p.softcap is not None, "bias": bias, "alibi": p.slopes is not None, "vector": vector}


def fitted(usual: Spec, machine: Machine, shared_bytes: Callable[[Spec], int], **needed: int) -> Spec:
    """The tile with what was set by hand, made smaller until it fits the shared memory of the machine.

    `needed`: warps is rounded up to a multiple of what is needed, row_tiles is what is needed.
    """
    by_hand = chosen()
    step = needed.get("warps", 1)
    if "warps" in by_hand:
        by_hand["warps"] = -(-by_hand["warps"] // step) * step
    by_hand |= {name: n for name, n in needed.items() if name != "warps"}
    fields: dict[str, Any] = dict(by_hand)
    fields["q_in_registers"] = bool(by_hand.get("q_in_registers", usual.q_in_registers))
    spec = replace(usual, **fields)
    while shared_bytes(spec) > machine.shared_bytes:
        if spec.keys > 16:
            spec = replace(spec, keys=max(16, spec.keys // 32 * 16))
        elif spec.warps > step:
            spec = replace(spec, warps=max(step, spec.warps // 2 // step * step))
        else:
            raise Refused(f"D={usual.D}, Dv={usual.Dv}: no tile fits {machine.shared_bytes} bytes of {machine.name}")
    return spec


def _check(fields: dict[str, int]) -> None:
    unknown = set(fields) - set(FIELDS)
    if unknown:
        raise ValueError(f"tiles have no {', '.join(sorted(unknown))}; they have {', '.join(FIELDS)}")
