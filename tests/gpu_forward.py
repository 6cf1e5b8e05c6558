"""Problems of the suite, run through forward kernels in the executor and judged; for the tests of several kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu import simt
from gpu.kernels import k5_decode as k5
from gpu.kernels import k6_varlen as k6
from gpu.kernels.arguments import NO_LIMIT, Band, Bias, Lengths, Operand, Rows, Scores, Shape
from gpu.kernels.spec import HEAD_SIZES, Spec
from refattn.alibi import alibi
from refattn.case import Case, Packed
from refattn.inputs import Problem
from refattn.judge import judge
from refattn.masks import Causal, Mask, Window
from refattn.memory import answer_shape, give
from refattn.oracle import scale_of
from refattn.precision import Conventions, preset
from refattn.visibility import And

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tiles:
    """How a kernel is compiled and run."""

    warps: int = 2
    row_tiles: int = 1
    keys: int = 16
    vector: bool = True
    resident: bool = True
    splits: int = 3
    schedule: str | int = "first"


@dataclass
class Call:
    """A problem in memory: what it is given, and outputs full of NaN that the kernels have to write."""

    problem: Problem
    slopes: Array | None = None
    given: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.problem.case
        logical = dict(self.problem.logical)
        if self.slopes is not None:  # the problem has them as a bias
            del logical["bias"]
        x = give(case, logical)
        if not isinstance(case.storage, Packed):
            lens = (("seqused_q", case.q_lens), ("seqused_k", case.k_lens))
            x |= {name: np.array(n, np.int32) for name, n in lens if n is not None}
            for name, lengths in zip("qkv", (case.lengths[0], case.lengths[1], case.lengths[1]), strict=True):
                for b, n in enumerate(lengths):
                    x[name][b, :, n:] = np.nan  # memory that must not be read
        if "sinks" in x:
            x["sinks"] = x["sinks"].astype(np.float32)
        if self.slopes is not None:
            x["slopes"] = self.slopes
        self.given = x
        self.out = self._empty("out", x["q"].dtype)
        self.lse = self._empty("lse", np.float32)

    def _empty(self, name: str, dtype: Any) -> Array:
        case = self.problem.case
        x = np.empty(answer_shape(case, name, case.shape_of(name)), dtype)
        x.view(f"u{x.itemsize}")[...] = 2 ** (8 * x.itemsize) - 1
        return x

    def spec(self, tiles: Tiles, **others: Any) -> Spec:
        case = self.problem.case
        D, Dv = (next(n for n in HEAD_SIZES if n >= size) for size in (case.D, case.Dv))
        bias = None if "bias" not in self.given else case.bias.dtype if case.bias else None
        return Spec(
            case.dtype, D, Dv, warps=tiles.warps, row_tiles=tiles.row_tiles, keys=tiles.keys, vector=tiles.vector,
            q_in_registers=tiles.resident, softcap=case.softcap is not None, bias=bias, alibi=self.slopes is not None,
            **others,
        )  # fmt: skip

    def address(self, name: str) -> np.int64:
        return np.int64(self.given[name].ctypes.data if name in self.given else 0)

    @property
    def shape(self) -> Shape:
        case = self.problem.case
        return Shape(*map(np.int32, (case.B, case.H, case.H // case.Hkv, case.Lq, case.Lk, case.D, case.Dv)))

    @property
    def lengths(self) -> Lengths:
        return Lengths(*map(self.address, ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")))

    @property
    def scores(self) -> Scores:
        case = self.problem.case
        scale = np.float32(scale_of(case.scale, case.D))
        return Scores(scale, np.float32(case.softcap or 0), self.address("sinks"), self.address("slopes"))

    @property
    def bias(self) -> Bias:
        x = self.given.get("bias")
        strides = [0] * 4 if x is None else [0 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)]
        return Bias(self.address("bias"), *map(np.int64, strides))

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(operand(self.given[name]) for name in "qkv")

    def run(
        self, kernel: Any, grid: Any, threads: int, shared: int, args: tuple[Any, ...], schedule: Any, *more: Any
    ) -> None:  # fmt: skip
        for x in self.given.values():
            x.setflags(write=False)
        if np.prod(grid):
            simt.run(kernel, grid, (threads,), shared, args, [*self.given.values(), *more], schedule)


def operand(x: Array) -> Operand:
    """(B, heads, L, D), or packed (tokens, heads, D)."""
    batch, head, row = x.strides[:3] if x.ndim == 4 else (0, x.strides[1], x.strides[0])
    return Operand(*map(np.int64, (x.ctypes.data, batch, head, row)))


def rows_of(x: Array) -> Rows:
    """(B, H, Lq), or packed (H, tokens)."""
    batch, head = x.strides[:2] if x.ndim == 3 else (0, x.strides[0])
    return Rows(*map(np.int64, (x.ctypes.data, batch, head)))


def band_of(mask: Mask | None) -> Band:
    parts = [mask.left, mask.right] if isinstance(mask, And) else [] if mask is None else [mask]
    left = right = NO_LIMIT
    for part in parts:
        if isinstance(part, Causal):
            right = min(right, 0)
        elif isinstance(part, Window):
            left, right = (min(n, NO_LIMIT if m is None else m) for n, m in ((left, part.left), (right, part.right)))
        else:
            raise TypeError(f"mask={mask!r} is no band")
    aligns = {part.align for part in parts if isinstance(part, (Causal, Window))}
    if len(aligns) > 1:
        raise TypeError(f"mask={mask!r} has two alignments")
    return Band(np.int32(left), np.int32(right), np.int32("bottom_right" in aligns))


def decode(call: Call, tiles: Tiles) -> dict[str, Array]:
    """out and lse of k5, both kernels."""
    case = call.problem.case
    spec = call.spec(tiles)
    rows = case.H // case.Hkv * case.Lq
    parts = [np.full(n // 4, np.nan, np.float32) for n in k5.workspace(case.B * case.Hkv, rows, tiles.splits, spec)]
    partial = k5.Partial(*(np.int64(p.ctypes.data) for p in parts), np.int32(tiles.splits))
    call.run(
        k5.split(spec), k5.grid(case.B, case.Hkv, rows, tiles.splits, spec), spec.threads, k5.shared_bytes(spec),
        (*call.inputs, partial, call.shape, band_of(case.mask), call.lengths, call.scores, call.bias),
        tiles.schedule, *parts,
    )  # fmt: skip
    for p in parts:
        p.setflags(write=False)
    call.run(
        k5.merge(spec), (case.Lq, case.H, case.B), k5.merge_threads(spec), k5.merge_bytes(spec),
        (partial, operand(call.out), rows_of(call.lse), call.shape, call.lengths, call.scores),
        tiles.schedule, *parts, call.out, call.lse,
    )  # fmt: skip
    return {"out": call.out, "lse": call.lse}


def varlen(call: Call, tiles: Tiles) -> dict[str, Array]:
    """out and lse of k6."""
    case = call.problem.case
    spec = call.spec(tiles, varlen=True)
    made = operand(call.out), rows_of(call.lse)
    call.run(
        k6.forward(spec), k6.grid(call.given["q"].shape[0], case.B, case.H, spec), spec.threads, k6.shared_bytes(spec),
        (*call.inputs, *made, call.shape, band_of(case.mask), call.lengths, call.scores, call.bias),
        tiles.schedule, call.out, call.lse,
    )  # fmt: skip
    return {"out": call.out, "lse": call.lse}


def with_slopes(problem: Problem, slopes: Array) -> Problem:
    """A problem whose bias is ALiBi: its case must have a float32 bias of all dimensions; lengths move the diagonal."""
    case = problem.case
    bias = np.zeros(case.shape_of("bias"), np.float32)
    for b, (lq, lk) in enumerate(zip(*case.lengths, strict=True)):
        bias[b, :, :lq, :lk] = alibi(slopes, lq, lk)
    return Problem(case, {**problem.logical, "bias": bias}, problem.stored)


def check(problem: Problem, answer: Mapping[str, Array]) -> None:
    """Every element is within the bound of the contract that the kernels keep."""
    verdict = judge(problem, answer, preset(problem.case.dtype), Conventions(), outputs=frozenset(answer))
    assert verdict.status == "passed", verdict
    assert {o.name for o in verdict.outputs} == set(answer)


def small(**fields: Any) -> Case:
    """A case that all of this takes."""
    usual: dict[str, Any] = {"B": 2, "H": 4, "Hkv": 2, "Lq": 2, "Lk": 70, "D": 32, "Dv": 32, "dtype": "bfloat16"}
    return Case("gpu", "a forward kernel", **{**usual, **fields})
