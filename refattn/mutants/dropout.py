"""Wrong dropout: what makes up for dropped weights, what is dropped, and which are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..case import GRADIENTS, Case
from ..streaming import Rules
from .catalogue import Wrapped, changed, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _drops(*names: str) -> Callable[[Case], bool]:
    """Whether weights are dropped, and any of the outputs is wanted."""
    return lambda case: bool(case.dropout) and wants(*names)(case)


def _drops_some(*names: str) -> Callable[[Case], bool]:
    """The same, but not if all weights are dropped."""
    return lambda case: case.dropout != 1 and _drops(*names)(case)


@mutant(
    "dropout", "rohitg00/ai-engineering-from-scratch#17", _drops_some("out", *GRADIENTS), "dropout_scale",
    caught="dropout-bias-grad-f64",
)  # fmt: skip
class dropout_not_rescaled(Rules):
    """What is kept is not divided by 1 - p."""

    def undropped(self, dropout: float | None) -> Array:
        return self.dtype.type(1)


@mutant(
    "dropout", "apex#816 kaldi#2814 theanets#123 rasbt/LLMs-from-scratch#431",
    lambda case: case.dropout != 0.5 and _drops_some("out", *GRADIENTS)(case), "dropout_scale",
    caught="dropout-bias-grad-f64",
)  # fmt: skip
class dropout_p_for_1_minus_p(Rules):
    """What is kept is divided by p, the probability of the other outcome."""

    def undropped(self, dropout: float | None) -> Array:
        return self.dtype.type(1 if not dropout else 1 / dropout)


@mutant(
    "dropout", "aws-neuron/nki-samples#80 aws-neuron/aws-neuron-sdk#1156", _drops("out", "lse", *GRADIENTS),
    "dropout_renormalised", caught="dropout-one-key-f32",
)  # fmt: skip
class dropout_in_denominator(Rules):
    """The row sum is taken after weights were dropped, and lse with it."""

    def weigh(
        self, p: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> tuple[Array, Array]:  # fmt: skip
        _, product = super().weigh(p, v, visible, kept)
        return self.drop(p, kept).sum(-1), product


@mutant(
    "dropout", "aws-neuron/nki-samples#81 numpy-ml#94", _drops("dq", "dk", "dbias", "dscale", "dsoftcap"),
    "dropout_backward", caught="dropout-tree-grad-f32",
)  # fmt: skip
class dropout_missing_in_dp(Rules):
    """The backward drops no gradient of the weights."""

    def through_dropout(self, dp: Array, kept: Array, undropped: Array) -> Array:
        return dp


@mutant(
    "dropout", "pytorch#187225 flash-attention#2439", _drops_some("dq", "dk", "dv", "dbias", "dscale", "dsoftcap"),
    "dropout_backward", caught="dropout-tree-grad-f32",
)  # fmt: skip
class dropout_drawn_again(Rules):
    """The backward takes other weights for kept: its generator is a key ahead."""

    def kept_again(self, kept: Array) -> Array:
        return np.roll(kept, 1, axis=1)


@mutant(
    "dropout", "pytorch#124464 suno-ai/bark#662", _drops("out", *GRADIENTS), "dropout_ignored",
    caught="dropout-mask-per-head-f64",
)  # fmt: skip
class dropout_drops_nothing(Rules):
    """No weight is dropped, though what is kept is made up for."""

    def drop(self, p: Array, kept: Array | None) -> Array:
        return p


@mutant(
    "dropout", "", lambda case: case.dropout is not None and wants("out", *GRADIENTS)(case), "dropout_ignored",
    caught="dropout-mask-per-head-f64",
)  # fmt: skip
class dropout_inverted(Rules):
    """What should be kept is dropped, and the other way round."""

    def drop(self, p: Array, kept: Array | None) -> Array:
        return super().drop(p, None if kept is None else ~kept)


@mutant(
    "dropout", "apex#816", _drops("dq", "dk", "dbias", "dscale", "dsoftcap"), "dropout_backward",
    caught="dropout-tree-grad-f32",
)  # fmt: skip
class dropout_not_made_up_in_dp(Rules):
    """The gradient of the weights is multiplied by 1 - p, and not divided by it."""

    def through_dropout(self, dp: Array, kept: Array, undropped: Array) -> Array:
        return super().through_dropout(dp, kept, 1 / undropped if undropped else undropped)


@mutant(
    "dropout", "nikhilbarhate99/min-decision-transformer#2", _drops_some("out"), "dropout_on_out",
    caught="dropout-half-bf16", shows="out",
)  # fmt: skip
class dropout_of_out(Wrapped):
    """Dropout falls on the output, not on the weights."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        on_out = case.dropout is not None and not case.backward
        return case, {**given, "keep": np.ones_like(given["keep"])} if on_out else given

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if case.dropout is None or case.backward or not case.Lk:
            return y
        keep = np.asarray(given["keep"])[..., np.arange(case.Dv) % case.Lk]
        return changed(case, y, "out", lambda x: np.where(keep, x, 0))


@mutant(
    "dropout", "KernelBench#165", _drops("out", *GRADIENTS), "dropout_ignored", caught="dropout-mask-per-head-f64",
    semantic=False,
)  # fmt: skip
class dropout_claims_to_keep_all(Wrapped):
    """No weight is dropped, and the mask that is returned says that none was."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        return case, {**given, "keep": np.ones_like(given["keep"])} if "keep" in given else given

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return {**y, "keep": np.ones_like(given["keep"])} if "keep" in given else y
