"""The laws: our kernel obeys them, whatever its schedule; each catches a kernel that is broken for it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import attention, laws
from refattn.calling import Local
from refattn.case import BiasSpec, Case
from refattn.cli import main
from refattn.conform import examine
from refattn.dtypes import FORMATS
from refattn.implementation import implementation
from refattn.inputs import make
from refattn.judge import Verdict
from refattn.laws import bench
from refattn.laws.measured import Measured, compare, exact
from refattn.laws.problems import Inexact, altered, taken
from refattn.masks import Causal, Documents, Mask, Window
from refattn.mutants import MUTANTS, rewritten
from refattn.precision import Conventions, Precision, preset
from refattn.report import failure
from refattn.streaming import Rules, Schedule, Streaming
from refattn.truth import truth

Array = np.ndarray[Any, Any]
INVARIANT = Conventions(batch_invariant=True)
KERNEL = Streaming(conventions=INVARIANT)
SHORT = [base for base in laws.BASES if base.chapter != "long"]
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")


# kernels with one thing wrong, for each law


class fixed_point_q(Rules):
    """q is rounded to multiples of 2^-24, in float32."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        grid = np.float32(2.0**24)
        return super().products(np.rint(q * grid) / grid if q.dtype == np.float32 else q, k, scale)


class q_rounded_down(Rules):
    """q is one unit in the last place of float32 too low."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        return super().products(np.nextafter(q, -np.inf) if q.dtype == np.float32 else q, k, scale)


class hidden_by_minus_20(Rules):
    """What is hidden has 20 taken off its score."""

    def hide(self, s: Array, visible: Array | None) -> Array:
        return s if visible is None else np.where(visible, s, s - 20)


class delta_with_epsilon(Rules):
    """A little is added to delta, lest it be 0."""

    def delta(self, out: Array, dout: Array) -> Array:
        return super().delta(out, dout) + np.finfo(self.dtype).eps / 128


@dataclass(frozen=True)
class Int32Window(Mask):
    """A window whose ends are computed in 32 bits."""

    left: int | None
    right: int | None
    align: str

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        diagonal = (i if self.align == "top_left" else i + lk - lq).astype(np.int32)
        seen = np.ones((), dtype=bool)
        with np.errstate(over="ignore"):
            if self.left is not None:
                seen = seen & (j >= diagonal - np.int32(self.left))
            if self.right is not None:
                seen = seen & (j <= diagonal + np.int32(self.right))
        return seen


class window_in_32_bits(Rules):
    """i + right overflows."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: Int32Window(m.left, m.right, m.align) if isinstance(m, Window) else m)


class documents_ignored(Rules):
    """All tokens are of one document."""

    def geometry(self, mask: Any) -> Any:
        def one(ids: Any) -> Any:
            return None if ids is None else (0,) * len(ids)

        return rewritten(mask, lambda m: Documents(one(m.q_ids), one(m.k_ids)) if isinstance(m, Documents) else m)


class causal_ignored(Rules):
    """A causal mask hides nothing."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: Window(None, None, m.align) if isinstance(m, Causal) else m)


class Wrapped(Streaming):
    """The honest kernel with something done before or after."""

    calls = itertools.count()

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        return self.after(case, given, super().__call__(*self.before(case, given)))

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        return case, given

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return y


class odd_rows_larger(Wrapped):
    """Odd rows of out are 5 % too large."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        y["out"][:, :, 1::2] *= y["out"].dtype.type(1.05)
        return y


class last_row_lost(Wrapped):
    """The gradient of the last row is lost."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        dout = given["dout"].copy()
        dout[:, :, -1] = 0
        return case, {**given, "dout": dout}


class out_clipped(Wrapped):
    """out saturates."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return {**y, "out": np.clip(y["out"], -0.25, 0.25).astype(y["out"].dtype)}


class out_doubled(Wrapped):
    """out is twice what it should be."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        return {**y, "out": y["out"] * y["out"].dtype.type(2)}


class softmax_plus_one(Wrapped):
    """exp(0) joins the denominator, as in softmax_1."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        if case.sinks is not None:
            return case, given
        return replace(case, sinks="zero"), {**given, "sinks": np.zeros(case.H, given["q"].dtype)}


class zero_times_all_q(Wrapped):
    """0 times the sum of all queries is added to out."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        nothing = 0 * given["q"].astype(np.float64).sum()
        return {**y, "out": (y["out"].astype(np.float64) + nothing).astype(y["out"].dtype)}


class v_read_down(Wrapped):
    """v is read one unit in the last place of float32 too low."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        v = given["v"]
        lower = np.where(np.isfinite(v), np.nextafter(v, v.dtype.type(-np.inf)), v) if v.dtype == np.float32 else v
        return case, {**given, "v": lower}


class lengths_ignored(Wrapped):
    """All keys exist."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        return replace(case, k_lens=None), given


class first_dv_lost(Wrapped):
    """dv of the first key is 0."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if "dv" in y:
            y["dv"][:, :, 0] = 0
        return y


class splits_by_batch(Wrapped):
    """As many splits as leave no core idle; batch_invariant is declared all the same."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        splits = max(1, 8 // max(1, case.B * case.H))
        return Streaming(schedule=Schedule(tile_k=16, splits=splits, exp="exp2"))(case, given)


class workspace_left(Wrapped):
    """dq is added up in a workspace for its shape that is not cleared: 1 % of the last call's is left."""

    left: dict[Any, Array] = {}

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if "dq" in y:
            key = y["dq"].shape, y["dq"].dtype
            dq = y["dq"].astype(np.float64)
            y["dq"] = (dq + 2.0**-7 * self.left.get(key, 0.0)).astype(y["dq"].dtype)
            self.left[key] = dq
        return y


class atomics(Wrapped):
    """Gradients of long problems are added in the order in which blocks happen to finish."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        many = case.backward and case.Lk > 64
        order = Schedule(tile_k=16, tile_q=16, order="random", seed=next(self.calls)) if many else Schedule()
        return Streaming(schedule=order)(case, given)


class far_rows_scaled(Wrapped):
    """Rows from 65,536 on read their scale from elsewhere: it is 10 % larger."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        if case.Lq <= 65536:
            return case, given
        q = given["q"].copy()
        q[:, :, 65536:] *= q.dtype.type(1.1)
        return case, {**given, "q": q}


class keys_wrap_at_65536(Wrapped):
    """Keys from 65,536 on are read from the beginning."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        if case.Lk <= 65536:
            return case, given
        return case, {n: x[:, :, np.arange(case.Lk) % 65536] if n in "kv" else x for n, x in given.items()}


def _kernel(rules: type[Rules]) -> Streaming:
    return Streaming(name=rules.__name__, rules=rules, conventions=INVARIANT)


def _wrapped(kind: type[Wrapped]) -> Streaming:
    return kind(name=kind.__name__, conventions=INVARIANT)


def _mutant(name: str) -> Streaming:
    return replace(MUTANTS[name].implementation, conventions=INVARIANT)


BROKEN: dict[str, Streaming] = {
    "key_permutation": _mutant("missing_rescale"),
    "query_permutation": _wrapped(odd_rows_larger),
    "query_chunks": _wrapped(last_row_lost),
    "duplicate_keys": _mutant("lse_base_2"),
    "split_merge": _mutant("sinks_dropped"),
    "additivity": _wrapped(out_clipped),
    "values_scaled": _wrapped(v_read_down),
    "unit_values": _mutant("tail_keys_scored"),
    "convex_hull": _wrapped(out_doubled),
    "adjoint_in_v": _mutant("dkdv_not_summed_over_group"),
    "logit_shift": _wrapped(softmax_plus_one),
    "scale_equivalence": _kernel(fixed_point_q),
    "sign_flips": _kernel(q_rounded_down),
    "expanded_heads": _mutant("gqa_tiled"),
    "head_isolation": _wrapped(zero_times_all_q),
    "batch_isolation": _wrapped(zero_times_all_q),
    "batch_of_one": _wrapped(splits_by_batch),
    "hidden_keys": _kernel(hidden_by_minus_20),
    "unused_keys": _wrapped(lengths_ignored),
    "other_rows": _wrapped(zero_times_all_q),
    "infinite_window": _kernel(window_in_32_bits),
    "documents": _kernel(documents_ignored),
    "causal_prefix": _kernel(causal_ignored),
    "causal_last_row": _mutant("causal_top_left"),
    "zero_gradient": _kernel(delta_with_epsilon),
    "values_mass": _wrapped(first_dv_lost),
    "keys_balance": _mutant("delta_missing"),
    "rotation": _mutant("scale_missing_in_dk"),
    "values_rotation": _wrapped(first_dv_lost),
    "adjoint_in_q": _mutant("delta_missing"),
    "adjoint_in_k": _mutant("scale_missing_in_dk"),
    "repeatability": _wrapped(atomics),
    "sampled_rows": _wrapped(far_rows_scaled),
}


@cache
def _rows(law: str) -> tuple[Case, ...]:
    """The law's rows, cheapest first."""
    return tuple(sorted(laws.rows([laws.LAWS[law]]), key=lambda c: c.B * c.H * c.Lq * c.Lk))


def _verdicts(kernel: Any, rows: Iterable[Case]) -> list[Verdict]:
    candidate = Local(kernel)
    return [examine(candidate, row) for row in rows]


def _failing(verdicts: Iterable[Verdict]) -> list[str]:
    return [failure(v, None) for v in verdicts if v.status != "passed"]


# our kernel obeys


@pytest.mark.parametrize("dtype", DTYPES)
def test_our_kernel_obeys_every_law(dtype: str) -> None:
    firsts = {}
    for law in laws.LAWS:
        for row in _rows(law):
            if row.dtype == dtype and row.Lk < 1000:
                firsts.setdefault((law, row.mask is None), row)
    assert len({law for law, _ in firsts}) >= {"float8_e4m3fn": 10}.get(dtype, 25)
    assert not _failing(_verdicts(KERNEL, firsts.values()))


def test_at_great_length_too() -> None:
    rows = [row for row in laws.rows() if row.id in ("sampled_rows.tall-f32", "split_merge.far-f32")]
    assert len(rows) == 2 and not _failing(_verdicts(KERNEL, rows))


@dataclass(frozen=True)
class _Contracted(Streaming):
    """The honest kernel with all that a contract allows."""

    loosened: tuple[tuple[str, Any], ...] = ()

    def precision(self, case: Case) -> Precision:
        contract = preset(case.dtype, case.out_dtype)
        if FORMATS[case.dtype].bits not in (8, 11):
            return contract
        return replace(contract, source="a test", **dict(self.loosened))


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    st.sampled_from([1, 5, 16]), st.sampled_from([16, 17, 48]), st.sampled_from(["reverse", "random"]),
    st.integers(1, 3), st.sampled_from(["exp", "exp2"]), st.integers(0, 1000),
    st.sampled_from([(), (("sum_rounded_weights", True),), (("weights", None),), (("weights_normalised", True),)]),
)  # fmt: skip
def test_an_honest_kernel_obeys_whatever_its_schedule_and_contract(
    tile_q: int, tile_k: int, order: Any, splits: int, exp: Any, seed: int, loosened: Any
) -> None:
    schedule = Schedule(tile_q, tile_k, order, splits, exp, seed)
    kernel = _Contracted(schedule=schedule, conventions=INVARIANT, loosened=loosened)
    bases = [replace(b, seed=seed) for b in SHORT if b.id in ("full-f16", "sinks-bf16", "causal-br-tall-f32")]
    assert not _failing(_verdicts(kernel, laws.rows(None, bases)))


def test_bits_are_asked_of_no_kernel_that_declares_that_they_vary() -> None:
    base = [b for b in SHORT if b.id == "full-bf16"]
    vary = atomics(conventions=Conventions(deterministic=False, batch_invariant=True))
    verdicts = _verdicts(vary, laws.rows(None, base))
    assert [v.case.chapter for v in verdicts if v.status == "unsupported"] == ["laws.repeatability"]
    assert not _failing(v for v in verdicts if v.status != "unsupported")


class _Unruly(Wrapped):
    """NaN for rows that see nothing, log2, sinks outside of lse, and 0 * NaN let through; all declared."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if "lse" in y:
            if case.sinks is not None:
                y["lse"] = super().__call__(replace(case, sinks=None, want=frozenset({"lse"})), given)["lse"]
            y["lse"] = y["lse"] / y["lse"].dtype.type(np.log(2))
        empty = ~case.visibility.tile().any(-1)
        for name in ("out", "lse"):
            if name in y and case.sinks is None:
                y[name][empty] = np.nan
        return y

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        return self.after(case, given, super().__call__(case, given)) if False else Wrapped.__call__(self, case, given)


# each law catches


def test_every_law_has_a_kernel_that_is_broken_for_it() -> None:
    assert set(BROKEN) == set(laws.LAWS)


@pytest.mark.parametrize("name", BROKEN)
def test_a_law_catches_the_kernel_that_is_broken_for_it(name: str) -> None:
    candidate = Local(BROKEN[name])
    for row in _rows(name):
        verdict = examine(candidate, row)
        if verdict.status == "failed":
            assert verdict.notes[0].startswith("law: ") and any(not o.passed for o in verdict.outputs)
            return
    pytest.fail(f"{name} lets {BROKEN[name].name} pass")
