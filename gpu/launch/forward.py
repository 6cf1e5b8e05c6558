"""`attention`: the forward, by the kernel that suits the problem, or the one that is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from numpy import int32, int64

from gpu.kernels import k3_tensor_core as k3
from gpu.kernels import k5_decode as k5
from gpu.kernels import k6_varlen as k6
from gpu.kernels import k7_wgmma as k7
from gpu.kernels.spec import Spec

from . import operands, plain
from .arrays import Array, as_array
from .checks import Problem, Refused, check
from .choose import features, fitted, head_size
from .device import Machine, launch, machine, require_driver
from .streams import stream_of

__all__ = ["KERNELS", "Attention", "attention", "not_16_bits"]


class Attention(NamedTuple):
    """Rows without a key: out 0, lse -inf."""

    out: Any
    """(B, H, Lq, Dv), or packed (tokens, H, Dv); dtype of q"""
    lse: Any
    """(B, H, Lq), or packed (H, tokens); natural logarithm, sinks included; float32 (float64 for float64)"""


class Kernel(NamedTuple):
    """A forward kernel: why it cannot take a problem (None: it can), whether it should, and how it is run."""

    refuses: Callable[[Problem, Machine], str | None]
    suits: Callable[[Problem, Machine], bool]
    run: Callable[[Problem, Array, Array, Machine], None]


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, scale: float | None = None, softcap: float | None = None,
    bias: Any = None, alibi_slopes: Any = None, sinks: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
    seqused_q: Any = None, seqused_k: Any = None, kernel: str | None = None, stream: Any = None,
) -> Attention:  # fmt: skip
    """softmax(scale q·kᵀ) v by flash attention; softcap, ALiBi, bias and mask in this order, sinks in the denominator.

    q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv): arrays of CuPy, tensors of torch, or what has
    `__cuda_array_interface__` or `__dlpack__` (taken through CuPy), in float16, bfloat16 (also as int16), float32 or
    float64; any strides, negative ones too, no copies (but of arrays whose last dimension is not adjacent).  H is a
    multiple of Hkv; D and Dv up to 256.  Packed: (tokens, heads, D) with cu_seqlens_q and cu_seqlens_k.

    mask           Causal, Window of `refattn.masks`, or both joined with &; others go into the bias, as 0 and -inf
    scale          None is D**-0.5
    softcap        c: scores become c tanh(score / c)
    bias           (B or 1, H or 1, Lq or 1, Lk or 1), float32 or the dtype of q
    alibi_slopes   (H,): the score loses slope |i + Lk - Lq - j|
    sinks          (H,): logits that join the denominator of each row
    cu_seqlens_*   (B + 1,) int32: where each packed sequence begins.  Arrays on the device are not checked, since that
                   would wait for it; lists and arrays on the host are
    seqused_*      (B,) int32: how much of each sequence is in use; the rest is not read, and out is 0 there
    kernel         one of naive, tiled, tensor_core, decode, varlen, wgmma; None chooses
    stream         a stream of CuPy, torch or numba, or its address; None is the caller's current one
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
        chosen = choose(problem, kernel)
        cleared = problem.packed  # between the sequences nothing is written
        out = library.new(problem.like_q, first.owner.dtype, device, 0 if cleared else None)
        lse = library.new(problem.rows, problem.scalar, device, -math.inf if cleared else None)
        if math.prod(problem.rows):
            chosen.run(problem, library.array("out", out), library.array("lse", lse), machine(device))
    return Attention(out, lse)


def choose(p: Problem, name: str | None) -> Kernel:
    """The kernel of that name, or the first that suits."""
    m = machine(p.q.device)
    if name is not None:
        if name not in KERNELS:
            raise ValueError(f"kernel={name!r} must be one of {', '.join(KERNELS)}; pass None to have one chosen")
        reason = KERNELS[name].refuses(p, m)
        if reason is not None:
            raise Refused(f"kernel={name!r} {reason}; pass None to have one chosen")
        return KERNELS[name]
    reasons = []
    for candidate in KERNELS.values():
        reason = candidate.refuses(p, m)
        if reason is None and candidate.suits(p, m):
            return candidate
        reasons.append(reason)
    raise Refused(f"no kernel takes this problem: {'; '.join(r for r in reasons if r)}")


def not_16_bits(p: Problem, m: Machine) -> str | None:
    """Why the kernels on tensor cores cannot take it."""
    if p.dtype not in ("float16", "bfloat16"):
        return f"takes float16 and bfloat16, and q.dtype={p.dtype}"
    for name, n in (("D", p.D), ("Dv", p.Dv)):
        if n > 256:
            return f"takes head sizes up to 256, and {name}={n}"
    if m.capability < (8, 0):
        return f"needs compute capability 8.0, and {m.name} has {'.'.join(map(str, m.capability))}"
    return None


def _features(p: Problem, out: Array) -> dict[str, Any]:
    return features(p, operands.aligned([p.q, p.k, p.v, out]))


def _start(module: Any, spec: Spec, grid: int, p: Problem, out: Array, lse: Array) -> None:
    """Starts a kernel that has the arguments of k3."""
    launch(
        module.forward(spec), module.SIGNATURE, grid, spec.threads, module.shared_bytes(spec),
        (
            *map(operands.operand, (p.q, p.k, p.v, out)), operands.rows(lse), operands.shape(p), operands.band(p),
            operands.lengths(p), operands.scores(p), operands.bias(p.bias),
        ),
        operands.used(p, out, lse), p.q.device, p.stream,
    )  # fmt: skip


def _tensor_core(p: Problem, out: Array, lse: Array, m: Machine) -> None:
    usual = k3.usual(p.dtype, head_size(p.D), head_size(p.Dv), **_features(p, out))
    spec = fitted(usual, m, k3.shared_bytes)
    _start(k3, spec, -(-p.Lq // spec.rows) * p.H * p.B, p, out, lse)


def _varlen(p: Problem, out: Array, lse: Array, m: Machine) -> None:
    usual = k6.usual(p.dtype, head_size(p.D), head_size(p.Dv), **_features(p, out))
    spec = fitted(usual, m, k6.shared_bytes)
    _start(k6, spec, k6.grid(p.q.shape[0], p.B, p.H, spec), p, out, lse)


def _not_packed(p: Problem, m: Machine) -> str | None:
    return not_16_bits(p, m) if p.packed else "takes packed sequences, and there is no cu_seqlens_q"


def _wgmma(p: Problem, out: Array, lse: Array, m: Machine) -> None:
    sizes = (head_size(n, k7.HEAD_SIZES) for n in (p.D, p.Dv))
    spec = fitted(k7.usual(p.dtype, *sizes, **_features(p, out)), m, k7.shared_bytes, warps=4, row_tiles=1)
    _start(k7, spec, -(-p.Lq // spec.rows) * p.H * p.B, p, out, lse)


def _no_warpgroups(p: Problem, m: Machine) -> str | None:
    if m.capability[0] != 9:
        return f"needs compute capability 9.0 (wgmma), and {m.name} has {'.'.join(map(str, m.capability))}"
    return not_16_bits(p, m)


def _decode(p: Problem, out: Array, lse: Array, m: Machine) -> None:
    """k5: the splits, and their merge."""
    group, library = p.H // p.Hkv, p.q.library
    heads, rows = p.B * p.Hkv, group * p.Lq
    usual = k5.usual(p.dtype, head_size(p.D), head_size(p.Dv), rows, **_features(p, out))
    spec = fitted(usual, m, k5.shared_bytes)
    splits = k5.splits_for(heads, rows, p.Lk, m.multiprocessors, spec)
    parts = [
        library.array(name, library.new((size // 4,), "float32", p.q.device))
        for name, size in zip(("outputs", "sums"), k5.workspace(heads, rows, splits, spec), strict=True)
    ]
    outputs, sums = (int64(x.address) for x in parts)
    partial = k5.Partial(outputs, sums, int32(splits))
    shape, lengths, scores = operands.shape(p), operands.lengths(p), operands.scores(p)
    launch(
        k5.split(spec), k5.SIGNATURE, k5.grid(p.B, p.Hkv, rows, splits, spec), spec.threads, k5.shared_bytes(spec),
        (
            *map(operands.operand, (p.q, p.k, p.v)), partial, shape, operands.band(p), lengths, scores,
            operands.bias(p.bias),
        ),
        operands.used(p, *parts), p.q.device, p.stream,
    )  # fmt: skip
    launch(
        k5.merge(spec), k5.MERGE_SIGNATURE, (p.Lq, p.H, p.B), k5.merge_threads(spec), k5.merge_bytes(spec),
        (partial, operands.operand(out), operands.rows(lse), shape, lengths, scores),
        operands.used(p, out, lse, *parts), p.q.device, p.stream,
    )  # fmt: skip


def _not_decode(p: Problem, m: Machine) -> str | None:
    if max(p.B, p.H) > 65535:
        return f"takes at most 65535 batch entries and heads, and B={p.B}, H={p.H}"
    return not_16_bits(p, m)


def _few_rows(p: Problem, m: Machine) -> bool:
    """Whether blocks by rows would leave the device idle, and there are keys to be split."""
    return p.Lq <= 16 and p.Lk >= 256 and p.B * p.H < 4 * m.multiprocessors


def _always(p: Problem, m: Machine) -> bool:
    return True


KERNELS: dict[str, Kernel] = {
    "varlen": Kernel(_not_packed, _always, _varlen),
    "decode": Kernel(_not_decode, _few_rows, _decode),
    "wgmma": Kernel(_no_warpgroups, lambda p, m: False, _wgmma),  # not before it was measured on a device
    "tensor_core": Kernel(not_16_bits, _always, _tensor_core),
    "tiled": Kernel(plain.not_for_k2, _always, plain.run_tiled),
    "naive": Kernel(plain.not_for_k1, _always, plain.run_naive),
}
"""In order of preference."""
