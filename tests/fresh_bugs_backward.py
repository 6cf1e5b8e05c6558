"""Bugs of the fresh kernel: its backward.  See `tests.fresh_bugs`."""

from __future__ import annotations

import numpy as np

from tests.fresh_bugs_loads import bug
from tests.fresh_forward import LN2
from tests.fresh_kernel import Kernel
from tests.fresh_loads import Array, Space


@bug("dq is not multiplied by the scale.")
class dq_not_scaled(Kernel):
    def finish_dq(self, a: Space) -> Array:
        return a.dq


@bug("dq lacks the factor ln 2 that the base-2 exponential was compensated for: it is 0.69 of what it should be.")
class dq_times_ln2(Kernel):
    def finish_dq(self, a: Space) -> Array:
        return super().finish_dq(a) * a.acc(LN2)


@bug("dk is computed from q that was scaled already: the scale is applied twice.")
class dk_scaled_twice(Kernel):
    def dk(self, a: Space, t: Space, ds: Array) -> Array:
        return super().dk(a, t, ds) * a.scale


@bug("dk is that of the last head of the group, not the sum over the group.")
class dk_of_last_head(Kernel):
    def dk(self, a: Space, t: Space, ds: Array) -> Array:
        return super().dk(a, t, np.where(t.h[:, None] % max(a.G, 1) == a.G - 1, ds, 0).astype(a.acc))


@bug("dq of a block of keys overwrites that of the block before: = where += should be.")
class dq_overwritten(Kernel):
    def add_dq(self, a: Space, t: Space, dq: Array) -> None:
        at = tuple(n[t.ok] if isinstance(n, np.ndarray) else n for n in self.where(a, t, a.dq.ndim))
        a.dq[at] = dq[t.ok]


@bug("The sign of ds is wrong: it is p (delta - dp).")
class ds_negated(Kernel):
    def bent(self, a: Space, t: Space, ds: Array, k: Array) -> Array:
        return -super().bent(a, t, ds, k)


@bug("delta is not subtracted: ds is p dp.")
class delta_forgotten(Kernel):
    def delta(self, a: Space, t: Space) -> Array:
        return super().delta(a, t) * 0


@bug("The gradient of lse is ignored.")
class dlse_ignored(Kernel):
    def delta(self, a: Space, t: Space) -> Array:
        return (t.do * self.load_rows(a, t, a.o)).sum(-1, keepdims=True)


@bug("The gradient of lse has the wrong sign.")
class dlse_negated(Kernel):
    def delta(self, a: Space, t: Space) -> Array:
        delta = (t.do * self.load_rows(a, t, a.o)).sum(-1, keepdims=True)
        return 2 * delta - super().delta(a, t)


@bug("The derivative of the softcap is missing: tanh is taken for the identity.")
class softcap_not_derived(Kernel):
    def bent(self, a: Space, t: Space, ds: Array, k: Array) -> Array:
        return ds


@bug("The derivative of the softcap is 1 - tanh, without the square.")
class softcap_derived_wrongly(Kernel):
    def bent(self, a: Space, t: Space, ds: Array, k: Array) -> Array:
        if a.softcap is None:
            return ds
        return (ds * (1 - np.tanh(self.products(a, t.q, k) * a.scale / a.softcap))).astype(a.acc)


@bug("dv is computed with the weights as they were before dropout.")
class dv_without_dropout(Kernel):
    def backward(self, a: Space) -> None:
        a.late = True
        super().backward(a)

    def weights(self, a: Space, t: Space, p: Array, n: int) -> Array:
        return p.astype(a.narrow).astype(a.acc) if hasattr(a, "late") else super().weights(a, t, p, n)


@bug("Dropout is forgotten in dp, where its mask should be applied again.")
class dp_not_dropped(Kernel):
    def dp(self, a: Space, t: Space, dp: Array, n: int) -> Array:
        return dp


@bug("dp is masked by dropout, but not divided by 1 - p.")
class dp_not_rescaled(Kernel):
    def dp(self, a: Space, t: Space, dp: Array, n: int) -> Array:
        return dp * self.keep(a, t, n)


@bug("dbias of a bias that all batch entries share is that of entry 0, not the sum.")
class dbias_of_batch_zero(Kernel):
    def reduce_bias(self, a: Space) -> Array:
        shared = a.given["bias"].shape[0] == 1
        a.dbias = a.dbias[:1] if shared else a.dbias
        return super().reduce_bias(a)


@bug("dbias of a bias that is shared is the mean of what it should sum.")
class dbias_averaged(Kernel):
    def reduce_bias(self, a: Space) -> Array:
        axes = tuple(d for d, n in enumerate(a.given["bias"].shape) if n == 1)
        return a.dbias.mean(axes, keepdims=True)


@bug("dbias is multiplied by the scale.")
class dbias_scaled(Kernel):
    def reduce_bias(self, a: Space) -> Array:
        return super().reduce_bias(a) * a.scale


@bug("dsinks has the wrong sign.")
class dsinks_negated(Kernel):
    def add_dsinks(self, a: Space, t: Space, d: Array) -> None:
        super().add_dsinks(a, t, -d)


@bug("dsinks is that of the last batch entry: each one overwrites it.")
class dsinks_of_last_batch(Kernel):
    def add_dsinks(self, a: Space, t: Space, d: Array) -> None:
        if t.b == a.case.B - 1:
            super().add_dsinks(a, t, d)


@bug("A block of keys begins with the tile of rows after the one that it cuts: the diagonal tile is skipped.")
class diagonal_rows_skipped(Kernel):
    def reaches(self, a: Space, t: Space, n: int) -> bool:
        if a.right is None:
            return super().reaches(a, t, n)
        return super().reaches(a, t, n) and int(self.diagonal(a, t.b, t.i[0])) + a.right >= n * self.BN


@bug("Keys beyond the last are not masked in the backward: exp(-lse) overflows, and inf times 0 is NaN.")
class tail_in_backward(Kernel):
    def backward(self, a: Space) -> None:
        a.late = True
        super().backward(a)

    def in_length(self, a: Space, t: Space, j: Array) -> Array:
        seen = super().in_length(a, t, j)
        return np.broadcast_to(t.ok[:, None], seen.shape) if hasattr(a, "late") else seen


@bug("The weights of a row that saw nothing are exp(-inf - -inf) when they are recomputed.")
class empty_rows_in_backward(Kernel):
    def recomputed(self, a: Space, t: Space, s: Array) -> Array:
        return self.exp(s - t.lse)


@bug("The backward recomputes the weights with the causal mask of the top left.")
class backward_top_left(Kernel):
    def backward(self, a: Space) -> None:
        a.align = "top_left"
        super().backward(a)


@bug("The backward recomputes the weights without the bias.")
class backward_without_bias(Kernel):
    def backward(self, a: Space) -> None:
        a.late = True
        super().backward(a)

    def bias(self, a: Space, t: Space, n: int) -> Array:
        bias = super().bias(a, t, n)
        return np.where(np.isneginf(bias), bias, 0) if hasattr(a, "late") else bias


@bug("The backward recomputes the weights without the softcap.")
class backward_without_softcap(Kernel):
    def backward(self, a: Space) -> None:
        a.late = True
        super().backward(a)

    def capped(self, a: Space, s: Array) -> Array:
        return s if hasattr(a, "late") else super().capped(a, s)


@bug("The backward recomputes the weights without the mask tensor.")
class backward_without_mask(Kernel):
    def backward(self, a: Space) -> None:
        a.custom = None
        super().backward(a)


@bug("The backward takes lse, which is natural, for one in base 2.")
class backward_lse_in_base_2(Kernel):
    def recomputed(self, a: Space, t: Space, s: Array) -> Array:
        return super().recomputed(a, Space(**{**vars(t), "lse": t.lse * a.acc(LN2)}), s)


@bug("The backward divides the weights by a sum without the sink.")
class backward_without_sink(Kernel):
    def recomputed(self, a: Space, t: Space, s: Array) -> Array:
        sink = self.sink(a, t)
        rest = 1 if sink is None else 1 - self.exp(sink - self.finite(t.lse))
        return super().recomputed(a, t, s) / rest


@bug("dv is not divided by 1 - p.")
class dv_not_rescaled(Kernel):
    def backward_block(self, a: Space, b: int, hk: int, n: int, tiles: list[Space]) -> None:
        given, kept = a.given, a.kept
        super().backward_block(a, b, hk, n, tiles)
        j = np.arange(n * self.BN, min((n + 1) * self.BN, int(a.k_lens[b])))
        if "keep" in given and kept:
            a.made["dv"][self.index(a, b, hk, j)] = (a.made["dv"][self.index(a, b, hk, j)] / kept).astype(
                given["v"].dtype
            )
