"""What is wrong for some pairs of a query and a key alone: in some of its tiles, in one of its loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .dense import Array, Inputs, product
from .model import Model

__all__ = ["Part", "mixed", "mixes"]

Part = tuple[type[Model], Callable[[Inputs], Array]]
"""what is wrong, and the pairs (B, H, Lq, Lk) for which it is"""

OF_PAIRS = frozenset({
    "read", "arrays", "made", "k_heads", "v_heads", "heads", "visible", "factor", "scaled", "cap", "bias", "logits",
    "places", "hide", "dropped", "slope", "modifier_slope", "dp_of", "through_softmax", "q_factor", "k_factor", "rules",
    "from_memory",
})  # fmt: skip
"""the decisions about a pair that others have no part in"""
OTHERS = tuple(n for n in vars(Model) | vars(Model.__mro__[1]) if not n.startswith("_") and n not in OF_PAIRS
               and callable(getattr(Model, n)) and n != "honest_logits")  # fmt: skip


def mixes(made: type[Model]) -> bool:
    """Whether what is wrong is said pair by pair."""
    return all(getattr(made, n) is getattr(Model, n) for n in OTHERS)


def mixed(parts: Sequence[Part]) -> type[Model]:
    """The last of `parts` holds where several do; where none does, nothing is wrong."""

    class mixed_model(Model):
        def to_logits(self) -> None:
            super().to_logits()
            rest = np.ones(self.t.shape, bool)
            self.others: list[tuple[Model, Array]] = []
            for made, pairs in parts:
                other, at = made(self.inputs, self.contract), np.broadcast_to(pairs(self.inputs), self.t.shape)
                other.to_logits()
                for name in ("seen", "s", "t", "capped"):
                    setattr(self, name, np.where(at, getattr(other, name), getattr(self, name)))
                self.others = [(model, before & ~at) for model, before in self.others] + [(other, at)]
                rest &= ~at
            self.rest_of_pairs = rest

        def weighed(self, p: Array, keys: slice = slice(None)) -> Array:
            total: Any = 0
            for model, at in ((self, self.rest_of_pairs), *self.others):
                kept = at if model.keep is None else at & model.keep
                total = total + product(self.low(np.where(kept, p, 0)), model.v, self.seen & at)
            return np.asarray(total)

        def backward(self) -> dict[str, Array]:
            self.pairs_alone = self.rest_of_pairs
            y = super().backward()
            for model, at in self.others:
                model.goes_by(self)
                model.pairs_alone = at
                for name, x in model.backward().items():
                    if name != "dsinks":  # of rows, not of pairs
                        y[name] = y[name] + x if name in y else x
            return y

    return mixed_model
