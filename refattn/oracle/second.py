"""Double backward: the gradient of a function of the gradients of attention.

Given cotangents ddq, ddk, ddv of (dq, dk, dv), the gradients of

    <ddq, dq> + <ddk, dk> + <ddv, dv>

with respect to q, k, v and dout.  No chain rule runs backwards twice here: (dq, dk, dv) is the
gradient of f = <dout, out(q, k, v)>, so the sum above is the derivative of f in the direction
u = (ddq, ddk, ddv); second derivatives are symmetric, so its gradient with respect to (q, k, v) is
the derivative of (dq, dk, dv) in the direction u, and with respect to dout, in which f is linear,
the derivative of out.  Below is the tangent of each line of `attention_grad`; x' is the derivative
of x in the direction q' = ddq, k' = ddk, v' = ddv, with z = s / softcap and w = 1 / cosh² z:

    s = scale q kᵀ              s' = scale (q' kᵀ + q k'ᵀ)
    t = softcap tanh z          t' = w s',   w' = -2 tanh(z) w s' / softcap
    p = softmax(t)              p' = p (t' - sum_j p t')
    out = p v                   out' = p' v + p v'
    dp = dout vᵀ                dp' = dout v'ᵀ
    delta = dout · out          delta' = dout · out'
    dt = p (dp - delta)         dt' = p' (dp - delta) + p (dp' - delta')
    ds = w dt                   ds' = w' dt + w dt'
    dq = scale ds k             dq' = scale (ds' k + ds k')
    dk = scale dsᵀ q            dk' = scale (ds'ᵀ q + dsᵀ q')
    dv = pᵀ dout                dv' = p'ᵀ dout

Wanted by gradient penalties, meta-learning and forces; fused kernels lack it (pytorch/pytorch#116350,
"derivative for aten::_scaled_dot_product_flash_attention_backward is not implemented").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arguments import Inputs, shaped
from .attention import attention_scores, select_matmul

__all__ = ["SecondGradients", "attention_grad_grad"]

Array = np.ndarray[Any, Any]


class SecondGradients(NamedTuple):
    """Gradients with respect to q, k, v and dout, each in the shape of what it belongs to."""

    q: Array
    k: Array
    v: Array
    dout: Array


def attention_grad_grad(
    q: Any, k: Any, v: Any, dout: Any, ddq: Any = None, ddk: Any = None, ddv: Any = None, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> SecondGradients:  # fmt: skip
    """Gradients of <ddq, dq> + <ddk, dk> + <ddv, dv>, where (dq, dk, dv) = `attention_grad`(q, k, v, dout).

    ddq, ddk and ddv have the shapes of q, k and v; None is 0.  bias and sinks are held fixed, and lse
    takes no part (dlse = 0).  Other arguments, and what is refused, as in `attention_grad`.  A row
    that sees no key contributes and receives 0, and what a row does not see never reaches it.

    Where q, k, v and dout are 1 and there is one key, out = v, so that dv = dout alone depends on anything:

    >>> x = np.ones((1, 1, 1, 1))
    >>> [g.item() for g in attention_grad_grad(x, x, x, x, ddv=3 * x)]
    [0.0, 0.0, 0.0, 3.0]
    """
    x = Inputs(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        score_mod=None, dropout=None, keep=None, backward=True,
    )  # fmt: skip
    w = attention_scores(q, k, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    p, columns = w.weights, x.visible.swapaxes(-1, -2)
    out = select_matmul(p, x.v, x.visible)
    dout = shaped(dout, "dout", out.shape)
    q1 = _direction(ddq, "ddq", x.q.shape)
    B, H, Lk, D = x.k.shape
    k1 = np.repeat(_direction(ddk, "ddk", (B, H // x.group, Lk, D)), x.group, axis=1)
    v1 = np.repeat(_direction(ddv, "ddv", (B, H // x.group, Lk, x.v.shape[-1])), x.group, axis=1)

    def seen(pairs: Any) -> Array:
        return np.where(x.visible, pairs, 0.0)

    with np.errstate(invalid="ignore", over="ignore"):
        s1 = seen(x.scale * (q1 @ x.k.swapaxes(-1, -2) + x.q @ k1.swapaxes(-1, -2)))
        slope: Array | float = 1.0
        slope1: Array | float = 0.0
        if x.softcap is not None:
            z = w.scores / x.softcap
            slope = np.cosh(z) ** -2.0
            slope1 = -2 * np.tanh(z) * slope * s1 / x.softcap
        t1 = seen(slope * s1)
        p1 = seen(p * (t1 - (p * t1).sum(-1, keepdims=True)))
        out1 = select_matmul(p1, x.v, x.visible) + select_matmul(p, v1, x.visible)
        above = dout @ x.v.swapaxes(-1, -2) - (dout * out).sum(-1, keepdims=True)
        above1 = dout @ v1.swapaxes(-1, -2) - (dout * out1).sum(-1, keepdims=True)
        dt = seen(p * above)
        dt1 = seen(p1 * above + p * above1)
        ds, ds1 = seen(slope * dt), seen(slope1 * dt + slope * dt1)

    dsT, ds1T = ds.swapaxes(-1, -2), ds1.swapaxes(-1, -2)
    dq1 = x.scale * (select_matmul(ds1, x.k, x.visible) + select_matmul(ds, k1, x.visible))
    dk1 = x.scale * (select_matmul(ds1T, x.q, columns) + select_matmul(dsT, q1, columns))
    dv1 = select_matmul(p1.swapaxes(-1, -2), dout, columns)
    return SecondGradients(dq1, x.sum_over_group(dk1), x.sum_over_group(dv1), out1)


def _direction(x: Any, name: str, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape) if x is None else shaped(x, name, shape)
