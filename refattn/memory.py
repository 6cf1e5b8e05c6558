"""From dense arrays to the memory that a storage describes, and back; also what is answered.

`give` and `take` are for what an implementation is handed, `give_answer` and `take_answer` for what
it returns; dense is (B, heads, L, D) throughout, of sizes and lengths that the case has.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from .case import Cache, Case, Dense, Packed, Paged, Shared, Strided
from .layouts import cu_seqlens, pack, pack_lse, page, unpack, unpack_lse, unpage

__all__ = ["answer_shape", "extra_names", "give", "give_answer", "take", "take_answer"]

Array = np.ndarray[Any, Any]

_ROWS_OF_QUERIES = ("q", "dout", "out", "dq")
_ROWS_OF_KEYS = ("k", "v", "dk", "dv")
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux: pages count when they are touched


def extra_names(case: Case) -> tuple[str, ...]:
    """What a case hands over besides q k v bias sinks keep dout dlse."""
    names: tuple[str, ...] = ()
    if case.rotary is not None:
        names += ("cos", "sin")
    if case.quant is not None:
        names += tuple(f"{n}_scale" for n in ("kv" if case.quant.of == "kv" else "qkv"))
    if isinstance(case.storage, Packed):
        names += ("cu_seqlens_q", "cu_seqlens_k") + (("seqused_q", "seqused_k") if case.storage.gap else ())
    if isinstance(case.storage, Paged):
        names += ("block_table", "seqused_k")
    if isinstance(case.storage, Cache):
        names += ("k_cache", "v_cache", "cache_lens")
    return names


def give(case: Case, dense: Mapping[str, Array]) -> dict[str, Array]:
    """New writeable arrays, as the case's storage has them."""
    storage = case.storage
    given = {name: x.copy() for name, x in dense.items()}
    if isinstance(storage, Dense):
        order = ["BHLD".index(letter) for letter in storage.layout]
        back = np.argsort(order)
        given |= {n: x.transpose(order).copy().transpose(back) for n, x in dense.items() if x.ndim == 4}
    elif isinstance(storage, Strided):
        given |= {n: _far_apart(dense[n], storage.row) for n in ("q", "k", "v", "bias", "dout") if n in dense}
    elif isinstance(storage, Shared):
        given["v"] = given["k"][..., : case.Dv]
    elif isinstance(storage, Packed):
        q_lens, k_lens = case.lengths
        for name in (n for n in (*_ROWS_OF_QUERIES, *_ROWS_OF_KEYS) if n in dense):
            lens = k_lens if name in _ROWS_OF_KEYS else q_lens
            given[name] = pack(dense[name], lens, storage.gap, _fill(dense[name]))
        if "dlse" in dense:
            given["dlse"] = pack_lse(dense["dlse"], q_lens, storage.gap)
        given |= {"cu_seqlens_q": cu_seqlens(q_lens, storage.gap), "cu_seqlens_k": cu_seqlens(k_lens, storage.gap)}
        if storage.gap:
            given |= {"seqused_q": np.array(q_lens, np.int32), "seqused_k": np.array(k_lens, np.int32)}
    elif isinstance(storage, Paged):
        k_lens = case.lengths[1]
        for name in "kv":
            given[name], given["block_table"] = page(
                dense[name], k_lens, storage.page_size, seed=case.seed, spare=2, fill=_fill(dense[name])
            )
        given["seqused_k"] = np.array(k_lens, np.int32)
    else:
        past = np.array(case.lengths[1], np.int32) - np.int32(case.Lq)
        given["cache_lens"] = past
        for name in "kv":
            cache = _emptied_cache(case, dense[name], _fill(dense[name]))
            new = np.zeros((case.B, case.Hkv, case.Lq, dense[name].shape[3]), dense[name].dtype)
            for b, n in enumerate(past):
                cache[b, :n] = dense[name][b, :, :n].swapaxes(0, 1)
                new[b] = dense[name][b, :, n : n + case.Lq]
            given[name], given[f"{name}_cache"] = new, cache
    return given


def take(case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
    """The dense arrays; what lies beyond a length is 0 where the storage has no place for it."""
    storage = case.storage
    q_lens, k_lens = case.lengths
    dense = dict(given)
    if isinstance(storage, Packed):
        for name in (n for n in (*_ROWS_OF_QUERIES, *_ROWS_OF_KEYS) if n in given):
            keys = name in _ROWS_OF_KEYS
            lens, L = (k_lens, case.Lk) if keys else (q_lens, case.Lq)
            dense[name] = unpack(given[name], lens, storage.gap, L)
        if "dlse" in given:
            dense["dlse"] = unpack_lse(given["dlse"], q_lens, storage.gap, case.Lq)
    elif isinstance(storage, Paged):
        dense |= {name: unpage(given[name], given["block_table"], k_lens, case.Lk) for name in "kv"}
    elif isinstance(storage, Cache):
        for name in "kv":
            new, cache = given[name], given[f"{name}_cache"]
            x = np.zeros((case.B, case.Hkv, case.Lk, new.shape[3]), new.dtype)
            for b, n in enumerate(given["cache_lens"]):
                x[b, :, :n] = cache[b, :n].swapaxes(0, 1)
                x[b, :, n : n + case.Lq] = new[b]
            dense[name] = x
    return dense


def answer_shape(case: Case, name: str, dense: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which an output of the shape `dense` is returned."""
    if isinstance(case.storage, Packed):
        q_lens, k_lens = case.lengths
        tokens = int(cu_seqlens(k_lens if name in _ROWS_OF_KEYS else q_lens, case.storage.gap)[-1])
        if name in (*_ROWS_OF_QUERIES, *_ROWS_OF_KEYS):
            return (tokens, dense[1], dense[3])
        if name == "lse":
            return (dense[1], tokens)
    if isinstance(case.storage, Cache) and name.endswith("_cache"):
        return (dense[0], dense[2] + case.storage.spare, dense[1], dense[3])
    return dense


def give_answer(case: Case, dense: Mapping[str, Array]) -> dict[str, Array]:
    """Dense outputs as they are returned."""
    answer = dict(dense)
    for name, x in dense.items():
        if isinstance(case.storage, Packed) and x.ndim == 4 and name != "dbias":
            answer[name] = pack(x, case.lengths[name in _ROWS_OF_KEYS], case.storage.gap, 0.0)
        elif isinstance(case.storage, Packed) and name == "lse":
            answer[name] = pack_lse(x, case.lengths[0], case.storage.gap, 0.0)
        elif name.endswith("_cache"):
            answer[name] = _emptied_cache(case, x, 0.0)
            answer[name][:, : case.Lk] = x.swapaxes(1, 2)
    return answer


def take_answer(case: Case, name: str, x: Array) -> Array:
    """An output of the shape `answer_shape` dense; beyond a length it is 0."""
    if isinstance(case.storage, Packed):
        q_lens, k_lens = case.lengths
        if name in _ROWS_OF_KEYS:
            return unpack(x, k_lens, case.storage.gap, case.Lk)
        if name in _ROWS_OF_QUERIES:
            return unpack(x, q_lens, case.storage.gap, case.Lq)
        if name == "lse":
            return unpack_lse(x, q_lens, case.storage.gap, case.Lq)
    return x[:, : case.Lk].swapaxes(1, 2) if name.endswith("_cache") else x


def _fill(x: Array) -> float:
    """What unused memory holds: NaN, of integers their largest."""
    return float(np.iinfo(x.dtype).max) if x.dtype.kind in "iu" else float("nan")


def _emptied_cache(case: Case, x: Array, fill: float) -> Array:
    slots = case.Lk + (case.storage.spare if isinstance(case.storage, Cache) else 0)
    return np.full((case.B, slots, case.Hkv, x.shape[3]), fill, x.dtype)


def _far_apart(x: Array, row: int) -> Array:
    """A copy whose rows begin `row` elements apart, in memory of which the rest is never touched."""
    B, H, L, D = x.shape
    step = max(row, D)
    size = max(1, B * H * L * step * x.dtype.itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    strides = tuple(n * x.dtype.itemsize for n in (H * L * step, L * step, step, 1))
    far = np.ndarray(x.shape, x.dtype, memory, 0, strides)
    far[...] = x
    return far
