"""`attention_grad`: the gradients, by kernels without atomics, the same bits in every run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numpy import int64

from gpu.kernels import k4_backward as k4
from gpu.kernels import k4_delta
from gpu.kernels.arguments import Rows

from . import operands, plain
from .arrays import Array, as_array
from .checks import Problem, Refused, Taken, check, check_rows
from .choose import features, fitted, head_size
from .device import Machine, launch, machine, require_driver
from .forward import not_16_bits
from .streams import stream_of

__all__ = ["BACKWARD", "Gradients", "attention_grad"]


class Gradients(NamedTuple):
    """Of the shapes and dtypes of q, k, v and sinks."""

    dq: Any
    dk: Any
    dv: Any
    dsinks: Any


class Kernel(NamedTuple):
    """Backward kernels: why they cannot take a problem (None: they can), and how they are run."""

    refuses: Callable[[Problem, Machine], str | None]
    run: Callable[[Problem, Taken, Machine], None]


def attention_grad(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, mask: Any = None, scale: float | None = None,
    softcap: float | None = None, bias: Any = None, alibi_slopes: Any = None, sinks: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, seqused_q: Any = None, seqused_k: Any = None, dlse: Any = None,
    kernel: str | None = None, stream: Any = None,
) -> Gradients:  # fmt: skip
    """The gradients of `attention`, whose out and lse these are, with respect to q, k, v and sinks.

    dout has the shape of out and the dtype of q; dlse that of lse, None is 0.  Rows beyond a length, and rows that
    see nothing, have gradients of 0.  kernel is tensor_core (float16, bfloat16) or tiled (float32, float64); the other
    arguments are those of `attention`.  There are no gradients of bias, slopes, scale and softcap.
    """
    require_driver()
    first = as_array("q", q)
    library, device = first.library, first.device
    address = library.stream(device) if stream is None else stream_of(stream)
    with library.on(device, address):
        problem = check(
            q, k, v, mask=mask, scale=scale, softcap=softcap, bias=bias, alibi_slopes=alibi_slopes, sinks=sinks,
            cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k,
            stream=address,
        )  # fmt: skip
        rows = [
            check_rows(problem, name, x, shape, dtype)
            for name, x, shape, dtype in (
                ("out", out, problem.like_q, problem.q.dtype), ("dout", dout, problem.like_q, problem.q.dtype),
                ("lse", lse, problem.rows, problem.scalar),
            )
        ]  # fmt: skip
        d_lse = None if dlse is None else check_rows(problem, "dlse", dlse, problem.rows, problem.scalar)
        chosen = choose(problem, kernel)
        made = {
            "d" + x.name: library.new(x.shape, first.owner.dtype, device, 0 if problem.packed else None)
            for x in (problem.q, problem.k, problem.v)
        }
        arrays = [library.array(name, x) for name, x in made.items()]
        dsinks = None if sinks is None else library.new((problem.H,), problem.scalar, device)
        d_sinks = None if dsinks is None else library.array("dsinks", dsinks)
        taken = Taken(rows[0], rows[1], rows[2], d_lse, arrays[0], arrays[1], arrays[2], d_sinks)
        chosen.run(problem, taken, machine(device))
        if dsinks is not None:
            wanted = as_array("sinks", sinks).dtype
            dsinks = dsinks if wanted == problem.scalar else library.converted(dsinks, wanted)
    return Gradients(made["dq"], made["dk"], made["dv"], dsinks)


def choose(p: Problem, name: str | None) -> Kernel:
    """The kernels of that name, or the first that take the problem."""
    m = machine(p.q.device)
    if name is not None and name not in BACKWARD:
        known = ", ".join(BACKWARD)
        raise ValueError(f"kernel={name!r} of attention_grad must be one of {known}; pass None to have one chosen")
    candidates = BACKWARD if name is None else {name: BACKWARD[name]}
    reasons = {known: kernel.refuses(p, m) for known, kernel in candidates.items()}
    for known, reason in reasons.items():
        if reason is None:
            return candidates[known]
    raise Refused("; ".join(f"kernel={known!r} {reason}" for known, reason in reasons.items()))


def _tensor_core(p: Problem, x: Taken, m: Machine) -> None:
    """k4: delta, then dk and dv, dq, and dsinks."""
    library = p.q.library
    vector = operands.aligned([p.q, p.k, p.v, x.dout, x.out, x.dq, x.dk, x.dv])
    sizes, wanted = (p.dtype, head_size(p.D), head_size(p.Dv)), features(p, vector)
    known = library.array("rows", library.new((*p.rows, 2), "float32", p.q.device))
    rows = operands.rows(known)._replace(**_strides_of_pairs(p, known))
    shape, lengths, place = operands.shape(p), operands.lengths(p), (p.q.device, p.stream)
    q, k, v, out, dout = map(operands.operand, (p.q, p.k, p.v, x.out, x.dout))
    dq, dk, dv = map(operands.operand, (x.dq, x.dk, x.dv))
    no_rows = Rows(*[int64(0)] * 3)
    spec = k4.usual_queries(*sizes, **wanted)
    tiles = -(-p.Lq // k4_delta.rows_of_block(spec))
    launch(
        k4_delta.delta(spec), k4_delta.DELTA_SIGNATURE, tiles * p.H * p.B, k4_delta.THREADS, 0,
        (
            out, dout, operands.rows(x.lse), no_rows if x.dlse is None else operands.rows(x.dlse), rows, shape, lengths,
        ),
        operands.used(p, x.out, x.dout, x.lse, known, *([] if x.dlse is None else [x.dlse])), *place,
    )  # fmt: skip
    scored = (shape, operands.band(p), lengths, operands.scores(p), operands.bias(p.bias))
    for usual, outputs in k4.usual_keys(*sizes, **wanted):
        spec = fitted(usual, m, functools.partial(k4.keys_bytes, outputs=outputs))
        launch(
            k4.keys_kernel(spec, outputs), k4.KEYS_SIGNATURE, -(-p.Lk // spec.rows) * p.Hkv * p.B, spec.threads,
            k4.keys_bytes(spec, outputs), (q, k, v, dout, rows, dk, dv, *scored),
            operands.used(p, x.dout, known, x.dk, x.dv), *place,
        )  # fmt: skip
    spec = fitted(k4.usual_queries(*sizes, **wanted), m, k4.queries_bytes)
    launch(
        k4.queries_kernel(spec), k4.QUERIES_SIGNATURE, -(-p.Lq // spec.rows) * p.H * p.B, spec.threads,
        k4.queries_bytes(spec), (q, k, v, dout, rows, dq, *scored), operands.used(p, x.dout, known, x.dq), *place,
    )  # fmt: skip
    if x.dsinks is not None:
        launch(
            k4_delta.sink_gradients, k4_delta.SINK_SIGNATURE, p.H, k4_delta.THREADS, k4_delta.SINK_BYTES,
            (rows, int64(x.dsinks.address), shape, lengths, operands.scores(p)), operands.used(p, known, x.dsinks),
            *place,
        )  # fmt: skip


def _strides_of_pairs(p: Problem, known: Array) -> dict[str, Any]:
    """Strides of (B, H, Lq, 2), or packed (H, tokens, 2)."""
    batch, head = (0, known.strides[0]) if p.packed else known.strides[:2]
    return {"batch": int64(batch), "head": int64(head)}


BACKWARD: dict[str, Kernel] = {
    "tensor_core": Kernel(not_16_bits, _tensor_core),
    "tiled": Kernel(plain.not_for_k2, plain.run_gradients),
}
