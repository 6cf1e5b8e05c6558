"""The problems that mutants are run on: few tiles, ragged, and each thing that a kernel has code for in one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from refattn.case import BiasSpec, Case, Packed, Strided
from refattn.masks import Causal, Window

__all__ = ["ALIBI", "PROBLEMS", "Posed"]

ALIBI = BiasSpec("HQK", "float32", "alibi")
"""Handed over as slopes."""
BIAS = BiasSpec("HQK")
RIGHT = Causal("bottom_right")
FORWARD = frozenset({"out", "lse"})
ALL = FORWARD | {"dq", "dk", "dv"}

ONE, TWO = {"warps": 1, "keys": 16}, {"warps": 2, "keys": 16}
STRIPES = {"warps": 1, "keys": 16, "row_tiles": 2, "q_in_registers": 0}
GROUP, GROUPS = {"warps": 4, "keys": 16}, {"warps": 8, "keys": 16}
FOUR = {"warps": 1, "keys": 4}


@dataclass(frozen=True)
class Posed:
    """A case, the kernel of the door (`gpu.implementation`) that it is put to, and its tile (`gpu.launch.choose`)."""

    kernel: str
    tiles: Mapping[str, int]
    case: Case


def _posed(kernel: str, name: str, tiles: Mapping[str, int], **fields: Any) -> Posed:
    usual: dict[str, Any] = {"D": 32, "Dv": 32, "dtype": "bfloat16", "family": "peaked", "want": FORWARD}
    return Posed(kernel, tiles, Case(name, "a bug in a GPU kernel shows", **{**usual, **fields}))


def _lengths(q_lens: tuple[int, ...], k_lens: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    sizes = {"B": len(q_lens), "Lq": max(q_lens), "Lk": max(k_lens)}
    return {**sizes, "q_lens": q_lens, "k_lens": k_lens, **fields}


def _forward() -> Iterator[Posed]:
    put = partial(_posed, "tensor_core")
    yield put("causal", TWO, H=2, Lq=37, Lk=45, Dv=24, mask=RIGHT)
    yield put("window", TWO, Lq=40, Lk=25, D=64, dtype="float16", mask=Window(9, 3, "bottom_right"), sinks="normal")
    yield put("empty", ONE, Lq=30, Lk=21, family="normal", mask=RIGHT)
    yield put("negative", ONE, Lq=5, Lk=65, D=24, Dv=16, dtype="float16", scale=-0.7)
    yield put("scale-0", ONE, Lq=20, Lk=20, scale=0.0, mask=RIGHT)
    yield put("modified", ONE, H=2, Hkv=2, D=40, softcap=2.0, bias=BIAS, **_lengths((12, 9), (40, 17)))
    yield put("alibi", ONE, H=2, Lq=9, Lk=37, bias=ALIBI)
    yield put("groups", ONE, H=4, Hkv=2, Lq=3, Lk=18)
    yield put("stripes", STRIPES, Lq=40, Lk=33, mask=RIGHT)
    yield put("elements", ONE, H=2, Lq=9, Lk=19, D=33, Dv=35)
    yield put("far", ONE, Lq=3, Lk=6, dtype="float16", storage=Strided(2**28))
    put = partial(_posed, "varlen")
    yield put("packed", ONE, H=2, mask=RIGHT, **_lengths((16, 1, 35, 17), (20, 5, 30, 33), storage=Packed()))
    yield put("packed-gaps", ONE, **_lengths((1, 2, 3, 0, 5), (4, 2, 9, 3, 1), storage=Packed(3)))


def _backward() -> Iterator[Posed]:
    put = partial(_posed, "tensor_core", want=ALL)
    yield put("grad-window", ONE, Lq=40, Lk=25, dtype="float16", mask=Window(9, 3, "bottom_right"))
    yield put("grad-modified", ONE, D=40, softcap=2.0, bias=BIAS, **_lengths((12, 9), (40, 17)))
    yield put("grad-hidden", ONE, Lq=9, Lk=20, D=72, Dv=72, bias=BiasSpec("HQK", "float32", "padding"))
    yield put("grad", TWO, H=2, Lq=20, Lk=35, Dv=24, mask=RIGHT, sinks="normal", want=ALL | {"dsinks"})


def _decode() -> Iterator[Posed]:
    put = partial(_posed, "decode")
    yield put("few", TWO, H=2, Lq=3, Lk=100, mask=RIGHT, sinks="normal")
    yield put("few-rows", ONE, Lq=5, Lk=40, mask=Causal("top_left"))
    yield put("few-long", ONE, Lq=1, Lk=400, Dv=128)
    yield put("few-hidden", TWO, Lq=5, Lk=3, mask=RIGHT)
    yield put("few-negative", ONE, Lq=2, Lk=40, D=24, Dv=16, dtype="float16", scale=-0.7)
    yield put("few-modified", ONE, H=2, Hkv=2, D=40, softcap=2.0, bias=BIAS, **_lengths((5, 3), (40, 17)))
    yield put("few-alibi", ONE, H=2, Lq=3, Lk=37, bias=ALIBI)
    yield put("few-packed", ONE, H=2, **_lengths((3, 0, 2), (20, 9, 40), storage=Packed(2)))


def _wgmma() -> Iterator[Posed]:
    put = partial(_posed, "wgmma", D=64, Dv=64)
    yield put("warpgroup", GROUP, H=2, Lq=37, Lk=45, mask=Window(26, 0, "bottom_right"), sinks="normal")
    yield put("warpgroup-heads", GROUP, H=4, Hkv=2, Lq=3, Lk=18, D=56, Dv=40)
    yield put("warpgroups", GROUPS, Lq=100, Lk=20, Dv=128)


def _plain() -> Iterator[Posed]:
    put = partial(_posed, dtype="float32", D=10, Dv=6)
    yield put("naive", "naive-window", FOUR, H=4, Hkv=2, Lq=7, Lk=9, mask=Window(3, 1, "bottom_right"), sinks="normal")
    negative = _lengths((3, 0, 5), (4, 2, 1), storage=Packed(2), family="all_negative_logits")
    yield put("naive", "naive-packed", FOUR, H=2, **negative)
    yield put("naive", "naive-alibi", FOUR, H=2, Lq=4, Lk=7, bias=ALIBI)
    yield put("tiled", "tiled-causal", FOUR, H=4, Hkv=2, Lq=37, Lk=14, mask=RIGHT, sinks="normal")
    put = partial(put, "tiled", want=ALL)
    band = Window(5, 1, "top_left")
    yield put("tiled-grad", FOUR, H=2, Lq=20, Lk=5, mask=band, sinks="normal", softcap=3.0)


PROBLEMS = {posed.case.id: posed for some in (_forward, _backward, _decode, _wgmma, _plain) for posed in some()}
"""By name."""
