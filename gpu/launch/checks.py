"""What may come in: every argument is checked by name, and becomes a `Problem`.

Nothing here waits for the device.  So what only the device knows is not checked: the values of cu_seqlens and
seqused that lie there (a kernel reads beyond q, k and v if they are wrong).  Lists and arrays on the host are checked,
and sent.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refattn.masks import Mask

from .arrays import Array, as_array, on_host
from .masks import BandOf, band_of

__all__ = ["LONGEST", "Problem", "Refused", "Taken", "check", "check_rows"]

LONGEST = 2**28
"""Most queries or keys of a sequence: sums of positions and windows have to fit 32 bits."""

FLOATS = ("float16", "bfloat16", "float32", "float64")


class Refused(ValueError):
    """No kernel, or not the one that is asked for, takes a problem that is well formed."""


@dataclass(frozen=True)
class Problem:
    """Checked arguments.  Lq and Lk are the longest of a sequence, or a bound of it where only the device knows."""

    q: Array
    k: Array
    v: Array
    dtype: str
    """of q, k and v; int16 arrays hold bfloat16"""
    B: int
    H: int
    Hkv: int
    Lq: int
    Lk: int
    D: int
    Dv: int
    packed: bool
    band: BandOf
    scale: float
    softcap: float | None
    bias: Array | None
    slopes: Array | None
    sinks: Array | None
    start_q: Array | None
    start_k: Array | None
    used_q: Array | None
    used_k: Array | None
    known: bool
    """whether all lengths are known on the host"""
    stream: int

    @property
    def like_q(self) -> tuple[int, ...]:
        """Shape of out and dout."""
        return (*self.q.shape[:-1], self.Dv)

    @property
    def rows(self) -> tuple[int, ...]:
        """Shape of lse and dlse."""
        return (self.H, self.q.shape[0]) if self.packed else (self.B, self.H, self.Lq)

    @property
    def scalar(self) -> str:
        """dtype of lse, sinks and slopes."""
        return "float64" if self.dtype == "float64" else "float32"


class Taken(NamedTuple):
    """What the backward is given beyond the problem, and where its results go."""

    out: Array
    dout: Array
    lse: Array
    dlse: Array | None
    dq: Array
    dk: Array
    dv: Array
    dsinks: Array | None


def check(
    q: Any, k: Any, v: Any, *, mask: Any = None, scale: Any = None, softcap: Any = None, bias: Any = None,
    alibi_slopes: Any = None, sinks: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
    seqused_q: Any = None, seqused_k: Any = None, stream: int = 0,
) -> Problem:  # fmt: skip
    """The Problem of the arguments of `attention`."""
    arrays = {name: as_array(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if packed and x is None:
            raise TypeError(f"{name} is missing; packed sequences need both cu_seqlens_q and cu_seqlens_k")
    _check_kind(arrays)
    _check_shapes(arrays, packed)
    arrays = {name: adjacent(x) for name, x in arrays.items()}
    Q, K, V = arrays.values()
    (H, D), (Hkv, Dv) = ((x.shape[1], x.shape[-1]) for x in (Q, V))
    lengths = _lengths(Q, K, packed, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    Lq, Lk = lengths["Lq"], lengths["Lk"]
    for name, n in (("q", Lq), ("k", Lk)):
        if n > LONGEST:
            raise ValueError(f"{name} has {n} tokens of a sequence, which must be at most 2**28={LONGEST}; split it")
    square = Lq == Lk and not packed and seqused_q is None and seqused_k is None
    problem = Problem(
        Q, K, V, dtype="bfloat16" if Q.dtype == "int16" else Q.dtype, H=H, Hkv=Hkv, D=D, Dv=Dv, packed=packed,
        band=_band(mask, square), scale=_scale(scale, D), softcap=_softcap(softcap), bias=None, slopes=None, sinks=None,
        stream=stream, **lengths,
    )  # fmt: skip
    return dataclasses.replace(
        problem,
        bias=None if bias is None else _bias(problem, bias),
        slopes=None if alibi_slopes is None else _of_heads(problem, "alibi_slopes", alibi_slopes),
        sinks=None if sinks is None else _of_heads(problem, "sinks", sinks),
    )


def check_rows(problem: Problem, name: str, x: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """An array of the gradients' arguments: of the problem's library and device, of that shape and dtype."""
    array = as_array(name, x)
    _same_place(problem.q, array)
    if array.shape != shape:
        raise ValueError(f"{name}.shape={array.shape} must be {shape}")
    if array.dtype != dtype:
        raise TypeError(f"{name}.dtype={array.dtype} must be {dtype}")
    return adjacent(array)


def adjacent(array: Array) -> Array:
    """The array itself, or a copy where elements along its last dimension are not adjacent."""
    if array.shape[-1] <= 1 or array.strides[-1] == array.itemsize:
        return array
    return array.library.array(array.name, array.library.packed_rows(array.owner))


def _check_kind(arrays: Mapping[str, Array]) -> None:
    q = arrays["q"]
    if q.dtype not in (*FLOATS, "int16"):
        cure = "; int16 holds the bits of bfloat16"
        raise TypeError(f"q.dtype={q.dtype} must be one of {', '.join(FLOATS)}{cure}")
    for name, x in arrays.items():
        if x.dtype != q.dtype:
            raise TypeError(f"{name}.dtype={x.dtype} must be q.dtype={q.dtype}; convert one of them")
        _same_place(q, x)


def _same_place(q: Array, x: Array) -> None:
    if x.library is not q.library:
        raise TypeError(f"{x.name} is an array of {x.library.name} and q one of {q.library.name}; use one library")
    if x.device != q.device:
        places = ["the CPU" if d is None else f"device {d}" for d in (x.device, q.device)]
        raise ValueError(f"{x.name} is on {places[0]} and q on {places[1]}; move {x.name} to {places[1]}")


def _check_shapes(arrays: Mapping[str, Array], packed: bool) -> None:
    letters = {"q": "(B, H, Lq, D)", "k": "(B, Hkv, Lk, D)", "v": "(B, Hkv, Lk, Dv)"}
    for name, x in arrays.items():
        if packed and len(x.shape) != 3:
            raise ValueError(
                f"{name}.shape={x.shape} must have 3 dimensions (tokens, heads, D), since cu_seqlens_q is given"
            )
        if not packed and len(x.shape) != 4:
            cure = "; packed sequences need cu_seqlens_q and cu_seqlens_k" if len(x.shape) == 3 else ""
            raise ValueError(f"{name}.shape={x.shape} must have 4 dimensions {letters[name]}{cure}")
    q, k, v = (arrays[n].shape for n in "qkv")
    if k[:-1] != v[:-1]:
        raise ValueError(f"v.shape={v} must be that of k, {k}, but for the last dimension")
    if q[-1] != k[-1]:
        raise ValueError(f"k.shape={k} must have the D={q[-1]} of q.shape={q}")
    if not packed and q[0] != k[0]:
        raise ValueError(f"k.shape={k} must have the B={q[0]} of q.shape={q}")
    H, Hkv = (q[1], k[1])
    if H != Hkv and (H == 0 or Hkv == 0 or H % Hkv):
        raise ValueError(f"H={H} heads of q must be a multiple of the Hkv={Hkv} heads of k and v")


def _band(mask: Any, square: bool) -> BandOf:
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(
            f"mask is a {type(mask).__name__}, which must be a Causal or Window of refattn.masks, or both joined with "
            "&; pass an array as bias, 0 where a key is seen and -inf where not"
        )
    band = band_of(mask, square)
    if band is None:
        raise ValueError(f"mask={str(mask)[:200]} is no band about one diagonal; pass a bias of 0 and -inf instead")
    return band


def _scale(scale: Any, D: int) -> float:
    if scale is None:
        return float(D) ** -0.5 if D else 1.0
    return _number("scale", scale, "D**-0.5")


def _softcap(softcap: Any) -> float | None:
    if softcap is None:
        return None
    value = _number("softcap", softcap, "no softcap")
    if not value > 0:
        raise ValueError(f"softcap={softcap} must be > 0; pass None for no softcap")
    if value < 2.0**-126 or value > 2.0**127:
        raise ValueError(f"softcap={softcap} must be within the range of float32; pass None for no softcap")
    return value


def _number(name: str, value: Any, default: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise TypeError(f"{name} is a {type(value).__name__}, which must be a number; pass None for {default}")
    if not math.isfinite(value):
        raise ValueError(f"{name}={value} must be finite; pass None for {default}")
    return float(value)


def _bias(problem: Problem, x: Any) -> Array:
    bias = as_array("bias", x)
    _same_place(problem.q, bias)
    if not problem.known:
        raise ValueError("bias with lengths that only the device knows could be too small; pass them as NumPy arrays")
    if bias.dtype not in ("float32", problem.q.dtype):
        raise TypeError(f"bias.dtype={bias.dtype} must be float32 or q.dtype={problem.q.dtype}; convert it")
    if len(bias.shape) != 4:
        raise ValueError(f"bias.shape={bias.shape} must have 4 dimensions (B or 1, H or 1, Lq or 1, Lk or 1)")
    for letters, n, full in zip(
        ("B", "H", "Lq", "Lk"), bias.shape, (problem.B, problem.H, problem.Lq, problem.Lk), strict=True
    ):
        longer = problem.packed and letters in ("Lq", "Lk") and n > full
        if n not in (1, full) and not longer:
            raise ValueError(f"bias.shape={bias.shape} must have {letters}={full} or 1 where it has {n}")
    return bias


def _of_heads(problem: Problem, name: str, x: Any) -> Array:
    """Numbers (H,), as float32 or float64: converted if they come in 16 bits."""
    array = as_array(name, x)
    _same_place(problem.q, array)
    if array.shape != (problem.H,):
        raise ValueError(f"{name}.shape={array.shape} must be (H,)={(problem.H,)}")
    if array.dtype not in (*FLOATS, "int16"):
        raise TypeError(f"{name}.dtype={array.dtype} must be float32, or that of q")
    if array.dtype == problem.scalar:
        return adjacent(array)
    library = array.library
    return library.array(name, library.converted(array.owner, problem.scalar))


def _lengths(q: Array, k: Array, packed: bool, cu_q: Any, cu_k: Any, used_q: Any, used_k: Any) -> dict[str, Any]:
    """B, Lq, Lk, and the arrays of lengths, on the device."""
    found: dict[str, Any] = {"known": True, "start_q": None, "start_k": None, "used_q": None, "used_k": None}
    B = None if packed else q.shape[0]
    for letter, x, cu, used in (("q", q, cu_q, used_q), ("k", k, cu_k, used_k)):
        longest = tokens = x.shape[0] if packed else x.shape[2]
        starts = None
        if packed:
            name = f"cu_seqlens_{letter}"
            found[f"start_{letter}"], starts = _integers(q, name, cu)
            size = found[f"start_{letter}"].shape[0] - 1
            if size < 0:
                raise ValueError(f"{name}.shape=(0,) must be (B + 1,): 0, and where each sequence ends")
            if B not in (None, size):
                raise ValueError(f"{name}.shape={(size + 1,)} must be (B + 1,)={(B + 1,)}, as that of cu_seqlens_q")
            B = size
            if starts is None:
                found["known"] = False
            else:
                _check_starts(name, starts, tokens, letter)
                longest = int(np.diff(starts).max(initial=0))
        if used is not None:
            name = f"seqused_{letter}"
            found[f"used_{letter}"], numbers_ = _integers(q, name, used)
            if found[f"used_{letter}"].shape != (B,):
                raise ValueError(f"{name}.shape={found[f'used_{letter}'].shape} must be (B,)={(B,)}")
            if numbers_ is None:
                found["known"] = False
            else:
                room = np.full(numbers_.shape, tokens) if starts is None else np.diff(starts)
                if (numbers_ < 0).any() or (numbers_ > room).any():
                    raise ValueError(f"{name}={numbers_.tolist()} must be from 0 to the lengths {room.tolist()}")
                longest = int(numbers_.max(initial=0)) if packed else longest
        found[f"L{letter}"] = longest
    return {**found, "B": B}


def _integers(q: Array, name: str, x: Any) -> tuple[Array, np.ndarray[Any, Any] | None]:
    """An int32 array (n,) on the device, and its values if they are known on the host."""
    host = on_host(name, x)
    if host is None:
        array = as_array(name, x)
        _same_place(q, array)
        if array.dtype != "int32":
            raise TypeError(f"{name}.dtype={array.dtype} must be int32; convert it")
        if len(array.shape) != 1:
            raise ValueError(f"{name}.shape={array.shape} must have 1 dimension")
        return adjacent(array), None
    if host.ndim != 1:
        raise ValueError(f"{name}.shape={host.shape} must have 1 dimension")
    if host.size and (host.dtype.kind not in "iu" or (not isinstance(x, (list, tuple)) and host.dtype != np.int32)):
        raise TypeError(f"{name}.dtype={host.dtype} must be int32; convert it")
    if host.size and not (np.abs(host.astype(np.float64)) < 2**31).all():
        raise ValueError(f"{name} must fit int32")
    sent = q.library.sent(np.ascontiguousarray(host, np.int32), q.device)
    return q.library.array(name, sent), host


def _check_starts(name: str, starts: np.ndarray[Any, Any], tokens: int, letter: str) -> None:
    shown = starts.tolist() if starts.size <= 16 else f"[{starts[0]} ... {starts[-1]}]"
    if starts[0] != 0:
        raise ValueError(f"{name}={shown} must begin with 0")
    if (np.diff(starts) < 0).any():
        raise ValueError(f"{name}={shown} must not fall; it holds sums of lengths")
    if starts[-1] > tokens:
        raise ValueError(f"{name}={shown} must end within the {tokens} tokens of {letter}")
