"""Hypotheses on what hidden pairs count for in tiles that are visited: a number for -inf, or softcap's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, safe
from .bounds import KEYS, ROWS, SAME, Bounds, hides
from .loops import State
from .maxima import NAN, Underflow, exp_of

__all__: list[str] = []

Logit = Callable[[Any], Any]


def _bias(x: Any) -> Any:
    return np.where(np.isneginf(x.x["bias"]), -np.inf, x.x["bias"]) if "bias" in x.x else 0.0


VALUES: dict[str, tuple[Logit, str]] = {
    "-softcap, with the bias": (lambda x: _bias(x) - x.given.softcap, "softcap"),
    "-softcap": (lambda x: -x.given.softcap, "softcap"),
    "-1e4": (lambda x: -1e4, ""), "-1e9": (lambda x: -1e9, ""), "-1e30": (lambda x: -1e30, ""),
    "0": (lambda x: 0.0, ""), "0, with the bias": (_bias, "bias"),
}
CAPPED = {words: value for words, value in VALUES.items() if value[1] == "softcap"}
SOME = "some"
ENDS = {"the last key that one sees": False, "the end of its last tile": True,
        "the end of each, past the last key": SOME}  # fmt: skip


def _applies(case: Case, how: Any) -> bool:
    needed = how.value[1]
    return (case.mask is not None or case.k_lens is not None) and (not needed or getattr(case, needed) is not None)


def _same(case: Case, how: Any) -> Any:
    return SAME[1](case, how) if hides(case) or how.whole == SOME else None


class Visited(Bounds):
    """Which keys are gone over in tiles of rows and keys, from the first that one of its rows sees to the last."""

    whole: Any = False

    def visited(self) -> Array:
        case = self.case
        if self.whole == SOME:
            some = np.logical_or.reduceat(self.seen, range(0, case.Lk, self.keys), -1)
            some = np.stack([self.of_tile(x, lambda x: x.any(-1)) for x in np.moveaxis(some, -1, 0)], -1)
            return np.repeat(some, self.keys, -1)[..., : case.Lk]
        real = np.asarray(replace(case.visibility, mask=None).tile())
        if not hides(case):
            return real
        first, last = self.ends(self.reach())
        low = self.down(self.of_tile(first, lambda x: x.min(-1)))
        high = self.of_tile(last, lambda x: x.max(-1))
        j = np.arange(case.Lk)
        return real & (j >= low[..., None]) & (j < (self.up(high) if self.whole else high)[..., None])


@kind(_applies, same=("rows", _same), value=VALUES, rows=ROWS, keys=(1, *KEYS), whole=ENDS)
class hidden_logit_in_visited(Visited):
    """Hidden logits are {value}, not -inf, in tiles of {rows} rows and {keys} keys that are gone over, to {whole}."""

    value = VALUES["-1e9"]

    def hide(self, t: Array) -> Array:
        seen, visited = self.seen, self.visited()
        self.leak = visited & ~seen
        self.seen = visited | seen
        return np.where(seen, t, np.where(self.leak, self.value[0](self), -np.inf))

    def weighed(self, p: Array, keys: slice = slice(None)) -> Array:
        """What lies past the last key is loaded as 0."""
        seen = self.seen
        if self.whole == SOME:
            self.seen = seen & ~self.leak
        found = super().weighed(p, keys)
        self.seen = seen
        return found

    def low(self, x: Array, what: str = "weights") -> Array:
        """Nothing goes back through what is a constant."""
        return super().low(np.where(self.leak, 0, x) if what == "ds" else x, what)


@kind(
    lambda case: case.mask is not None or case.k_lens is not None, same=("rows", _same),
    value={"-1e4": -1e4, "-1e9": -1e9, "-1e30": -1e30}, rows=ROWS, keys=(1, *KEYS), whole=ENDS,
)  # fmt: skip
class number_added_in_visited(Visited):
    """{value} is added to hidden logits, in tiles of {rows} rows and {keys} keys that are gone over, to {whole}."""

    value = -1e9

    def hide(self, t: Array) -> Array:
        seen = self.seen
        self.seen = self.visited() | seen
        return np.where(seen, t, np.where(self.seen, t + self.value, -np.inf))


@kind(_applies, same=("rows", _same), value=CAPPED, rows=ROWS, keys=(1, *KEYS), whole=ENDS)
class hidden_logit_in_sum(hidden_logit_in_visited):
    """Hidden keys count as {value} in the sum alone, in tiles of {rows} rows and {keys} keys gone over, to {whole}."""

    def weighed(self, p: Array, keys: slice = slice(None)) -> Array:
        seen, self.seen = self.seen, self.seen & ~self.leak
        found = super().weighed(np.where(self.leak[..., keys], 0, p), keys)
        self.seen = seen
        return found


@kind(
    lambda case: case.mask is not None, same=("rows", _same), rows=ROWS, keys=(1, *KEYS), whole=ENDS, nan=NAN,
)  # fmt: skip
class maximum_of_visited(Visited, Underflow):
    """The maximum is that of hidden keys too, in tiles of {rows} rows and {keys} keys gone over, to {whole}{nan}."""

    def attend(self, t: Array) -> State:
        logits = np.where(self.visited() | self.seen, self.logits(self.s), -np.inf)
        m = np.where(np.isnan(logits), -np.inf, logits).max(-1, initial=-np.inf)
        p = exp_of(t - safe(m)[..., None], self.given)
        return m, p.sum(-1), self.weighed(p)


@kind(lambda case: case.mask is not None, same=("rows", _same), rows=ROWS, keys=(1, *KEYS), whole=ENDS)
class tiles_not_masked(Visited):
    """No mask is applied in tiles of {rows} rows and {keys} keys that are gone over, to {whole}."""

    def visible(self) -> Array:
        return np.asarray(super().visible() | self.visited())


@kind(
    lambda case: case.mask is not None, same=("rows", _same), rows=ROWS, keys=(1, *KEYS), whole=ENDS,
    what={"the output alone": "o", "the sum alone": "z"},
)  # fmt: skip
class hidden_weights(Visited):
    """Weights are not masked: hidden keys count in {what}, in tiles of {rows} rows and {keys} keys, to {whole}."""

    what = "o"

    def attend(self, t: Array) -> State:
        m = t.max(-1, initial=-np.inf)
        visited = self.visited() | self.seen
        p = exp_of(np.where(visited, self.logits(self.s), -np.inf) - safe(m)[..., None], self.given)
        own = np.where(self.seen, p, 0)
        seen, self.seen = self.seen, visited if "o" in self.what else self.seen
        o = self.weighed(p if "o" in self.what else own)
        self.seen = seen
        return m, (p if "z" in self.what else own).sum(-1), o


@kind(
    lambda case: case.scale is not None and case.scale <= 0, same=("rows", _same), rows=ROWS, keys=(1, *KEYS),
    whole=ENDS, tail={"": False, ", and beyond the end too": True},
)  # fmt: skip
class mask_before_scale(Visited):
    """The mask comes before the scale: no -inf then, in tiles of {rows} rows and {keys} keys, to {whole}{tail}."""

    tail = False

    def hide(self, t: Array) -> Array:
        visited = self.visited() | self.seen
        lost = (visited & ~self.seen).any(-1)
        n = np.array(self.case.lengths[1])[:, None, None]
        lost |= (self.tail & (n % self.keys > 0)) & visited.any(-1) & self._at_end(visited, n)
        t = super().hide(t)
        self.seen = np.where(lost[..., None], visited, self.seen)
        return np.where(lost[..., None], np.nan, t)

    def _at_end(self, visited: Array, n: Array) -> Array:
        """Whether a row goes over the last tile."""
        last = visited.shape[-1] - visited[..., ::-1].argmax(-1)
        return np.asarray(last > (n - 1) // self.keys * self.keys)
