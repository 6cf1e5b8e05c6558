"""Quantised q, k, v: codes of few bits times scales, and what they stand for, exactly.

| kind | codes | scale of | scale |
|---|---|---|---|
| int8 | int8, -127 to 127, ties to even | max abs / 127 | float32 |
| float8_e4m3fn | that dtype, rounded once from float64 | max abs / 448 | float32 |
| float8_e5m2 | that dtype, rounded once from float64 | max abs / 57344 | float32 |
| q8_0 | int8, -127 to 127, ties away from zero | max abs / 127 | float16 |
| q4_0 | nibbles n for n - 8, -8 to 7, two in a uint8 | (the entry of largest size) / -8 | float16 |

Granularity "tensor" has one scale for all (FP8 as commonly used), "head" one for each batch entry
and head (FlashAttention-3: `k_descale` (B, Hkv)), "block" one for each block of `block` tokens of a
head: FlashAttention-3 (Shah et al. 2024, section 3.3) quantises blocks of the tiles' size,
SageAttention (`per_block_int8`) blocks of 64 keys, our default, and of 128 queries.  Where all
entries of a block are 0, so are its codes, and the scale is 1.

q8_0 and q4_0 are blocks of 32 along D by definition: `quantize_row_q8_0_ref` and `_q4_0_ref` of
ggml, in its float32 arithmetic step by step (so x is rounded to float32 first).  A C compiler that
fuses the q4_0's x / d + 8.5 may land on the other side of a tie.  There a block of zeros has scale 0.

No scale is a power of two but by accident of the data, except that q4_0's is where the largest
entry is one; so a scale that is dropped or read from the wrong place shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from .dtypes import FORMATS, exact64, round_to
from .visibility import check_int

__all__ = ["BLOCK", "KINDS", "Granularity", "Kind", "Quant", "dequantise", "ggml_blocks", "quantise"]

Array = np.ndarray[Any, Any]
Kind = Literal["int8", "float8_e4m3fn", "float8_e5m2", "q8_0", "q4_0"]
Granularity = Literal["tensor", "head", "block"]

KINDS: tuple[Kind, ...] = get_args(Kind)
BLOCK = 64
"""tokens that share a scale, granularity "block" """
_GGML = ("q8_0", "q4_0")
_QK = 32  # entries of a block of ggml's q8_0 and q4_0
_LARGEST = {"int8": 127.0, "float8_e4m3fn": FORMATS["float8_e4m3fn"].max, "float8_e5m2": FORMATS["float8_e5m2"].max}


@dataclass(frozen=True)
class Quant:
    """Which of q, k, v are stored as codes and scales ("kv" or "qkv"), and how; see the module's table."""

    kind: Kind
    granularity: Granularity
    of: Literal["kv", "qkv"] = "kv"

    def __post_init__(self) -> None:
        _check(self.kind, self.granularity)
        if self.of not in ("kv", "qkv"):
            raise ValueError(f"of={self.of!r} must be 'kv' or 'qkv'")
        if self.kind in _GGML and self.of != "kv":
            raise ValueError(f"of={self.of!r} must be 'kv' for kind={self.kind!r}, the format of a cache")


def quantise(x: Any, kind: Kind, granularity: Granularity, block: int = BLOCK) -> tuple[Array, Array]:
    """Codes and scales of x (B, heads, L, D): x is about code * scale.

    Codes have the shape of x, of q4_0 (B, heads, L, D/2): byte t of a block of 32 holds entry t in
    its low four bits and entry t + 16 in its high ones.  Scales are (1, 1, 1, 1), (B, heads, 1, 1) or
    (B, heads, blocks, 1), of q8_0 and q4_0 (B, heads, L, D/32).

    The error is at most half a step (the spacing of the codes at x, times the scale), beyond which
    q8_0 and q4_0 add |code| times the rounding of their scale to float16, and q4_0 half a step more
    for entries beyond 7.5 scales: of the two ends -8 and 8 only one is a code.  Refused: entries that
    are not finite, and those whose scale is not a normal float32 or overflows float16.
    """
    _check(kind, granularity)
    check_int("block", block, 1)
    x = _four(exact64(x, "x"), "x")
    if not np.isfinite(x).all():
        raise ValueError(f"x holds {x[~np.isfinite(x)][0]}, which has no code; poison codes or scales afterwards")
    if kind in _GGML:
        return _quantised_as_ggml(x, kind)
    if granularity == "tensor":
        peak = np.max(np.abs(x), initial=0.0).reshape(1, 1, 1, 1)
    elif granularity == "head":
        peak = np.max(np.abs(x), axis=(2, 3), keepdims=True, initial=0.0)
    else:
        tokens = np.max(np.abs(x), axis=3, initial=0.0)
        starts = range(0, x.shape[2], block)
        peak = np.zeros((*x.shape[:2], len(starts), 1))
        for n, start in enumerate(starts):
            peak[:, :, n, 0] = np.max(tokens[:, :, start : start + block], axis=2, initial=0.0)
    wanted = np.where(peak > 0, peak / _LARGEST[kind], 1.0)
    single = FORMATS["float32"]
    bad = (wanted < single.smallest_normal) | (wanted > single.max)
    if bad.any():
        raise ValueError(f"max|x|={peak[bad][0]:.3g} needs a scale that is no normal float32; multiply x by a constant")
    scale = wanted.astype(np.float32)
    y = x / _each_token(scale.astype(np.float64), x.shape, granularity == "block", block)
    if kind == "int8":
        return np.rint(y).astype(np.int8), scale
    return round_to(y, kind).astype(FORMATS[kind].numpy), scale


def dequantise(codes: Any, scale: Any, kind: Kind, block: int = BLOCK) -> Array:
    """code * scale as real numbers, float64 (B, heads, L, D): exact, as 8 and 24 bits fit into 53.

    Shapes and dtypes as `quantise` makes them, with the same `block`; NaN in a scale or in a float8
    code gives NaN.
    """
    _check(kind, "block")
    check_int("block", block, 1)
    codes, scale = _four(np.asarray(codes), "codes"), _four(np.asarray(scale), "scale")
    wanted = {"q8_0": "int8", "q4_0": "uint8"}.get(kind, kind)
    for name, array, dtype in (("codes", codes, wanted), ("scale", scale, "float16" if kind in _GGML else "float32")):
        if array.dtype != (FORMATS[dtype].dtype if dtype in FORMATS else np.dtype(dtype)):
            raise TypeError(f"{name}.dtype={array.dtype} must be {dtype} for kind={kind!r}; pass what quantise returns")
    if kind == "q4_0":
        codes = _unpacked(codes)
    B, heads, L, D = codes.shape
    if kind in _GGML:
        shapes = [(B, heads, L, D // _QK)]
        fits = D % _QK == 0 and scale.shape == shapes[0]
    else:
        shapes = [(1, 1, 1, 1), (B, heads, 1, 1), (B, heads, -(-L // block), 1)]
        fits = scale.shape in shapes
    if not fits:
        known = " or ".join(map(str, shapes))
        raise ValueError(f"scale.shape={scale.shape} must be {known} for codes {codes.shape}, kind={kind!r}, {block=}")
    wide = scale.astype(np.float64)
    if kind in _GGML:
        wide = np.repeat(wide, _QK, axis=3)
    else:
        wide = _each_token(wide, codes.shape, scale.shape == shapes[2], block)
    with np.errstate(invalid="ignore"):
        return np.asarray(codes.astype(np.float64) * wide)


def ggml_blocks(codes: Any, scale: Any, kind: Kind) -> Array:
    """The bytes of ggml's block_q8_0 or block_q4_0, uint8 (B, heads, L, D/32, 34 or 18): scale, then codes."""
    if kind not in _GGML:
        raise ValueError(f"kind={kind!r} must be one of {', '.join(_GGML)}, the formats of ggml")
    dequantise(codes, scale, kind)  # refuses what does not fit
    codes, scale = np.asarray(codes), np.asarray(scale)
    head = np.ascontiguousarray(scale.astype("<f2")[..., None]).view(np.uint8)
    each = _QK if kind == "q8_0" else _QK // 2
    return np.concatenate([head, codes.view(np.uint8).reshape(*scale.shape, each)], axis=-1)


def _quantised_as_ggml(x: Array, kind: Kind) -> tuple[Array, Array]:
    if x.shape[3] % _QK:
        raise ValueError(f"x.shape={x.shape} must have D a multiple of {_QK}, the block of {kind}; pad with zeros")
    one = np.float32(1)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        y = x.astype(np.float32).reshape(*x.shape[:3], x.shape[3] // _QK, _QK)
        if kind == "q8_0":
            d = np.max(np.abs(y), axis=4, keepdims=True, initial=0) / np.float32(127)
        else:
            d = np.take_along_axis(y, np.argmax(np.abs(y), axis=4)[..., None], axis=4) / np.float32(-8)
        scale = d[..., 0].astype(np.float16)
        inverse = np.where(np.isfinite(one / d), one / d, np.float32(0))
        y = y * inverse
    if not np.isfinite(scale).all():
        raise ValueError(f"max|x|={np.abs(x).max():.3g} needs a scale beyond float16, kind={kind!r}; scale x down")
    if kind == "q8_0":
        wide = y.astype(np.float64)  # in float32, 0.5 less 2**-25 would round up
        codes = np.copysign(np.trunc(np.abs(wide) + 0.5), wide).astype(np.int8)
        return codes.reshape(x.shape), scale
    nibbles = np.minimum(np.trunc(y + np.float32(8.5)), 15).astype(np.uint8)
    packed = nibbles[..., : _QK // 2] | nibbles[..., _QK // 2 :] << np.uint8(4)
    return packed.reshape(*x.shape[:3], x.shape[3] // 2), scale


def _unpacked(codes: Array) -> Array:
    """The codes -8 to 7, int8 (B, heads, L, D), of q4_0's bytes."""
    if codes.shape[3] % (_QK // 2):
        raise ValueError(f"codes.shape={codes.shape} must hold {_QK // 2} bytes for each block of {_QK}, kind='q4_0'")
    blocks = codes.reshape(*codes.shape[:3], codes.shape[3] // (_QK // 2), _QK // 2)
    nibbles = np.concatenate([blocks & 15, blocks >> 4], axis=4).reshape(*codes.shape[:3], 2 * codes.shape[3])
    return nibbles.astype(np.int8) - np.int8(8)


def _each_token(scale: Array, shape: tuple[int, ...], blocks: bool, block: int) -> Array:
    """The scales, those of blocks repeated for each of their tokens."""
    return np.repeat(scale, block, axis=2)[:, :, : shape[2]] if blocks else scale


def _four(x: Array, name: str) -> Array:
    if x.ndim != 4:
        raise ValueError(f"{name}.shape={x.shape} must have 4 dimensions (B, heads, L, D)")
    return x


def _check(kind: str, granularity: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    if granularity not in get_args(Granularity):
        raise ValueError(f"granularity={granularity!r} is not one of {', '.join(get_args(Granularity))}")
    if kind in _GGML and granularity != "block":
        raise ValueError(f"granularity={granularity!r} must be 'block' for kind={kind!r}: blocks of {_QK} along D")
