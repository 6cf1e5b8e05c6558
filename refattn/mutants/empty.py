"""Wrong at the edge of nothing: rows that see no key, sentinels, sequences and heads of size 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import online
from ..case import Case
from ..online import State
from ..streaming import Rules
from .catalogue import SPLITS, Wrapped, always, changed, hides, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _dead(case: Case) -> Array:
    """(B, H, Lq): rows that see no key by mask and lengths."""
    return ~np.asarray(case.visibility.tile().any(-1))


def _has_dead_rows(case: Case) -> bool:
    return bool(_dead(case).any())


# what hides


@mutant(
    "empty", "flax#982 mlx#2608 jax:nn.dot_product_attention", hides, "empty_rows_mean", caught="some-rows-masked-bf16",
)  # fmt: skip
class hidden_is_minus_1e9(Rules):
    """Hidden scores are -1e9, not -inf: a row that sees no key is the mean of the values."""

    def hide(self, s: Array, visible: Array | None) -> Array:
        return s if visible is None else np.where(visible, s, self.dtype.type(-1e9))


@mutant("empty", "hyunwoongko/transformer#40", hides, "finite_mask_value", caught="k-lens-0-f32")
class hidden_has_10000_less(Rules):
    """10000 is taken off hidden scores, which stay in play where the others are as low."""

    def hide(self, s: Array, visible: Array | None) -> Array:
        return s if visible is None else np.where(visible, s, s - 10000)


@mutant(
    "empty", "pytorch#109517 transformers#31035 transformers#31303", hides, "finite_mask_value", caught="k-lens-0-f32",
)  # fmt: skip
class hidden_plus_lowest(Rules):
    """The lowest finite number is added to hidden scores, which overflows or leaves equal ones."""

    def hide(self, s: Array, visible: Array | None) -> Array:
        lowest = np.finfo(np.float32).min
        return s if visible is None else np.where(visible, s, s + self.dtype.type(lowest))


@mutant(
    "empty", "onnx#8068 Wan2GP#1628", hides, "bias_minus_inf", caught="bias-padding-f32",
    shows="canary out lse dq dk dv dbias dsinks weights",
)  # fmt: skip
class hidden_by_adding(Rules):
    """What hides is added to the scores as 0 or -inf: NaN and infinity that are hidden come through."""

    def hide(self, s: Array, visible: Array | None) -> Array:
        return s if visible is None else s + np.where(visible, 0, -np.inf).astype(s.dtype)


@mutant("empty", "onnx#8068", lambda case: case.bias is not None, "bias_minus_inf", caught="scores-bias-minus-inf-f16")
class bias_times_0(Rules):
    """A bias is multiplied by a flag that is 0 or 1: 0 times -inf is NaN."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Any:
        found = super().logits(s, softcap, bias, visible, modify)
        return found if bias is None else found._replace(t=found.t + 0 * bias)


# rows that see nothing


@mutant(
    "empty", "pytorch#103749 pytorch#103963 pytorch#41508 equinox#274 brevitas#1591 rten#1321",
    lambda case: hides(case) or not case.Lk, "empty_rows_nan", caught="no-keys-f32",
)  # fmt: skip
class empty_rows_nan(Rules):
    """A row that sees no key is 0 / 0."""

    def finish(self, state: State) -> tuple[Array, Array]:
        _, lse = super().finish(state)
        return state.o / state.l[:, None], lse


@mutant(
    "empty", "flash-attention#978", lambda case: (hides(case) or not case.Lk) and "lse" in case.want, "empty_lse",
    caught="no-keys-f32", shows="lse",
)  # fmt: skip
class empty_lse_plus_inf(Rules):
    """lse of a row that sees no key is +inf, for -inf."""

    def lse(self, lse: Array) -> Array:
        return np.where(np.isneginf(lse), np.inf, lse).astype(lse.dtype)


@mutant(
    "empty", "xformers#722 llama.cpp#6438 mlx#2608", lambda case: hides(case) or not case.Lk, "first_tile_masked",
    caught="gathered-first-none-bf16",
)  # fmt: skip
class first_tile_hidden_nan(Rules):
    """-inf - -inf: a row that is hidden in its first tile of keys becomes NaN."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        m = np.maximum(state.m, t.max(-1, initial=-np.inf))
        keep = np.where(np.isneginf(m), np.nan, self.exp(state.m, online.shift_of(m))).astype(m.dtype)
        after = super().update(state, t, v, visible, kept)
        return after._replace(l=after.l + 0 * keep, o=after.o + 0 * keep[:, None])


@mutant(
    "merge", "flashinfer#4051 flashinfer#4054 flashinfer#5262 vllm#39148 vllm#28181", always, "merge_empty",
    caught="no-keys-f32", schedule=SPLITS,
)  # fmt: skip
class merge_of_empty_nan(Rules):
    """Merging two splits that saw nothing is exp(-inf - -inf): NaN."""

    def merge(self, a: State, b: State) -> State:
        both = super().merge(a, b)
        nothing = np.where(np.isneginf(both.m), np.nan, 0).astype(both.m.dtype)
        return both._replace(l=both.l + nothing, o=both.o + nothing[:, None])


@mutant(
    "empty", "flash-attention#2082 flash-attention#2083 flash-attention#2174", hides, "max_zero_start",
    caught="negative-window-f32",
)  # fmt: skip
class hidden_tile_leaves_0(Rules):
    """After a first tile that hides all, the running maximum is 0 and stays there."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        return after._replace(m=online.shift_of(after.m))


@mutant(
    "empty", "flash-attention#2562 flash-attention#2568 flash-attention#2470", lambda case: case.B > 1 and _any_0(case),
    "zero_length", caught="paged-empty-f32", shows="out", semantic=False,
)  # fmt: skip
class stale_rows_of_no_keys(Wrapped):
    """A sequence of no keys is not written: what the entry before left is there."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        none = np.array(case.lengths[1]) == 0
        return changed(case, y, "out", lambda x: np.where(none[:, None, None, None], np.roll(x, 1, 0), x))


def _any_0(case: Case) -> bool:
    return any(lq and not lk for lq, lk in zip(*case.lengths, strict=True))


@mutant(
    "empty", "flashinfer#4484 pytorch#103749", lambda case: wants("dq")(case) and _has_dead_rows(case), "dlse_empty",
    caught="empty-rows-sinks-grad-f64", shows="dq", semantic=False,
)  # fmt: skip
class empty_rows_nan_backward(Wrapped):
    """The backward of a row that sees no key computes exp(-inf - -inf): its dq is NaN."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return changed(case, y, "dq", lambda x: np.where(_dead(case)[..., None], np.nan, x))


@mutant(
    "empty", "pytorch#184330", lambda case: case.D == 0 and wants("out")(case), "head_dim_zero", caught="d0-f32",
    shows="out",
)  # fmt: skip
class head_dim_0_is_0(Wrapped):
    """Where D is 0 the output is 0, and not the mean of the visible values."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return y if case.D else changed(case, y, "out", np.zeros_like)
