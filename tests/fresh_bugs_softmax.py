"""Bugs of the fresh kernel: empty rows, online softmax, split keys, sinks, lse, precision.  See `tests.fresh_bugs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.case import Case
from tests.fresh_bugs_loads import bug
from tests.fresh_forward import LOG2E
from tests.fresh_kernel import Kernel
from tests.fresh_loads import Array, Space

# empty rows


@bug("A row that sees nothing is divided by its sum, 0.")
class empty_rows_divided(Kernel):
    def normalised(self, a: Space, z: Space) -> Array:
        return z.o / z.l * a.acc(a.kept)


@bug("Hidden keys have the score -1e9, so that a row that sees nothing is a mean.")
class hidden_is_finite(Kernel):
    def hidden(self, a: Space) -> float:
        return -1e9


@bug("A row that sees nothing has lse +inf.")
class empty_lse_plus_inf(Kernel):
    def lse(self, z: Space) -> Array:
        return np.where(z.l == 0, np.inf, super().lse(z))


@bug("Where the maximum is -inf it is not replaced before it is subtracted: -inf - -inf is NaN.")
class max_not_guarded(Kernel):
    def finite(self, m: Array) -> Array:
        return m


@bug("Where the first tile is hidden the running maximum becomes 0, and stays: very negative rows underflow.")
class max_zero_kept(Kernel):
    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        super().step(a, t, z, s, v, n)
        z.m = self.finite(z.m)


# online softmax


@bug("The running output is not rescaled when the maximum grows.")
class output_not_rescaled(Kernel):
    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        before, m = z.o, z.m
        super().step(a, t, z, s, v, n)
        z.o = z.o + before - before * self.exp(m - self.finite(z.m))


@bug("The running sum is not rescaled when the maximum grows.")
class sum_not_rescaled(Kernel):
    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        before, m = z.l, z.m
        super().step(a, t, z, s, v, n)
        z.l = z.l + before - before * self.exp(m - self.finite(z.m))


@bug("The new maximum is that of the tile alone; where it falls, the state is not rescaled.")
class max_of_tile(Kernel):
    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        z.m = np.minimum(z.m, s.max(-1, keepdims=True))
        super().step(a, t, z, s, v, n)


@bug("The sum of a row counts only the weights that dropout keeps.")
class sum_after_dropout(Kernel):
    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        super().step(a, t, z, np.where(np.asarray(self.keep(a, t, n), bool), s, -np.inf).astype(a.acc), v, n)


@bug("Weights that dropout keeps are not divided by 1 - p.")
class dropout_not_scaled(Kernel):
    def arguments(self, case: Case, given: Any) -> Space:
        a = super().arguments(case, given)
        a.kept = 1.0
        return a


@bug("Weights that dropout keeps are divided by p, not by 1 - p.")
class dropout_scaled_by_p(Kernel):
    def arguments(self, case: Case, given: Any) -> Space:
        a = super().arguments(case, given)
        a.kept = 1 / case.dropout if case.dropout else a.kept
        return a


@bug("The constant of exp2 is 1.44: log2(e) with three digits.")
class coarse_log2e(Kernel):
    def exp(self, x: Array) -> Array:
        return np.exp2(x * x.dtype.type(1.44))


@bug("The running maximum starts at 0, not at -inf: very negative rows underflow.")
class max_starts_at_zero(Kernel):
    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        z.m = np.maximum(z.m, 0)
        super().step(a, t, z, s, v, n)


@bug("No maximum is subtracted before the exponential.")
class no_max(Kernel):
    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        p = self.exp(s)
        z.l = z.l + p.sum(-1, keepdims=True)
        z.o, z.m = self.add_values(a, z.o, self.weights(a, t, p, n), v), np.zeros_like(z.m)


@bug("The keep mask of dropout is read at the key's place in its block, not in the sequence.")
class keep_of_first_block(Kernel):
    def keep(self, a: Space, t: Space, n: int) -> Any:
        return super().keep(a, t, 0)


# split and merge, sinks, lse


@bug("Split keys are merged as a plain mean of the parts.")
class merged_by_mean(Kernel):
    def merge(self, a: Space, t: Space, parts: list[Space]) -> Space:
        z = super().merge(a, t, parts)
        parts = [x for x in parts if x.l.any()]
        mean = sum(np.where(x.l == 0, 0, x.o / x.l) for x in parts) / max(len(parts), 1)
        return z if len(parts) < 2 else Space(m=z.m, l=z.l, o=mean * z.l)


@bug("Split keys are merged without regard to their maxima: sums and outputs are just added up.")
class merged_without_max(Kernel):
    def merge(self, a: Space, t: Space, parts: list[Space]) -> Space:
        z = super().merge(a, t, [Space(m=np.max([x.m for x in parts], axis=0), l=x.l, o=x.o) for x in parts])
        return z


@bug("Blocks that do not divide evenly among the splits are forgotten.")
class split_remainder_lost(Kernel):
    def split(self, a: Space, t: Space) -> list[list[int]]:
        blocks = self.blocks(a, t)
        if a.q_lens[t.b] * a.G > self.BM or len(blocks) < 2:
            return [blocks]
        count = min(self.SPLITS, len(blocks))
        each = len(blocks) // count
        return [blocks[s * each : (s + 1) * each] for s in range(count)]


@bug("Merging parts that saw nothing takes -inf from -inf.")
class merge_not_guarded(Kernel):
    def merge(self, a: Space, t: Space, parts: list[Space]) -> Space:
        z = super().merge(a, t, parts)
        return z if len(parts) < 2 else Space(m=z.m, l=np.where(np.isneginf(z.m), np.nan, z.l), o=z.o)


@bug("The sink joins the sum in each split.")
class sink_in_each_split(Kernel):
    def merge(self, a: Space, t: Space, parts: list[Space]) -> Space:
        z, sink = super().merge(a, t, parts), self.sink(a, t)
        return z if sink is None else Space(m=z.m, l=z.l + (len(parts) - 1) * self.exp(sink - z.m), o=z.o)


@bug("The sink is forgotten where keys are split.")
class sink_lost_in_split(Kernel):
    def merge(self, a: Space, t: Space, parts: list[Space]) -> Space:
        z, sink = super().merge(a, t, parts), self.sink(a, t)
        return z if sink is None or len(parts) < 2 else Space(m=z.m, l=z.l - self.exp(sink - z.m), o=z.o)


@bug("The sink's logit is scaled like a score.")
class sink_scaled(Kernel):
    def sink(self, a: Space, t: Space) -> Array | None:
        sink = super().sink(a, t)
        return None if sink is None else sink * a.scale


@bug("The sink is read by the place of the head in its group.")
class sink_of_group_member(Kernel):
    def sink(self, a: Space, t: Space) -> Array | None:
        return super().sink(a, Space(**{**vars(t), "h": t.h % max(a.G, 1)}))


@bug("lse is in base 2.")
class lse_base_2(Kernel):
    def lse(self, z: Space) -> Array:
        return super().lse(z) * z.l.dtype.type(LOG2E)


@bug("The sum's logarithm in lse is in base 2, the maximum in base e.")
class lse_mixed_bases(Kernel):
    def lse(self, z: Space) -> Array:
        return self.finite(z.m) + np.log2(z.l)


@bug("lse leaves out the maximum that was subtracted.")
class lse_without_max(Kernel):
    def lse(self, z: Space) -> Array:
        return np.log(z.l)


@bug("lse is written at the place of the head in its group: the other groups' is never written.")
class lse_of_group_member(Kernel):
    def store_rows(self, a: Space, t: Space, x: Array, y: Array) -> None:
        lse = x is a.made["lse"]
        super().store_rows(a, Space(**{**vars(t), "h": t.h % max(a.G, 1)}) if lse else t, x, y)


# precision


@bug("out is cut off, not rounded, where it is bfloat16.")
class out_cut_off(Kernel):
    def normalised(self, a: Space, z: Space) -> Array:
        o = super().normalised(a, z)
        if a.case.out_dtype != "bfloat16":
            return o
        return (o.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@bug("lse is stored in 16 bits.")
class lse_in_16_bits(Kernel):
    def lse(self, z: Space) -> Array:
        return super().lse(z).astype(np.float16).astype(z.l.dtype)


@bug("Products of q and k are stored in fp16, where they overflow.")
class products_in_half(Kernel):
    def products(self, a: Space, q: Array, k: Array) -> Array:
        return (q @ k.T).astype(np.float16).astype(a.acc)


@bug("The running output is kept in the dtype of the inputs.")
class output_in_16_bits(Kernel):
    def add_values(self, a: Space, o: Array, p: Array, v: Array) -> Array:
        return (o + p @ v).astype(a.narrow).astype(a.acc)


@bug("Weights are cut off to 8 bits of mantissa, not rounded to the dtype of the inputs.")
class weights_cut_off(Kernel):
    def weights(self, a: Space, t: Space, p: Array, n: int) -> Array:
        p = super().weights(a, t, p, n).astype(np.float32)
        return (p.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(a.acc)


@bug("Weights are stored as e4m3 whatever the dtype of the inputs.")
class weights_in_8_bits(Kernel):
    def weights(self, a: Space, t: Space, p: Array, n: int) -> Array:
        import ml_dtypes

        return super().weights(a, t, p, n).astype(ml_dtypes.float8_e4m3fn).astype(a.acc)
