"""Hypotheses on the maximum that is subtracted, and on the base of the exponential."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ...oracle import scale_of
from ..hypothesis import always, kind
from ..model import LOG2E, Array, Model, safe
from .bounds import ROWS, SAME, Bounds
from .loops import PLAIN, SIZES, Loop, State, Tiled, loops

__all__: list[str] = []


def exp_of(x: Array, case: Case) -> Array:
    """exp, which underflows and overflows as in the accumulators."""
    return np.asarray(np.exp(x if case.dtype == "float64" else x.astype(np.float32)).astype(x.dtype))


def _many(case: Case, how: Any) -> bool:
    return bool(case.Lk > how.tile)


@kind(_many, tile=SIZES)
class maximum_of_last_tile(Tiled):
    """The maximum is that of the last tile of {tile} keys, and not of all so far."""

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = state
        new = t[..., keys].max(-1, initial=-np.inf)
        total, product = self.part(t, keys, new)
        shrink = np.where(np.isneginf(m), 0, np.exp(safe(m) - safe(new)))
        return new, z * shrink + total, o * shrink[..., None] + product


@kind(lambda case, how: case.Lk > how.loop.tile, loop=loops(*PLAIN[1:5], *(
    Loop(n, False, 1, rows) for n in (16, 32, 64) for rows in (16, 32, 64))))  # fmt: skip
class maximum_of_own_tile(maximum_of_last_tile):
    """From tile to tile of {loop}, the maximum is that of the tile: NaN where one hides all after others did not."""

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = super().step(state, t, keys)
        lost = np.isneginf(m) & (state[1] > 0)
        return m, np.where(lost, np.nan, z), np.where(lost[..., None], np.nan, o)


@kind(lambda case, how: _many(case, how) and case.dtype != "float64", tile=SIZES)
class maximum_of_first_tile(Tiled):
    """The maximum of the first tile of {tile} keys is kept for all: exp overflows where later ones are larger."""

    def attend(self, t: Array) -> State:
        with np.errstate(all="ignore"):
            m = t[..., : self.tile].max(-1, initial=-np.inf)
            p = exp_of(t - safe(m)[..., None], self.given)
            return m, p.sum(-1), self.weighed(p)


class Underflow(Model):
    """Rows of which all weights are 0 come to 0, or to 0 / 0."""

    nan = False

    def divided(self, o: Array, z: Array) -> Array:
        lost = (z == 0) & self.seen.any(-1, keepdims=True) & self.nan
        return np.where(lost, np.nan, super().divided(o, z))


NAN = {"": False, ", and 0 / 0 is NaN": True}


@kind(
    always,
    value={"0": 0.0, "-1e4": -1e4, "-1e5": -1e5, "-1e9": -1e9, "-1e30": -1e30, "-65504": -65504.0, "-100": -100.0,
        "-10": -10.0,
           "-1": -1.0, "-1e3": -1e3, "-1e2": -1e2, "-1e6": -1e6, "the smallest positive float32": 1.17549435e-38},
)  # fmt: skip
class maximum_starts_at(Model):
    """The running maximum starts at {value}, not at -inf: exp underflows far below."""

    value = 0.0

    def attend(self, t: Array) -> State:
        m = np.maximum(t.max(-1, initial=-np.inf), self.value)
        p = exp_of(t - m[..., None], self.given)
        return m, p.sum(-1), self.weighed(p)


FAR_BELOW = {"-1e4": -1e4, "-5000": -5e3, "-1e3": -1e3, "-100": -100.0, "-1e5": -1e5, "-65504": -65504.0, "-1e6": -1e6,
             "-1e9": -1e9, "-1e30": -1e30, "0": 0.0}  # fmt: skip
"""numbers that stand for a score that is hidden"""


LOW = {"below": False, "as low as": True}


class FarBelow(Model):
    """What is below a number, or as low, is taken for nothing."""

    value, equal = -1e4, False

    def is_low(self, x: Array) -> Array:
        return x <= self.value if self.equal else x < self.value


@kind(always, value=FAR_BELOW, equal=LOW)
class maximum_is_unseen(FarBelow):
    """A row whose largest logit is {equal} {value} is taken to see nothing."""

    def attend(self, t: Array) -> State:
        m, z, o = super().attend(t)
        none = self.is_low(m)
        return np.where(none, -np.inf, m), np.where(none, 0, z), np.where(none[..., None], 0, o)


@kind(always, value=FAR_BELOW, equal=LOW)
class logit_is_hidden(FarBelow):
    """Keys whose logit is {equal} {value} are taken to be hidden."""

    def looked_at(self) -> Array:
        return self.t

    def to_logits(self) -> None:
        super().to_logits()
        gone = self.is_low(self.looked_at())
        self.seen, self.t = self.seen & ~gone, np.where(gone, -np.inf, self.t)


@kind(lambda case: case.bias is not None, value=FAR_BELOW, equal=LOW)
class bias_hides_below(logit_is_hidden):
    """Keys whose bias is {equal} {value} are taken to be hidden."""

    def looked_at(self) -> Array:
        return np.broadcast_to(self.x["bias"], self.t.shape)


@kind(always)
class maximum_not_subtracted(Model):
    """exp is taken of the logits as they are: it overflows."""

    def attend(self, t: Array) -> State:
        p = exp_of(t, self.given)
        return np.where(self.seen.any(-1), 0.0, -np.inf), p.sum(-1), self.weighed(p)


@kind(always, at=(10.0, 20.0, 30.0, 50.0, 60.0, 80.0, 88.0, 100.0))
class logits_clipped(Model):
    """Logits are clipped at +-{at}."""

    at = 50.0

    def logits(self, s: Array) -> Array:
        t = super().logits(s)
        return np.where(np.isfinite(t), np.clip(t, -self.at, self.at), t)


@kind(always)
class maximum_of_magnitudes(Model):
    """The maximum is that of the absolute values of logits."""

    def attend(self, t: Array) -> State:
        m = np.where(np.isfinite(t), np.abs(t), -np.inf).max(-1, initial=-np.inf)
        p = exp_of(t - safe(m)[..., None], self.given)
        return m, p.sum(-1), self.weighed(p)


@kind(lambda case, how: scale_of(case.scale, case.D) < 0 and (how.tile == 4096 or case.Lk > how.tile),
      tile={"all keys": 4096} | {f"tiles of {n} keys": n for n in (16, 32, 64, 128)})
class maximum_before_scale(Tiled):
    """The maximum is that of q·k, before a negative scale, which makes it the least, of {tile}: exp overflows."""

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = state
        seen = self.seen[..., keys] & (t[..., keys] > -np.inf)
        least = np.where(seen, t[..., keys], np.inf).min(-1, initial=np.inf)
        least = np.where(np.isneginf(m), least, np.minimum(m, least))
        new = np.where(seen.any(-1), least, m)
        total, product = self.part(t, keys, new)
        shrink = np.where(np.isneginf(m), 0, self.exp(safe(m) - safe(new)))
        return new, z * shrink + total, o * shrink[..., None] + product


class Base(Model):
    """exp(r x) for exp(x), wherever it is."""

    def ratio(self) -> float:
        raise NotImplementedError

    def hide(self, t: Array) -> Array:
        return super().hide(t) * self.dtype(self.ratio())

    def sink(self, sinks: Array) -> Array | None:
        return (sinks * self.dtype(self.ratio()))[:, None]

    def log(self, m: Array, z: Array) -> Array:
        return super().log(m / self.dtype(self.ratio()), z)


@kind(always, base={"2: log2(e) is forgotten": 2.0, "10": 10.0,
    "e**log2(e): log2(e) is applied twice": float(np.exp(LOG2E))})
class base_of_exp(Base):
    """The base of the exponential is {base}."""

    base = 2.0

    def ratio(self) -> float:
        return float(np.log(self.base))


def _hides(case: Case, how: Any) -> bool:
    return case.mask is not None or case.bias is not None or (how.past and min(case.lengths[1], default=0) < case.Lk)


@kind(_hides, past={"": False, " and past an entry's length": True}, nan=NAN)
class maximum_of_hidden(Underflow):
    """The maximum is taken before the mask, of hidden keys{past} too: exp underflows where those are far above{nan}."""

    past = False

    def attend(self, t: Array) -> State:
        s = self.logits(self.s)
        there = self.past or np.asarray(replace(self.case.visibility, mask=None).tile())
        m = np.where(there, s, -np.inf).max(-1, initial=-np.inf)
        p = exp_of(t - safe(m)[..., None], self.given)
        return m, p.sum(-1), self.weighed(p)


@kind(always, of={"all rows of an entry and head": (2,), "all heads": (1,), "all entries": (0,),
                  "all rows, heads and entries": (0, 1, 2)}, nan=NAN)  # fmt: skip
class maximum_shared(Underflow):
    """The maximum is that of {of}: exp underflows in rows far below{nan}."""

    of = (2,)

    def attend(self, t: Array) -> State:
        m = t.max(-1, initial=-np.inf)
        m = np.broadcast_to(m.max(self.of, keepdims=True, initial=-np.inf), m.shape)
        p = exp_of(t - safe(m)[..., None], self.given)
        return m, p.sum(-1), self.weighed(p)


@kind(lambda case, how: case.Lq * (case.group if how.rows[1] else 1) > 1, same=SAME,
      rows={words: rows for words, rows in ROWS.items() if rows[0] > 1}, nan=NAN)  # fmt: skip
class maximum_of_rows(Bounds, Underflow):
    """The maximum is that of all of {rows} rows: exp underflows in those far below{nan}."""

    def attend(self, t: Array) -> State:
        m = self.of_tile(t.max(-1, initial=-np.inf), lambda x: x.max(-1))
        p = exp_of(t - safe(m)[..., None], self.given)
        return m, p.sum(-1), self.weighed(p)


@kind(always, plus={"1": 1.0, "1e-3": 1e-3, "1e-5": 1e-5, "1e-6": 1e-6, "-1": -1.0})
class sum_starts_at(Model):
    """The row sum has {plus} too much, in the output and in lse."""

    plus = 1.0

    def attend(self, t: Array) -> State:
        m, z, o = super().attend(t)
        return m, z + self.plus, o
