"""What may be wrong with a key, whichever it is: it is left out, counts twice, or is without its bias."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ..case import Case
from .hypothesis import always
from .model import LN2, LOG2E, Array, Model

__all__ = ["WRONG", "hidden", "unmasked"]


class zero(Model):
    of: tuple[str, ...] = ("k",)

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: 0 * x[n] for n in self.of}


class zero_k(zero): ...


class zero_v(zero):
    of = ("v",)


class zero_kv(zero):
    of = ("k", "v")


class hidden(Model):
    def visible(self) -> Array:
        return super().visible() & False


class unmasked(Model):
    def visible(self) -> Array:
        return np.asarray(dataclasses.replace(self.case.visibility, mask=None).tile())


class times(Model):
    by = 2.0

    def hide(self, t: Array) -> Array:
        return super().hide(t + np.log(self.by))


class twice(times): ...


class half(times):
    by = 0.5


class unbiased(Model):
    def bias(self, bias: Array) -> Array:
        return np.where(np.isneginf(bias), bias, 0)


class biased_twice(Model):
    def bias(self, bias: Array) -> Array:
        return 2 * bias


class uncapped(Model):
    def cap(self, s: Array, softcap: float) -> Array:
        return s


class unscaled(Model):
    def scaled(self, qk: Array) -> Array:
        return qk


class scaled_twice(Model):
    def scaled(self, qk: Array) -> Array:
        return super().scaled(super().scaled(qk))


class in_base_2(Model):
    def scaled(self, qk: Array) -> Array:
        return super().scaled(qk) * LN2


class twice_in_base_2(Model):
    def scaled(self, qk: Array) -> Array:
        return super().scaled(qk) * LOG2E


class score_0(Model):
    def hide(self, t: Array) -> Array:
        return super().hide(0 * np.where(np.isfinite(t), t, 0))


class all_kept(Model):
    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {"keep": x["keep"] | True}


class of_head_0(Model):
    def heads(self) -> Array:
        return super().heads() * 0


class of_entry_0(Model):
    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: np.repeat(x[n][:1], len(x[n]), 0) for n in "kv"}


WRONG: dict[str, tuple[type[Model], Callable[[Case], bool]]] = {
    "they are left out": (hidden, always),
    "they count twice": (twice, always),
    "they count half": (half, always),
    "keys are taken for 0": (zero_k, always),
    "values are taken for 0: they count in the sum, and not in the output": (zero_v, always),
    "keys and values are taken for 0": (zero_kv, always),
    "scores are 0": (score_0, always),
    "the mask is not applied": (unmasked, lambda c: c.mask is not None),
    "the bias is not applied": (unbiased, lambda c: c.bias is not None),
    "the bias is applied twice": (biased_twice, lambda c: c.bias is not None),
    "softcap is not applied": (uncapped, lambda c: c.softcap is not None),
    "the scale is not applied": (unscaled, always),
    "the scale is applied twice": (scaled_twice, always),
    "log2(e) is not applied": (in_base_2, always),
    "log2(e) is applied twice": (twice_in_base_2, always),
    "dropout is not applied": (all_kept, lambda c: c.dropout is not None),
    "keys and values are those of head 0": (of_head_0, lambda c: c.Hkv > 1),
    "keys and values are those of entry 0": (of_entry_0, lambda c: c.B > 1),
}
