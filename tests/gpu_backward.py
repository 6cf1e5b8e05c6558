"""Problems of the suite, run through the backward kernels (k4) in the executor; for the tests and mutants of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.kernels import k4_backward as k4
from gpu.kernels import k4_delta
from gpu.kernels.arguments import Rows, Shape
from refattn.case import Case, Packed
from refattn.dtypes import round_to
from refattn.inputs import Problem
from refattn.layouts import pack_lse
from refattn.memory import give
from refattn.oracle import attention
from tests.gpu_forward import Call, Tiles, band_of, operand, rows_of

Array = np.ndarray[Any, Any]

GRADIENTS = frozenset({"dq", "dk", "dv"})


def forward(problem: Problem) -> dict[str, Array]:
    """out and lse of an honest forward, in the storage of the case; NaN where there is no row."""
    x, case = problem.logical, problem.case
    found = attention(
        x["q"], x["k"], x["v"], mask=case.visibility, bias=x.get("bias"), sinks=x.get("sinks"), scale=case.scale,
        softcap=case.softcap,
    )  # fmt: skip
    out, lse = round_to(found.out, case.dtype).astype(x["q"].dtype), found.lse.astype(np.float32)
    for b, n in enumerate(case.lengths[0]):
        out[b, :, n:] = lse[b, :, n:] = np.nan
    packed = isinstance(case.storage, Packed)
    lse = pack_lse(lse, case.lengths[0], case.storage.gap) if packed else lse
    return {"out": give(case, {"out": out})["out"], "lse": lse}


def spread(x: Array) -> Array:
    """A copy whose rows are not 16-byte aligned: one more element lies between them."""
    wide = np.empty((*x.shape[:-1], x.shape[-1] + 1), x.dtype)
    wide[..., :-1] = x
    return wide[..., :-1]


class Backward(Call):
    """A problem in memory, its forward, and gradients full of NaN that the kernels have to write."""

    def __post_init__(self) -> None:
        super().__post_init__()
        case = self.problem.case
        self.given |= forward(self.problem)
        if not isinstance(case.storage, Packed):
            for b, n in enumerate(case.lengths[0]):
                self.given["dout"][b, :, n:] = np.nan  # memory that must not be read
                if "dlse" in self.given:
                    self.given["dlse"][b, :, n:] = np.nan
        self.made = {name: self._empty(name, self.given["q"].dtype) for name in ("dq", "dk", "dv")}
        self.known = np.full((*self.given["lse"].shape, 2), np.nan, np.float32)
        self.dsinks = np.full(case.H, np.nan, np.float32)

    def spread(self) -> None:
        """Rows of all arrays at odd distances."""
        for name in ("q", "k", "v", "out", "dout"):
            self.given[name] = spread(self.given[name])
        self.made = {name: spread(x) for name, x in self.made.items()}

    @property
    def shape(self) -> Shape:
        """Lq and Lk are the longest of what a packed sequence has memory for, gaps included."""
        shape = super().shape
        if isinstance(self.problem.case.storage, Packed):
            Lq, Lk = (np.int32(np.diff(self.given[f"cu_seqlens_{x}"]).max()) for x in "qk")
            shape = shape._replace(Lq=Lq, Lk=Lk)
        return shape

    @property
    def rows(self) -> Rows:
        return rows_of(self.known[..., 0])

    def named(self, *names: str) -> tuple[Any, ...]:
        return tuple(operand(x) for x in ({**self.given, **self.made}[name] for name in names))


def gradients(call: Backward, tiles: Tiles, apart: bool = False, varlen: bool = False) -> dict[str, Array]:
    """dq, dk, dv, and dsinks if the case has sinks; `apart`: dk and dv by two launches."""
    case, spec = call.problem.case, call.spec(tiles, varlen=varlen)
    Lq, Lk = (call.given[name].shape[0] for name in "qk") if varlen else (call.shape.Lq, call.shape.Lk)
    dlse = rows_of(call.given["dlse"]) if "dlse" in call.given else Rows(*[np.int64(0)] * 3)
    call.run(
        k4_delta.delta(spec), (k4_delta.delta_blocks(Lq, case.B, case.H, spec),), k4_delta.THREADS, 0,
        (*call.named("out", "dout"), rows_of(call.given["lse"]), dlse, call.rows, call.shape, call.lengths),
        tiles.schedule, call.known,
    )  # fmt: skip
    call.given["known"] = call.known
    seen = (call.shape, band_of(case.mask), call.lengths, call.scores, call.bias)
    inputs = (*call.named("q", "k", "v", "dout"), call.rows)
    dq, dk, dv = call.made.values()
    for outputs in ("dk", "dv") if apart else ("both",):
        call.run(
            k4.keys_kernel(spec, outputs), (k4.blocks(Lk, case.B, case.Hkv, spec),), spec.threads,
            k4.keys_bytes(spec, outputs), (*inputs, *call.named("dk", "dv"), *seen), tiles.schedule, dk, dv,
        )  # fmt: skip
    call.run(
        k4.queries_kernel(spec), (k4.blocks(Lq, case.B, case.H, spec),), spec.threads, k4.queries_bytes(spec),
        (*inputs, *call.named("dq"), *seen), tiles.schedule, dq,
    )  # fmt: skip
    if "sinks" not in call.given:
        return call.made
    call.run(
        k4_delta.sink_gradients, (case.H,), k4_delta.THREADS, k4_delta.SINK_BYTES,
        (call.rows, np.int64(call.dsinks.ctypes.data), call.shape, call.lengths, call.scores), tiles.schedule,
        call.dsinks,
    )  # fmt: skip
    return {**call.made, "dsinks": round_to(call.dsinks, case.dtype).astype(dq.dtype)}


def grad(**fields: Any) -> Case:
    """A case that all of this takes; it wants dsinks too where there are sinks."""
    usual: dict[str, Any] = {"B": 1, "H": 2, "Hkv": 1, "Lq": 19, "Lk": 37, "D": 32, "Dv": 32, "dtype": "bfloat16"}
    want = GRADIENTS | ({"dsinks"} if fields.get("sinks") else set())
    return Case("gpu", "a backward kernel", **{**usual, "want": want, **fields})
