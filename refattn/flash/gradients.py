"""`attention_grad`: the forward, the backward's tasks, and what is added when all are done."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import streaming
from ..dtypes import FORMATS
from ..streaming import Gradients
from .backward import backward
from .backward_tasks import Layout
from .geometry import strip_rows
from .problem import Problem, flat
from .products import ROWS
from .solve import tiled
from .threads import run

__all__ = ["Gradients", "attention_grad", "gradients"]

Array = np.ndarray[Any, Any]


def attention_grad(
    q: Any, k: Any, v: Any, dout: Any, dlse: Any = None, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Gradients:  # fmt: skip
    """Gradients of `attention`; dout (B, H, Lq, Dv), dlse (B, H, Lq).

    dq, dk and dv have the dtype of q, k and v, the others float64 for float64 and else float32.  Inputs that
    are not finite are left to `refattn.streaming`, which keeps what is hidden apart, and is slower.

    >>> x = np.ones((1, 1, 1, 1))
    >>> attention_grad(x, x, x, dout=x).dv.item()
    1.0
    """
    options: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    problem = Problem(q, k, v, **options)
    x = problem.x
    rows = (x.B, x.H, x.Lq)
    arriving = flat(x.shaped(dout, "dout", (*rows, x.Dv)), problem.dtype)
    to_lse = np.zeros(rows, problem.dtype) if dlse is None else np.asarray(x.shaped(dlse, "dlse", rows), problem.dtype)
    if not (problem.finite and np.isfinite(arriving).all() and np.isfinite(to_lse).all()):
        return streaming.attention_grad(q, k, v, dout, dlse, **options, precision=problem.contract)
    return gradients(problem, *tiled(problem, problem.single()), arriving, to_lse)


@np.errstate(all="ignore")
def gradients(
    problem: Problem, out: Array, lse: Array, shift: Array, factor: Array, dout: Array, dlse: Array
) -> Gradients:  # fmt: skip
    """Those of `attention_grad`, from what `tiled` found of single operands: from other roundings of the scores, which
    may be large, weights would come out wrong.  dout is flat, all is in the dtype that is computed in."""
    x, dtype, layout = problem.x, problem.dtype, Layout(problem)
    delta = np.einsum("bhid,bhid->bhi", out, dout.reshape(out.shape)) - dlse
    room = -(-x.D // ROWS) * ROWS
    k = problem.k if room == x.D else problem.padded(x.k, room)
    dq = np.zeros((layout.parts, x.B, x.H, x.Lq, x.D), dtype)
    dk, dv = np.zeros((x.B, x.Hkv, x.Lk, x.D), dtype), np.zeros((x.B, x.Hkv, x.Lk, x.Dv), dtype)
    operands, state = (problem.q, k, problem.v, dout), tuple(flat(a, dtype) for a in (shift, factor, delta))
    scores = (*problem.bias(), problem.scale, problem.softcap)
    results = (*(a.reshape(-1) for a in (dq, dk, dv, layout.dbias)), layout.onto)
    sizes = (
        layout.parts, x.B, x.H, x.Hkv, x.Lq, x.Lk, x.D, x.Dv,
        problem.keys, room, problem.columns, problem.wide, strip_rows(x.Lk),
    )  # fmt: skip
    dsoftcap = 0.0
    for launch in problem.launches():
        tasks, pairs = layout.tasks(problem, launch)
        of_softcap = np.zeros(len(tasks))
        costs = pairs * (3 * x.D + 2 * x.Dv)
        run(backward, tasks, costs, operands, state, launch.seen, scores, (*results, of_softcap), sizes)
        dsoftcap += of_softcap.sum()
    whole = dq[0]
    for part in dq[1:]:
        whole += part
    dscale = np.einsum("bhid,bhid->bhi", problem.q.reshape(whole.shape), whole).sum(dtype=np.float64)
    whole *= problem.scale
    dq, dk, dv = (a.astype(FORMATS[problem.kind].dtype, copy=False) for a in (whole, dk, dv))
    return Gradients(
        dq, dk, dv,
        None if x.bias is None else layout.bias_gradient().reshape(x.bias.shape),
        None if x.sinks is None else -(np.exp(problem.sinks[:, None] - lse) * delta).sum((0, 2)),
        np.asarray(dscale, dtype), None if x.softcap is None else np.asarray(dsoftcap, dtype),
    )  # fmt: skip
