"""Attention on the CPU by everybody's own way, each in the layout that it likes best.

A function of `PEERS` gets the problem and its inputs; it returns what is timed, and
what reads the answer from its result: out, or dq where there are gradients.  Everything is imported inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refattn import oracle, streaming
from refattn.masks import Causal
from refattn.precision import preset

from .work import CLOSE, FLOPS, Inputs, Work, cores

Array = np.ndarray[Any, Any]
Call = tuple[Callable[[], Any], Callable[[Any], Any]]


class NotOffered(Exception):
    """The implementation does not do this, or not in this machine's memory."""


def only(offered: tuple[str, ...], directions: tuple[str, ...], work: Work) -> None:
    if work.dtype not in offered:
        raise NotOffered(f"no {work.dtype}")
    if work.direction not in directions:
        raise NotOffered(f"no {work.direction} alone" if work.direction == "backward" else f"no {work.direction}")


def room(work: Work, copies: int) -> None:
    """Refuse what holds so many copies of all scores, where they would not fit in half of the memory."""
    size = {"float64": 8, "float32": 4, "bfloat16": 4}[work.dtype]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if copies * work.B * work.H * work.rows * work.N * size > memory / 2:
        raise NotOffered("scores too large for memory")


# ---- ours


def flash(work: Work, x: Inputs) -> Call:
    from refattn import flash

    mask = Causal("top_left") if work.causal else None
    if work.direction == "forward":
        return lambda: flash.attention(x.q, x.k, x.v, mask=mask), lambda found: found.out
    from refattn.flash.gradients import attention_grad, gradients
    from refattn.flash.problem import Problem, flat

    if work.direction == "both":
        return lambda: attention_grad(*x, mask=mask), lambda found: found.dq
    problem = Problem(*x[:3], mask=mask, bias=None, scale=None, softcap=None, sinks=None)
    state, dlse = flash.solve(problem), np.zeros(x.q.shape[:3], problem.dtype)
    return lambda: gradients(problem, *state, flat(x.dout, problem.dtype), dlse), lambda found: found.dq


def dense(work: Work, x: Inputs) -> Call:
    only(("float64",), ("forward", "both"), work)
    room(work, 6)
    mask = np.tri(work.rows, work.N, dtype=bool) if work.causal else None
    if work.direction == "forward":
        return lambda: oracle.attention(x.q, x.k, x.v, mask=mask), lambda found: found.out
    return lambda: oracle.attention_grad(*x, mask=mask), lambda found: found.dq


def tiles(work: Work, x: Inputs) -> Call:
    only(tuple(CLOSE), ("forward", "both"), work)
    mask, precision = Causal("top_left") if work.causal else None, preset(work.dtype)
    if work.direction == "forward":
        return lambda: streaming.attention(x.q, x.k, x.v, mask=mask, precision=precision), lambda found: found.out
    return lambda: streaming.attention_grad(*x, mask=mask, precision=precision), lambda found: found.dq


# ---- others'


def naive(work: Work, x: Inputs) -> Call:
    """The textbook's lines in NumPy, head by head, in place."""
    only(("float64", "float32"), ("forward", "backward", "both"), work)
    room(work, 1 if work.direction != "forward" else 0)
    scale = x.q.dtype.type(work.D**-0.5)
    hidden = ~np.tri(work.rows, work.N, dtype=bool) if work.causal else None
    heads = [(b, h) for b in range(work.B) for h in range(work.H)]
    group = work.H // work.Hkv

    def weights(b: int, h: int) -> Array:
        s = x.q[b, h] @ x.k[b, h // group].T
        s *= scale
        if hidden is not None:
            s[hidden] = -np.inf
        s -= s.max(-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(-1, keepdims=True)
        return s

    def forward() -> Array:
        out = np.empty_like(x.q)
        for b, h in heads:
            np.matmul(weights(b, h), x.v[b, h // group], out=out[b, h])
        return out

    def backward(all_weights: Any) -> tuple[Array, Array, Array]:
        dq, dk, dv = np.zeros_like(x.q), np.zeros_like(x.k), np.zeros_like(x.v)
        for (b, h), p in zip(heads, all_weights, strict=True):
            dv[b, h // group] += p.T @ x.dout[b, h]
            ds = x.dout[b, h] @ x.v[b, h // group].T
            ds -= np.einsum("ij,ij->i", ds, p)[:, None]
            ds *= p
            ds *= scale
            np.matmul(ds, x.k[b, h // group], out=dq[b, h])
            dk[b, h // group] += ds.T @ x.q[b, h]
        return dq, dk, dv

    def both() -> tuple[Array, Array, Array]:
        kept = [weights(b, h) for b, h in heads]
        for (b, h), p in zip(heads, kept, strict=True):
            p @ x.v[b, h // group]
        return backward(kept)

    if work.direction == "forward":
        return forward, lambda out: out
    if work.direction == "both":
        return both, lambda found: found[0]
    kept = [weights(b, h) for b, h in heads]
    return lambda: backward(kept), lambda found: found[0]


def torch_sdpa(work: Work, x: Inputs) -> Call:
    import torch

    kind = getattr(torch, work.dtype)
    q, k, v, dout = (torch.from_numpy(a.astype(np.promote_types(a.dtype, np.float32))).to(kind) for a in x)
    gradients = work.direction != "forward"
    for a in (q, k, v):
        a.requires_grad_(gradients)

    def forward() -> Any:
        with torch.set_grad_enabled(gradients):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=work.causal, enable_gqa=work.H != work.Hkv
            )  # fmt: skip

    def read(found: Any) -> Array:
        return (found[0] if gradients else found).to(torch.float64).numpy()

    if work.direction == "forward":
        return forward, read
    if work.direction == "both":
        return lambda: torch.autograd.grad(forward(), (q, k, v), dout), read
    out = forward()
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True), read


def onnx_runtime(work: Work, x: Inputs) -> Call:
    """com.microsoft MultiHeadAttention."""
    only(("float32",), ("forward",), work)
    if work.H != work.Hkv:
        raise NotOffered("no grouped heads")
    room(work, 2 if work.causal else 0)
    import onnxruntime  # type: ignore[import-untyped]
    from onnx import TensorProto, helper

    def info(name: str, rows: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, (work.B, rows, work.H * work.D))

    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["out"], domain="com.microsoft",
        num_heads=work.H, unidirectional=int(work.causal),
    )  # fmt: skip
    ends = [info("q", work.rows), info("k", work.N), info("v", work.N)], [info("out", work.rows)]
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "attention", *ends), opset_imports=versions, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    q, k, v, _ = (np.ascontiguousarray(a.swapaxes(1, 2)).reshape(work.B, a.shape[2], -1) for a in x)

    def read(found: Any) -> Array:
        return np.asarray(found[0]).reshape(work.B, work.rows, work.H, work.D).swapaxes(1, 2)

    return lambda: session.run(None, {"q": q, "k": k, "v": v}), read


def open_vino(work: Work, x: Inputs) -> Call:
    """opset13's scaled_dot_product_attention, in the precision of the inputs."""
    only(("float32", "bfloat16"), ("forward",), work)
    if work.H != work.Hkv:
        raise NotOffered("no grouped heads")
    import openvino  # type: ignore[import-untyped]
    from openvino import opset13

    kind, hint, same = {
        "float32": (openvino.Type.f32, "f32", np.float32), "bfloat16": (openvino.Type.bf16, "bf16", np.uint16),
    }[work.dtype]  # fmt: skip
    ends = [opset13.parameter(a.shape, kind) for a in x[:3]]
    model = openvino.Model([opset13.scaled_dot_product_attention(*ends, causal=work.causal)], ends)
    settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": cores()}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    held = [openvino.Tensor(a.view(same), openvino.Shape(a.shape), kind) for a in x[:3]]
    for i, tensor in enumerate(held):
        request.set_input_tensor(i, tensor)

    def call() -> Any:
        return request.infer(share_outputs=True), held, x  # openvino keeps the addresses only

    return call, lambda _: request.get_output_tensor(0).data.view(x.q.dtype)


def jax_nn(work: Work, x: Inputs) -> Call:
    """jax.nn.dot_product_attention, compiled; its scores are float32 whatever the inputs are."""
    only(("float32", "bfloat16"), tuple(FLOPS), work)
    room(work, 3)
    import jax

    jax.config.update("jax_platforms", "cpu")
    *qkv, dout = (jax.numpy.asarray(a.swapaxes(1, 2)) for a in x)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=work.causal)

    def ready(function: Any, *args: Any) -> Call:
        def read(found: Any) -> Array:
            return np.asarray(found if work.direction == "forward" else found[0]).swapaxes(1, 2)

        compiled = jax.jit(function)
        return lambda: jax.block_until_ready(compiled(*args)), read

    if work.direction == "forward":
        return ready(attention, *qkv)
    if work.direction == "both":
        return ready(lambda dout, *qkv: jax.vjp(attention, *qkv)[1](dout), dout, *qkv)
    return ready(lambda pull, dout: pull(dout), jax.jit(lambda *qkv: jax.vjp(attention, *qkv)[1])(*qkv), dout)


class Peer(NamedTuple):
    call: Callable[[Work, Inputs], Call]
    needs: tuple[str, ...] = ()  # packages of these names; the version is the first's
    reference: bool = False  # nobody's choice for speed: left out where it takes long


PEERS: Mapping[str, Peer] = {
    "refattn.flash": Peer(flash, ("numba",)),
    "refattn.streaming": Peer(tiles, reference=True),
    "refattn.attention": Peer(dense, reference=True),
    "torch": Peer(torch_sdpa, ("torch",)),
    "onnxruntime": Peer(onnx_runtime, ("onnxruntime", "onnx")),
    "openvino": Peer(open_vino, ("openvino",)),
    "jax": Peer(jax_nn, ("jax",), reference=True),
    "numpy naive": Peer(naive, ("numpy",), reference=True),
}
