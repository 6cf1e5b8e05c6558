"""Bugs planted in the suite's own honest kernel, as one method of its rules, are named: what the first line has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refattn import online
from refattn.case import Case
from refattn.cases import CASES
from refattn.masks import Causal
from refattn.online import State
from refattn.streaming import Logits, Rules, Schedule, Streaming
from refattn.visibility import Visibility
from tests.patient import named_of_some, patient  # noqa: F401

Array = np.ndarray[Any, Any]


class MergedByFirst(Rules):
    """Both products are multiplied by the factor of the first."""

    def merge(self, a: State, b: State) -> State:
        x = self.exp(a.m, online.shift_of(np.maximum(a.m, b.m)))
        return super().merge(a, b)._replace(o=(a.o + b.o) * x[..., None])


class EmptySplitCounts(Rules):
    """A split that saw nothing has lse 0."""

    def merge(self, a: State, b: State) -> State:
        return super().merge(*(s._replace(m=np.where(none, 0, s.m), l=np.where(none, 1, s.l))
                               for s in (a, b) for none in [np.isneginf(s.m)]))  # fmt: skip


class OutputNotRescaled(Rules):
    def update(self, state: State, *tile: Any) -> State:
        new = super().update(state, *tile)
        keep = np.exp(state.m - online.shift_of(new.m))[..., None]
        return new._replace(o=new.o - state.o * keep + state.o)


class MaskBeforeSoftcap(Rules):
    def logits(self, s: Array, softcap: Any, bias: Any, visible: Any, modify: Any = None) -> Logits:
        if softcap is not None:
            s, visible = self.hide(s, visible), None
        return super().logits(s, softcap, bias, visible, modify)


class HeadsByNumber(Rules):
    def key_head(self, h: int, H: int, Hkv: int) -> int:
        return min(h // Hkv, Hkv - 1)


class NibblesWithoutSign(Rules):
    def dequantise(self, name: str, codes: Array, scale: Array, kind: Any) -> Array:
        y, step = super().dequantise(name, codes, scale, kind), np.repeat(scale, 32, 3).astype(self.dtype)
        return np.where(y * step < 0, y + 256 * step, y)


class Byte(Visibility):
    """What key j sees is that of j % 256."""

    def tile(self, rows: Any = slice(None), keys: Any = slice(None), *at: Any) -> Array:
        return super().tile(rows, np.arange(self.Lk)[keys] & 255, *at)


class KeysInAByte(Rules):
    def geometry(self, mask: Any) -> Any:
        return Byte(**mask.__dict__) if isinstance(mask, Visibility) else mask


FOUND: dict[type[Rules], tuple[Callable[[Case], bool], int, str]] = {
    MergedByFirst: (lambda c: c.Lk > 64 and c.want == {"out", "lse"}, 4, "products of each by the factor of the first"),
    EmptySplitCounts: (lambda c: c.Lk > 16 and isinstance(c.mask, Causal), 4, "saw nothing as one of lse 0"),
    OutputNotRescaled: (
        lambda c: c.Lk > 64 and c.mask is None, 4, "in 3 even splits, the output so far is not rescaled"),
    MaskBeforeSoftcap: (
        lambda c: c.id in ("dsoftcap-k-lens-f32", "chunks-x-softcap-f64", "tree-x-softcap-f64") or "alibi" in c.id,
        12, "Hidden logits are -softcap"),
    HeadsByNumber: (lambda c: 1 < c.Hkv < c.H, 8, "from key head h // "),
    NibblesWithoutSign: (lambda c: c.quant is not None and c.quant.kind == "q4_0", 6, "in 8 bits without a sign"),
    KeysInAByte: (lambda c: c.Lk > 256, 6, "are told indices of keys of 8 bits"),
}  # fmt: skip


@pytest.mark.parametrize("bug", FOUND, ids=lambda bug: bug.__name__)
def test_it_is_named_first(bug: type[Rules]) -> None:
    chosen, most, words = FOUND[bug]
    kernel = Streaming(rules=bug, schedule=Schedule(tile_q=16, tile_k=16, splits=3))
    cases = [c for c in CASES if c.scores < 2**13 and c.dropout is None and chosen(c)]
    assert words in named_of_some(kernel, cases, most)
