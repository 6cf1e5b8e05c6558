"""Streams as libraries have them."""

from __future__ import annotations

from typing import Any

__all__ = ["stream_of"]


def stream_of(stream: Any) -> int:
    """The address of a stream (0: the default one): an int, or an object of CuPy, torch or numba."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise ValueError(f"stream={stream} must be the address of a stream; pass None for the current one")
        return stream
    for name in ("ptr", "cuda_stream"):  # CuPy, torch
        if isinstance(getattr(stream, name, None), int):
            return int(getattr(stream, name))
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, address = protocol()
        if version != 0:
            raise TypeError(f"stream={stream!r} has version {version} of __cuda_stream__, not 0; pass its address")
        return int(address)
    if hasattr(stream, "handle"):  # numba
        return int(stream.handle or 0)
    raise TypeError(f"stream is a {type(stream).__name__}, not a stream of CuPy, torch or numba; pass its address")
