"""Wrong ends: the last tile, memory that is not in use, rows that are not written or written twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import Case, Packed
from ..memory import take_answer
from ..online import State
from ..streaming import Rules
from .catalogue import TILES, Wrapped, changed, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _tail(case: Case) -> bool:
    return case.Lk % TILES.tile_k != 0


def _cut(t: Array, v: Array, visible: Array | None, kept: Array | None, n: int) -> tuple[Any, ...]:
    """The first n keys of a tile."""
    return t[:, :n], v[:n], None if visible is None else visible[:, :n], None if kept is None else kept[:, :n]


@mutant("tails", "pytorch#169222 NNkernels.jl#16", _tail, "tail_scored", caught="small-2x1-bf16")
class tail_keys_scored(Rules):
    """The last tile is filled up with keys and values of zero, which are not masked."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        extra = -t.shape[1] % self.schedule.tile_k
        t, v = np.pad(t, ((0, 0), (0, extra))), np.pad(v, ((0, extra), (0, 0)))
        if visible is not None:
            visible = np.pad(visible, ((0, 0), (0, extra)), constant_values=True)
        if kept is not None:
            kept = np.pad(kept, ((0, 0), (0, extra)), constant_values=True)
        return super().update(state, t, v, visible, kept)


@mutant("tails", "NNkernels.jl#16 pytorch#169222", _tail, "last_tile", caught="small-1x2-f32")
class tail_dropped(Rules):
    """Keys past the last whole tile are not attended to."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        whole = t.shape[1] // self.schedule.tile_k * self.schedule.tile_k
        return super().update(state, *_cut(t, v, visible, kept, whole))


@mutant("tails", "NNkernels.jl#16", _tail, "last_tile", caught="small-1x2-f32")
class tail_twice(Rules):
    """The last tile, where it is not whole, is attended to twice."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        tail = t.shape[1] < self.schedule.tile_k
        return super().update(after, t, v, visible, kept) if tail else after


@mutant("tails", "NNkernels.jl#16", _tail, "last_tile", caught="small-1x2-f32")
class last_key_of_tail_dropped(Rules):
    """The last key is not attended to, unless it ends a whole tile."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        n = t.shape[1] - (t.shape[1] < self.schedule.tile_k)
        return super().update(state, *_cut(t, v, visible, kept, n))


@mutant("tails", "", lambda case: case.Lk % TILES.tile_k in (60, 62), "last_tile", caught="tail-60-f32")
class last_key_of_some_tails_dropped(Rules):
    """The last key is not attended to where the last tile has 60 or 62 keys."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        n = t.shape[1] - (self.schedule.tile_k - t.shape[1] in (2, 4))
        return super().update(state, *_cut(t, v, visible, kept, n))


@mutant(
    "tails", "gittensor-ai-lab/sparkinfer#330 gittensor-ai-lab/sparkinfer#425", lambda case: case.D > 128, "code_index",
    caught="q8-d256-f32",
)  # fmt: skip
class scores_of_128_coordinates(Rules):
    """Of a head larger than 128, the first 128 coordinates alone enter the scores."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        return super().products(q[:, :128], k[:, :128], scale)


# memory that is not in use


def _may_be_poisoned(case: Case) -> bool:
    return case.family.startswith("poisoned")


@mutant(
    "tails", "flash-attention#1745 flash-attention#2374 flash-attention#1395 vllm#936 vllm#641 transformers#46765",
    _may_be_poisoned, "unused_slots_nan", caught="far-poisoned-f64", shows="canary out",
    equal="where all of v is finite: 0 times it is 0",
)  # fmt: skip
class nan_of_hidden_values(Rules):
    """Hidden values are multiplied by a weight of 0, and not left out: NaN in one comes through."""

    def weigh(
        self, p: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> tuple[Array, Array]:  # fmt: skip
        sums, _ = super().weigh(p, v, visible, kept)
        return sums, self.drop(self.round(p, self.precision.weights), kept) @ v


@mutant(
    "tails", "tilelang#2461 flash-attention#443",
    lambda case: case.q_lens is not None and wants("dk", "dv")(case) and min(case.q_lens) < case.Lq,
    "rows_past_end_backward", caught="grad-sinks-f64", shows="dk dv", semantic=False,
)  # fmt: skip
class rows_past_end_reach_dk(Wrapped):
    """Rows beyond q_lens bring lse and delta that nobody wrote into dk and dv."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        short = (np.array(case.lengths[0]) < case.Lq)[:, None, None, None]
        for name in ("dk", "dv"):
            y = changed(case, y, name, lambda x: np.where(short, np.nan, x))
        return y


@mutant(
    "tails", "flash-attention#443 pytorch#196678", lambda case: wants("dq")(case) and _tail(case), "grad_overflow",
    caught="grad-tile-65x127-f32", shows="dq", equal="where lse is above -88, where exp(-lse) is finite",
    semantic=False,
)  # fmt: skip
class tail_overflows_backward(Wrapped):
    """Keys past the last tile are not masked when the backward recomputes p = exp(0 - lse), which overflows."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if not wants("dq")(case) or not _tail(case):
            return y
        lse = take_answer(case, "lse", self(replace(case, want=frozenset({"lse"})), given)["lse"])
        with np.errstate(over="ignore"):
            far = np.isposinf(np.exp(-lse.astype(np.float32))) & np.isfinite(lse)
        return changed(case, y, "dq", lambda x: np.where(far[..., None], np.nan, x))


# rows


def _rows_left(case: Case) -> bool:
    return case.Lq % TILES.tile_q != 0 and wants("out")(case)


@mutant(
    "tails", "flash-attention#1076 pytorch#131257", _rows_left, "tail_queries", caught="q-lens-f64", shows="out",
    semantic=False,
)  # fmt: skip
class last_rows_unwritten(Wrapped):
    """Rows past the last whole tile of queries are not written."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        beyond = np.arange(case.Lq) >= case.Lq // self.schedule.tile_q * self.schedule.tile_q
        return changed(case, y, "out", lambda x: np.where(beyond[:, None], 0, x))


@mutant(
    "tails", "flash-attention#2324 fla#892 flash-attention#41",
    lambda case: wants("dk", "dv")(case) and case.k_lens is not None and min(case.k_lens) < case.Lk, "packed_gap",
    survives="what lies beyond k_lens does not exist, and is not judged", semantic=False,
)  # fmt: skip
class unused_gradients_unwritten(Wrapped):
    """Gradients beyond k_lens are not written, and hold NaN."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        beyond = np.arange(case.Lk) >= np.array(case.lengths[1])[:, None]
        for name in ("dk", "dv"):
            y = changed(case, y, name, lambda x: np.where(beyond[:, None, :, None], np.nan, x))
        return y


@mutant(
    "tails", "flash-attention#638", lambda case: isinstance(case.storage, Packed) and case.B > 1 and wants("out")(case),
    "packed_leak", caught="packed-dv-wide-f32", shows="out", semantic=False,
)  # fmt: skip
class rows_of_next_sequence_overwritten(Wrapped):
    """The last tile of a packed sequence is written whole: over the first rows of the next."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if not isinstance(case.storage, Packed):
            return y
        spilt = np.array([0, *(-n % self.schedule.tile_q for n in case.lengths[0][:-1])])
        over = np.arange(case.Lq) < spilt[:, None] - case.storage.gap
        return changed(case, y, "out", lambda x: np.where(over[:, None, :, None], 0, x))


@mutant("tails", "tinygrad#18009", lambda case: case.Lk > TILES.tile_k, "last_tile", caught="tile-16x129-bf16")
class first_tile_alone(Rules):
    """Only the first tile of keys that a row sees is attended to."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        fresh = state.l == 0
        m, sums = np.where(fresh, after.m, state.m), np.where(fresh, after.l, state.l)
        return State(m, sums, np.where(fresh[:, None], after.o, state.o))
