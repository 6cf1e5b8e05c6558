"""Wrong dropout: what makes up for dropped weights, what is dropped, and which are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..case import GRADIENTS, Case
from ..streaming import Rules
from .catalogue import mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _drops(*names: str) -> Callable[[Case], bool]:
    """Whether weights are dropped, and any of the outputs is wanted."""
    return lambda case: bool(case.dropout) and wants(*names)(case)


def _drops_some(*names: str) -> Callable[[Case], bool]:
    """The same, but not if all weights are dropped."""
    return lambda case: case.dropout != 1 and _drops(*names)(case)


@mutant("dropout", "rohitg00/ai-engineering-from-scratch#17", _drops_some("out", *GRADIENTS), "dropout_scale")
class dropout_not_rescaled(Rules):
    """What is kept is not divided by 1 - p."""

    def undropped(self, dropout: float | None) -> Array:
        return self.dtype.type(1)


@mutant(
    "dropout", "apex#816 kaldi#2814 theanets#123 rasbt/LLMs-from-scratch#431",
    lambda case: case.dropout != 0.5 and _drops_some("out", *GRADIENTS)(case), "dropout_scale",
)  # fmt: skip
class dropout_p_for_1_minus_p(Rules):
    """What is kept is divided by p, the probability of the other outcome."""

    def undropped(self, dropout: float | None) -> Array:
        return self.dtype.type(1 if not dropout else 1 / dropout)


@mutant(
    "dropout", "aws-neuron/nki-samples#80 aws-neuron/aws-neuron-sdk#1156",
    _drops("out", "lse", *GRADIENTS), "dropout_renormalised",
)  # fmt: skip
class dropout_in_denominator(Rules):
    """The row sum is taken after weights were dropped, and lse with it."""

    def weigh(
        self, p: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> tuple[Array, Array]:  # fmt: skip
        _, product = super().weigh(p, v, visible, kept)
        return self.drop(p, kept).sum(-1), product


@mutant(
    "dropout", "aws-neuron/nki-samples#81 numpy-ml#94",
    _drops("dq", "dk", "dbias", "dscale", "dsoftcap"), "dropout_backward",
)  # fmt: skip
class dropout_missing_in_dp(Rules):
    """The backward drops no gradient of the weights."""

    def through_dropout(self, dp: Array, kept: Array, undropped: Array) -> Array:
        return dp


@mutant(
    "dropout", "pytorch#187225 flash-attention#2439",
    _drops_some("dq", "dk", "dv", "dbias", "dscale", "dsoftcap"), "dropout_backward",
)  # fmt: skip
class dropout_drawn_again(Rules):
    """The backward takes other weights for kept: its generator is a key ahead."""

    def kept_again(self, kept: Array) -> Array:
        return np.roll(kept, 1, axis=1)
