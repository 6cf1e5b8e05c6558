"""Multi-head latent attention: keys and values of all heads come from one latent vector for each token.

    expanded    k_h = [c W_UK[h]ᵀ, k_rope],  v_h = c W_UV[h],  q_h = [q_nope_h, q_rope_h]
                out_h = attention(q_h, k_h, v_h)                        H key heads, D = Dn + Dr
    absorbed    q_h = [q_nope_h W_UK[h], q_rope_h],  k = [c, k_rope],  v = c
                out_h = attention(q_h, k, v) W_UV[h]                    1 key head,  D = R + Dr, Dv = R

Both have the scores scale (q_nope · W_UK c + q_rope · k_rope), so that they are equal, and so that
scale=None is (Dn + Dr)**-0.5 in both: not (R + Dr)**-0.5, which a kernel that is given the absorbed
form and knows its D alone would take.  The rotary part is applied before: q_rope and k_rope are
rotated already, since a rotation between W_UK and q could not be absorbed.

Source: DeepSeek-AI 2024, "DeepSeek-V2", sections 2.1.2 (compression, absorption) and 2.1.3 (decoupled
rotary part; the scale).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..dtypes import exact64
from .arguments import Inputs, scale_of, shaped
from .attention import Attention, attention, attention_grad

__all__ = ["LatentGradients", "latent_attention", "latent_attention_grad"]

Array = np.ndarray[Any, Any]


class LatentGradients(NamedTuple):
    """Gradients of sum(out * dout) + sum(lse * dlse), each in the shape of what it belongs to."""

    dq_nope: Array
    dq_rope: Array
    dc: Array
    dk_rope: Array
    dW_UK: Array
    dW_UV: Array


def latent_attention(
    q_nope: Any, q_rope: Any, c: Any, k_rope: Any, W_UK: Any, W_UV: Any, *,
    absorbed: bool = False, mask: Any = None, scale: float | None = None,
) -> Attention:  # fmt: skip
    """out (B, H, Lq, Dv) and lse (B, H, Lq) of either form.

    q_nope (B, H, Lq, Dn), q_rope (B, H, Lq, Dr), latents c (B, Lk, R), k_rope (B, Lk, Dr) shared by all
    heads, W_UK (H, Dn, R), W_UV (H, R, Dv).  mask as in `attention`; scale=None means (Dn + Dr)**-0.5.

    Latents c = 1 and 3 with W_UV = 10 make values 10 and 30, which weigh alike where q_nope = 0:

    >>> q, c, w = np.zeros((1, 1, 1, 1)), np.array([[[1.0], [3.0]]]), np.ones((1, 1, 1))
    >>> [latent_attention(q, q, c, 0 * c, w, 10 * w, absorbed=form).out.item() for form in (False, True)]
    [20.0, 20.0]
    """
    x = _Latent(q_nope, q_rope, c, k_rope, W_UK, W_UV, absorbed, scale)
    out, lse = attention(x.q, x.k, x.v, mask=mask, scale=x.scale)
    return Attention(out @ x.W_UV if absorbed else out, lse)


def latent_attention_grad(
    q_nope: Any, q_rope: Any, c: Any, k_rope: Any, W_UK: Any, W_UV: Any, dout: Any, dlse: Any = None, *,
    absorbed: bool = False, mask: Any = None, scale: float | None = None,
) -> LatentGradients:  # fmt: skip
    """Gradients of `latent_attention`, by the chain rule through either form.

    With dq, dk, dv those of the attention inside, and o its output, summed over batch, tokens and heads:

        expanded    dc = dk_nope W_UK + dv W_UVᵀ,   dW_UK = dk_nopeᵀ c,   dW_UV = cᵀ dv
        absorbed    dc = dk_c + dv,   dq_nope = dq_c W_UKᵀ,   dW_UK = q_nopeᵀ dq_c,   dW_UV = oᵀ dout

    A token that a head does not see has no part in that head's dW_UK and dW_UV, NaN or not.

    >>> q, c, w = np.zeros((1, 1, 1, 1)), np.array([[[1.0], [3.0]]]), np.ones((1, 1, 1))
    >>> g = latent_attention_grad(q, q, c, 0 * c, w, 10 * w, np.ones((1, 1, 1, 1)))
    >>> g.dc.ravel(), g.dW_UV.item()
    (array([5., 5.]), 2.0)
    """
    x = _Latent(q_nope, q_rope, c, k_rope, W_UK, W_UV, absorbed, scale)
    (B, H, Lq, Dn), R = x.q_nope.shape, x.c.shape[-1]
    dout = shaped(dout, "dout", (B, H, Lq, x.W_UV.shape[-1]))
    options: dict[str, Any] = {"mask": mask, "scale": x.scale}
    none: dict[str, Any] = dict.fromkeys(("bias", "softcap", "sinks", "score_mod", "dropout", "keep"))
    visible = Inputs(x.q, x.k, x.v, **options, **none).visible

    if absorbed:
        some = visible.any(-1, keepdims=True)
        dout = np.where(some, dout, 0.0)
        o = attention(x.q, x.k, x.v, **options).out
        g = attention_grad(x.q, x.k, x.v, dout @ x.W_UV.swapaxes(-1, -2), dlse, **options)
        dq_c, dk_c = g.dq[..., :R], g.dk[..., :R].sum(1)
        return LatentGradients(
            dq_nope=dq_c @ x.W_UK.swapaxes(-1, -2),
            dq_rope=g.dq[..., R:],
            dc=dk_c + g.dv.sum(1),
            dk_rope=g.dk[..., R:].sum(1),
            dW_UK=_over_tokens(np.where(some, x.q_nope, 0.0), dq_c),
            dW_UV=_over_tokens(o, dout),
        )
    g = attention_grad(x.q, x.k, x.v, dout, dlse, **options)
    dk_nope = g.dk[..., :Dn]
    seen = np.where(np.any(visible, axis=-2)[..., None], x.c[:, None], 0.0)
    return LatentGradients(
        dq_nope=g.dq[..., :Dn],
        dq_rope=g.dq[..., Dn:],
        dc=(dk_nope @ x.W_UK + g.dv @ x.W_UV.swapaxes(-1, -2)).sum(1),
        dk_rope=g.dk[..., Dn:].sum(1),
        dW_UK=_over_tokens(dk_nope, seen),
        dW_UV=_over_tokens(seen, g.dv),
    )


class _Latent:
    """The arguments, checked, in float64, and the q, k and v of the attention inside."""

    def __init__(
        self, q_nope: Any, q_rope: Any, c: Any, k_rope: Any, W_UK: Any, W_UV: Any, absorbed: bool, scale: float | None
    ) -> None:
        if not isinstance(absorbed, bool):
            raise TypeError(f"absorbed={absorbed!r} must be True or False")
        self.q_nope, self.c = exact64(q_nope, "q_nope"), exact64(c, "c")
        q_rope, self.W_UV = exact64(q_rope, "q_rope"), exact64(W_UV, "W_UV")
        for name, array, form in (
            ("q_nope", self.q_nope, "(B, H, Lq, Dn)"),
            ("q_rope", q_rope, "(B, H, Lq, Dr)"),
            ("c", self.c, "(B, Lk, R)"),
            ("W_UV", self.W_UV, "(H, R, Dv)"),
        ):
            if array.ndim != form.count(",") + 1:
                raise ValueError(f"{name}.shape={array.shape} must have {form.count(',') + 1} dimensions, {form}")
        (B, H, Lq, Dn), (_, Lk, R) = self.q_nope.shape, self.c.shape
        if q_rope.shape[:3] != (B, H, Lq):
            raise ValueError(f"q_rope.shape={q_rope.shape} must begin with (B, H, Lq)={(B, H, Lq)} of q_nope.shape")
        if self.c.shape[0] != B:
            raise ValueError(f"c.shape={self.c.shape} must begin with B={B}, as q_nope.shape={self.q_nope.shape} does")
        if self.W_UV.shape[:2] != (H, R):
            raise ValueError(f"W_UV.shape={self.W_UV.shape} must begin with (H, R)={(H, R)}")
        Dr = q_rope.shape[3]
        k_rope = shaped(k_rope, "k_rope", (B, Lk, Dr))
        self.W_UK = shaped(W_UK, "W_UK", (H, Dn, R))
        self.scale = scale_of(scale, Dn + Dr)

        c = self.c[:, None]
        with np.errstate(invalid="ignore", over="ignore"):  # in tokens that nobody sees, too
            if absorbed:
                self.q = np.concatenate([self.q_nope @ self.W_UK, q_rope], axis=-1)
                self.k = np.concatenate([c, k_rope[:, None]], axis=-1)[:, :H]  # one head; none where H = 0
                self.v = c[:, :H]
            else:
                shared = np.broadcast_to(k_rope[:, None], (B, H, Lk, Dr))
                self.q = np.concatenate([self.q_nope, q_rope], axis=-1)
                self.k = np.concatenate([c @ self.W_UK.swapaxes(-1, -2), shared], axis=-1)
                self.v = c @ self.W_UV


def _over_tokens(a: Array, b: Array) -> Array:
    """aᵀ b of each head, summed over batch and tokens: (B, H, L, M), (B, H, L, N) to (H, M, N)."""
    return np.einsum("bhlm,bhln->hmn", a, b)
