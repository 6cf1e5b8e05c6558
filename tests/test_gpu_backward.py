"""The backward kernels in the executor: every element within the bounds of the suite, the same bits in every run.

Each problem goes through all kernels: delta, dk and dv (together or one by one), dq, and dsinks.  out and lse are
the oracle's, rounded.  The executor raises on races, divergence, and reads that are out of bounds or uninitialised.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

for _package in ("numba_cuda", "greenlet"):
    if importlib.util.find_spec(_package) is None:
        pytest.skip(f"{_package} is not installed: pip install -e .[gpu-dev]", allow_module_level=True)

from gpu.target import SIMULATED

if not SIMULATED:
    pytest.skip("these tests run in the executor: NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import simt
from gpu.kernels import k4_backward as k4
from gpu.kernels import k4_delta
from gpu.kernels.arguments import NO_LIMIT, Band, Bias, Lengths, Operand, Rows, Scores, Shape
from gpu.kernels.spec import HEAD_SIZES, Spec
from refattn.case import BiasSpec, Case, Dense, Packed
from refattn.dtypes import round_to
from refattn.inputs import Problem, make
from refattn.judge import judge
from refattn.layouts import pack_lse
from refattn.masks import Causal, Mask, Window
from refattn.memory import answer_shape, give
from refattn.oracle import attention, scale_of
from refattn.precision import Conventions, preset

Array = np.ndarray[Any, Any]
GRADIENTS = frozenset({"dq", "dk", "dv"})
OUTPUTS = {"both": ("both",), "apart": ("dk", "dv")}


@dataclass(frozen=True)
class Tiles:
    """How the kernels are compiled and run."""

    warps: int = 2
    row_tiles: int = 1
    keys: int = 16
    apart: bool = False
    vector: bool = True
    schedule: str | int = "first"


def int64(x: Any) -> np.int64:
    return np.int64(x)


def address(x: Array | None) -> np.int64:
    return np.int64(0 if x is None else x.ctypes.data)


def operand(x: Array) -> Operand:
    """(B, heads, L, D), or packed (tokens, heads, D)."""
    batch, head, row = x.strides[:3] if x.ndim == 4 else (0, x.strides[1], x.strides[0])
    return Operand(address(x), *map(int64, (batch, head, row)))


def rows_of(x: Array | None) -> Rows:
    """(B, H, Lq), or packed (H, tokens); a pair counts as one element."""
    if x is None:
        return Rows(*[int64(0)] * 3)
    batch, head = x.strides[:2] if x.ndim == 3 else (0, x.strides[0])
    return Rows(address(x), int64(batch), int64(head))


def band_of(mask: Mask | None) -> Band:
    left = right = NO_LIMIT
    if isinstance(mask, Causal):
        right = 0
    elif isinstance(mask, Window):
        left, right = (NO_LIMIT if n is None else n for n in (mask.left, mask.right))
    return Band(np.int32(left), np.int32(right), np.int32(getattr(mask, "align", None) == "bottom_right"))


def forward(problem: Problem) -> dict[str, Array]:
    """out and lse that an honest forward gives."""
    x, case = problem.logical, problem.case
    options = {"mask": case.visibility, "bias": x.get("bias"), "sinks": x.get("sinks")}
    found = attention(x["q"], x["k"], x["v"], scale=case.scale, softcap=case.softcap, **options)
    return {"out": round_to(found.out, case.dtype).astype(x["q"].dtype), "lse": found.lse.astype(np.float32)}


def empty(case: Case, name: str, dense: tuple[int, ...], dtype: Any) -> Array:
    """An output, full of NaN, that the kernels have to write."""
    x = np.empty(answer_shape(case, name, dense), dtype)
    x.view(np.uint8 if x.ndim else x.dtype)[...] = 0xFF
    return x


def gradients(problem: Problem, tiles: Tiles, slopes: Array | None = None, **spec: Any) -> dict[str, Array]:
    """What the kernels make of a problem, in the storage of its case."""
    case = problem.case
    x = give(case, {**problem.logical, **forward(problem)})
    if isinstance(case.storage, Packed):
        x["lse"] = pack_lse(x["lse"], case.lengths[0], case.storage.gap)
    scale = scale_of(case.scale, case.D)
    D, Dv = (next(n for n in HEAD_SIZES if n >= size) for size in (case.D, case.Dv))
    features = {"softcap": case.softcap is not None, "bias": case.bias and case.bias.dtype, "alibi": slopes is not None}
    compiled = Spec(
        case.dtype, D, Dv, warps=tiles.warps, row_tiles=tiles.row_tiles, keys=tiles.keys, vector=tiles.vector,
        **features, **spec,
    )  # fmt: skip
    shape = Shape(*map(np.int32, (case.B, case.H, case.H // case.Hkv, case.Lq, case.Lk, case.D, case.Dv)))
    lens = [x.get(n) for n in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")]
    if not isinstance(case.storage, Packed):
        lens[2:] = [None if n is None else np.array(n, np.int32) for n in (case.q_lens, case.k_lens)]
    lengths = Lengths(*map(address, lens))
    sinks = None if "sinks" not in x else x["sinks"].astype(np.float32)
    scores = Scores(np.float32(scale), np.float32(case.softcap or 0), address(sinks), address(slopes))
    bias = x.get("bias")
    strides = [0] * 4 if bias is None else [0 if n == 1 else s for n, s in zip(bias.shape, bias.strides, strict=True)]
    arguments = (shape, band_of(case.mask), lengths, scores, Bias(address(bias), *map(int64, strides)))

    made = {name: empty(case, name, case.shape_of(name[1:]), x["q"].dtype) for name in ("dq", "dk", "dv")}
    per_row = answer_shape(case, "lse", (case.B, case.H, case.Lq))
    known = np.full((*per_row, 2), np.nan, np.float32)
    rows = Rows(address(known), int64(known.strides[0] if known.ndim == 4 else 0), int64(known.strides[-3]))
    q, k, v, dout, out = (operand(x[name]) for name in ("q", "k", "v", "dout", "out"))
    given = [a for a in (*x.values(), *lens, sinks, slopes) if a is not None]
    for a in given:
        a.setflags(write=False)

    def run(kernel: Any, blocks: int, threads: int, shared: int, args: tuple[Any, ...], written: list[Array]) -> None:
        if blocks:
            simt.run(kernel, (blocks,), (threads,), shared, args, [*given, *written], tiles.schedule)

    def across(n: int, rows: int, heads: int) -> int:
        return -(-n // rows) * heads * case.B

    lse, dlse = rows_of(x["lse"]), rows_of(x.get("dlse"))
    run(
        k4_delta.delta(compiled), across(case.Lq, k4_delta.rows_of_block(compiled), case.H), k4_delta.THREADS, 0,
        (out, dout, lse, dlse, rows, shape, lengths), [known],
    )  # fmt: skip
    known.setflags(write=False)
    given.append(known)
    for outputs in ("dk", "dv") if tiles.apart else ("both",):
        run(
            k4.keys_kernel(compiled, outputs), across(case.Lk, compiled.rows, case.Hkv), compiled.threads,
            k4.keys_bytes(compiled, outputs),
            (q, k, v, dout, rows, operand(made["dk"]), operand(made["dv"]), *arguments), [made["dk"], made["dv"]],
        )  # fmt: skip
    run(
        k4.queries_kernel(compiled), across(case.Lq, compiled.rows, case.H), compiled.threads,
        k4.queries_bytes(compiled), (q, k, v, dout, rows, operand(made["dq"]), *arguments), [made["dq"]],
    )  # fmt: skip
    if sinks is not None:
        made["dsinks"] = np.full(case.H, np.nan, np.float32)
        run(
            k4_delta.sink_gradients, case.H, k4_delta.THREADS, k4_delta.SINK_BYTES,
            (rows, address(made["dsinks"]), shape, lengths, scores), [made["dsinks"]],
        )  # fmt: skip
        made["dsinks"] = round_to(made["dsinks"], case.dtype).astype(x["q"].dtype)
    return made


def check(problem: Problem, answer: Mapping[str, Array]) -> None:
    """Every element is within the bound of the contract that the kernels keep."""
    case = problem.case
    verdict = judge(problem, answer, preset(case.dtype), Conventions(), outputs=frozenset(answer))
    assert verdict.status == "passed", verdict
    assert {o.name for o in verdict.outputs} == set(answer)


BASE = Case("backward", "the backward kernels", B=2, H=4, Hkv=2, Lq=19, Lk=37, D=32, Dv=32, dtype="bfloat16", want=GRADIENTS)


def test_plain():
    problem = make(BASE)
    check(problem, gradients(problem, Tiles()))
