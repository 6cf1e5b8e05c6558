"""Hypotheses of too few bits in the forward: what is rounded, or cut, and the contract does not say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...dtypes import FORMATS, round_to
from ..hypothesis import always, kind
from ..model import Array, Model, safe
from .loops import LOOPS, PLAIN, SPLIT, State, Tiled, loops

__all__: list[str] = []

SIXTEEN = ("float16", "bfloat16")
TO = ("bfloat16", "float16", "the 16 bits of the inputs", "float32")
SIZES = (16, 32, 64, 128)


def named(to: str, case: Case) -> str:
    """The format of a case; "" for none."""
    if to in FORMATS:
        return to if to != "float32" or "float64" in (case.dtype, case.out_dtype) else ""
    return case.dtype if case.dtype in SIXTEEN else case.out_dtype if case.out_dtype in SIXTEEN else ""


def _applies(case: Case, how: Any) -> bool:
    return bool(named(how.to, case))


def lowered(x: Array, to: str, case: Case) -> Array:
    """x in the format and back."""
    name = named(to, case)
    return round_to(x, name).astype(x.dtype) if name else x


def cut(x: Array, name: str) -> Array:
    """x rounded towards zero to a format."""
    near = round_to(x, name).astype(np.float64)
    lower = np.nextafter(near.astype(FORMATS[name].dtype), FORMATS[name].dtype.type(0)).astype(np.float64)
    return np.where(np.abs(near) > np.abs(x.astype(np.float64)), lower, near).astype(x.dtype)


@kind(_applies, rounding=True, of={"row sum": "z", "reciprocal of the row sum": "r"}, to=TO)
class divisor_rounded(Model):
    """The {of} by which the output is divided is rounded to {to}."""

    of, to = "r", ""

    def divided(self, o: Array, z: Array) -> Array:
        z = np.where(z == 0, 1, z)
        low = lowered(z, self.to, self.given) if self.of == "z" else 1 / lowered(1 / z, self.to, self.given)
        return super().divided(o, low) * (z != 0)


@kind(_applies, rounding=True, to=TO, loop=loops(*PLAIN[1:]))
class rescaling_rounded(Tiled):
    """From tile to tile of {loop}, the factor by which sum and output are rescaled is rounded to {to}."""

    to = ""

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        return super().next(state, m, lowered(shrink, self.to, self.given), total, product)


@kind(_applies, rounding=True, of={"q": "q", "k": "k", "v": "v", "q and k": "qk", "k and v": "kv", "q, k and v": "qkv"},
    to=(*TO, "float8_e4m3fn", "float8_e5m2"))
class input_rounded(Model):
    """{of} rounded to {to}."""

    of: Any = "q"
    to = ""

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: lowered(x[n], self.to, self.given) for n in self.of}


@kind(
    lambda case, how: (case.backward if how.of == "dout" else case.sinks is not None) and _applies(case, how),
    rounding=True, of={"dout is": "dout", "the sinks are": "sinks"}, to=TO,
)  # fmt: skip
class other_input_rounded(Model):
    """{of} rounded to {to}."""

    of, to = "dout", ""

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | ({self.of: lowered(x[self.of], self.to, self.given)} if self.of in x else {})


@kind(lambda case: case.dtype == "float32", rounding=True, of={"q and k": "qk", "v": "v", "q, k and v": "qkv"},
      how={"rounded": False, "cut": True})  # fmt: skip
class products_in_tf32(Model):
    """{of} are {how} to the ten bits of TF32 before they are multiplied."""

    of: Any = "qk"
    how = False

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        for n in self.of:
            bits = np.ascontiguousarray(x[n], np.float32).view(np.uint32)
            bits = bits if not self.how else bits & np.uint32(0xFFFFE000)
            near = ((bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
            x[n] = np.where(np.isfinite(x[n]), near, x[n]).astype(np.float64)
        return x


@kind(lambda case, how: case.bias is not None and _applies(case, how), rounding=True, to=TO)
class bias_rounded(Model):
    """The bias is rounded to {to}."""

    to = ""

    def bias(self, bias: Array) -> Array:
        return lowered(bias, self.to, self.given)


class Lowered(Model):
    """Weights lose bits where they meet the values."""

    what, to = 0, ""

    def low(self, x: Array, what: str = "weights") -> Array:
        if what != "weights":
            return super().low(x, what)
        if self.what:
            return cut(x, named(self.to, self.given))
        return lowered(super().low(x), self.to, self.given)


@kind(_applies, rounding=True, what={"rounded": 0, "cut": 1}, to=(*TO, "float8_e4m3fn", "float8_e5m2"))
class weights_rounded(Lowered):
    """Weights are {what} to {to} before they meet the values."""


class OfTile(Lowered, Tiled):
    pass


@kind(
    lambda case, how: _applies(case, how) and case.Lk > how.loop.tile, rounding=True, what={"rounded": 0, "cut": 1},
    to=(*TO, "float8_e4m3fn", "float8_e5m2"), loop=LOOPS,
)  # fmt: skip
class weights_of_loop_rounded(OfTile):
    """From tile to tile of {loop}, weights, relative to the maximum so far, are {what} to {to}."""


@kind(
    _applies, rounding=True, what={"rounded": 0, "cut": 1}, to=(*TO, "float8_e4m3fn", "float8_e5m2"), tile=(8, *SIZES),
)  # fmt: skip
class weights_of_tile_rounded(OfTile):
    """Weights of tiles of {tile} keys, relative to the maximum of the tile, are {what} to {to}."""

    def part(self, t: Array, keys: slice, m: Array) -> tuple[Array, Array]:
        own = t[..., keys].max(-1, initial=-np.inf)
        total, product = super().part(t, keys, own)
        grow = np.exp(own - safe(m))
        return total * grow, product * grow[..., None]


@kind(_applies, rounding=True, to=TO)
class weights_rounded_and_summed(Model):
    """Weights are rounded to {to} before they are summed too."""

    to = ""

    def attend(self, t: Array) -> State:
        m = t.max(-1, initial=-np.inf)
        p = lowered(np.exp(t - safe(m)[..., None]), self.to, self.given)
        return m, p.sum(-1), self.weighed(p)


@kind(_applies, rounding=True, to=TO)
class weights_normalised_and_rounded(Model):
    """Weights are divided by their sum, and then rounded to {to}."""

    to = ""

    def attend(self, t: Array) -> State:
        m = t.max(-1, initial=-np.inf)
        p = np.exp(t - safe(m)[..., None])
        top, total, _ = self.join(m, p.sum(-1), np.zeros((*m.shape, 0)))
        full = total * np.exp(safe(top) - safe(m))
        w = lowered(p / np.where(full == 0, 1, full)[..., None], self.to, self.given)
        return m, p.sum(-1), self.weighed(w) * full[..., None]


STATE = {"the running output is": (2,), "the row sum is": (1,), "the maximum is": (0,),
         "the running output and the row sum are": (1, 2), "all of the state is": (0, 1, 2)}  # fmt: skip


@kind(
    _applies, rounding=True, what=STATE, how={"rounded": lambda x, to: round_to(x, to), "cut": cut}, to=TO,
    loop=loops(*PLAIN[1:]),
)  # fmt: skip
class state_rounded(Tiled):
    """From tile to tile of {loop}, {what} {how} to {to}."""

    what, to = (2,), ""
    how: Callable[[Array, str], Array]

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        found = super().next(state, m, shrink, total, product)
        name = named(self.to, self.given)
        m, z, o = (self.how(x, name).astype(x.dtype) if i in self.what else x for i, x in enumerate(found))
        return m, z, o


@kind(_applies, rounding=True, to=TO, loop=loops(*SPLIT))
class output_rounded_in_splits(state_rounded):
    """From tile to tile of {loop}, the running output is rounded to {to}."""

    how = staticmethod(round_to)


@kind(_applies, rounding=True, tile=SIZES, to=TO)
class products_rounded(Tiled):
    """The product of weights and values of each tile of {tile} keys is rounded to {to}."""

    tile, to = 64, ""

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        return super().next(state, m, shrink, total, lowered(product, self.to, self.given))


@kind(
    always, rounding=True, what={"lse is": "lse", "the output is": "out", "the gradients are": "d",
    "all results are": ""},
    how={"rounded": lambda x, to: round_to(x, to), "cut": cut}, to=TO,
)  # fmt: skip
class result_rounded(Model):
    """{what} {how} to {to} on its way."""

    what, to = "lse", ""
    how: Callable[[Array, str], Array]

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        name = named(self.to, self.given)
        ours = [n for n in y if n == self.what or (self.what == "d" and n[0] == "d") or (not self.what and n != "lse")]
        return y | {n: self.how(np.asarray(y[n], np.float64), name).astype(np.float64) for n in ours} if name else y


@kind(_applies, shows="out", rounding=True, to=TO, tile=(8, *SIZES))
class sum_of_normalised_rounded(Model):
    """Weights are divided by their sum first; their products with values are summed in {to}, {tile} keys at a time."""

    to = ""
    tile = 64

    def attend(self, t: Array) -> State:
        m, z, _ = super().attend(t)
        p = np.exp(t - safe(m)[..., None]) / np.where(z == 0, 1, z)[..., None]
        found = np.zeros((*t.shape[:3], self.v.shape[3]), t.dtype)
        for j in range(0, t.shape[3], self.tile):
            keys = slice(j, j + self.tile)
            found = lowered(found + self.weighed(p[..., keys], keys), self.to, self.given)
        return m, z, found * z[..., None]
