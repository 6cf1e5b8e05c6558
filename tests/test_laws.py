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
from refattn.case import BiasSpec, Case, Dense
from refattn.cli import main
from refattn.conform import examine
from refattn.dtypes import FORMATS
from refattn.implementation import implementation
from refattn.inputs import Problem, make
from refattn.judge import Verdict
from refattn.laws.bench import size
from refattn.laws.measured import Measured, compare, exact
from refattn.laws.problems import Inexact, altered, taken
from refattn.masks import Causal, Documents, Mask, Window
from refattn.memory import give_answer, take
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


class read_as_contiguous(Wrapped):
    """k is read in the order that it has in memory, whatever its strides."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        k = given["k"]
        if not isinstance(case.storage, Dense):
            return case, given
        return case, {**given, "k": np.ravel(k, order="K").reshape(k.shape)}


class odd_rows_larger(Wrapped):
    """Odd rows of out are 5 % too large."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        y["out"][:, :, 1::2] *= y["out"].dtype.type(1.05)
        return y


class last_row_lost(Wrapped):
    """The gradient of the last row is lost."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        if not case.backward:
            return case, given
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
    """v is read one unit in the last place of float32 too low; not where it goes to a cache, which is compared."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        v = given["v"]
        if v.dtype != np.float32 or "v_cache" in given:
            return case, given
        return case, {**given, "v": np.where(np.isfinite(v), np.nextafter(v, np.float32(-np.inf)), v)}


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
    "paged": _mutant("pages_in_order"),
    "packed": _mutant("keys_from_cu_seqlens_q"),
    "prefill_decode": _mutant("cache_slot_late"),
    "strides": _wrapped(read_as_contiguous),
}


@cache
def _rows(law: str) -> tuple[Case, ...]:
    """The law's rows, cheapest first."""
    return tuple(sorted(laws.rows([laws.LAWS[law]]), key=lambda c: c.scores))


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
                firsts.setdefault(law, row)
    assert len(firsts) >= {"float8_e4m3fn": 10}.get(dtype, 25)
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
    st.sampled_from([5, 16, 64]), st.sampled_from([17, 48]), st.sampled_from(["reverse", "random"]),
    st.integers(1, 3), st.sampled_from(["exp", "exp2"]), st.integers(0, 1000),
    st.sampled_from([(), (("sum_rounded_weights", True),), (("weights", None),), (("weights_normalised", True),)]),
)  # fmt: skip
def test_an_honest_kernel_obeys_whatever_its_schedule_and_contract(
    tile_q: int, tile_k: int, order: Any, splits: int, exp: Any, seed: int, loosened: Any
) -> None:
    schedule = Schedule(tile_q, tile_k, order, splits, exp, seed)
    kernel = _Contracted(schedule=schedule, conventions=INVARIANT, loosened=loosened)
    rows = laws.rows(None, [replace(b, seed=seed) for b in SHORT if size(b) < 10_000])
    assert not _failing(_verdicts(kernel, rows[seed % 17 :: 17]))


class at_the_ends(Wrapped):
    """Each element but zeros at one end of its interval: the worst that is honest, and no two calls agree."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        expected = truth(Problem(case, take(case, given)), self.precision(case))
        rng = np.random.default_rng(next(self.calls))
        ends = {n: np.where(rng.random(e.value.shape) < 0.5, e.lo, e.hi) for n, e in expected.items()}
        found = {n: np.where(expected[n].value == 0, 0.0, x) for n, x in ends.items()}
        stored = {n: x if n == "lse" else x.astype(FORMATS[expected[n].dtype].dtype) for n, x in found.items()}
        return give_answer(case, stored)


@pytest.mark.parametrize("id", ["full-f16", "sinks-bf16", "full-f64"])
def test_the_worst_that_is_honest_obeys(id: str) -> None:
    base = [replace(b, B=1, H=2, Hkv=1) for b in SHORT if b.id == id]
    verdicts = _verdicts(at_the_ends(conventions=Conventions(deterministic=False)), laws.rows(None, base))
    assert not _failing(v for v in verdicts if v.status == "failed")
    assert max(v.ratio for v in verdicts) > 0.6


def test_bits_are_asked_of_no_kernel_that_declares_that_they_vary() -> None:
    base = [b for b in SHORT if b.id == "full-bf16"]
    vary = atomics(conventions=Conventions(deterministic=False, batch_invariant=True))
    bitwise = [law for law in laws.LAWS.values() if law.kind != "bound"]
    verdicts = _verdicts(vary, laws.rows(bitwise, base))
    assert [v.case.chapter for v in verdicts if v.status == "unsupported"] == ["laws.repeatability"]
    assert not _failing(v for v in verdicts if v.status != "unsupported")


class unruly(Wrapped):
    """NaN for rows that see nothing, lse in bits and without sinks, 0 * NaN let through: all of it declared."""

    def supports(self, case: Case) -> str | None:
        return None if isinstance(case.storage, Dense) else "storage"

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if case.sinks is not None and "lse" in y:
            plain = replace(case, sinks=None, want=frozenset({"lse"}))
            y["lse"] = Streaming()(plain, {n: x for n, x in given.items() if n != "sinks"})["lse"]
        if "lse" in y:
            y["lse"] = y["lse"] / y["lse"].dtype.type(np.log(2))
        empty = ~case.visibility.tile().any(-1)
        for name in y.keys() & {"out", "lse"}:
            y[name][empty] = np.nan
        leak = 0 * sum(given[n].astype(np.float64).sum(-1).sum(-1) for n in "kv")
        heads = np.repeat(leak, case.H // case.Hkv, axis=1)
        return {n: (x + heads.reshape(case.B, case.H, *(1,) * (x.ndim - 2))).astype(x.dtype)
                if n in ("out", "lse") else x for n, x in y.items()}  # fmt: skip


class mean_of_all(Wrapped):
    """A row that sees nothing gives the mean of v."""

    def supports(self, case: Case) -> str | None:
        return None if isinstance(case.storage, Dense) else "storage"

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        mean = np.repeat(given["v"].mean(2, keepdims=True), case.H // case.Hkv, axis=1)
        return {**y, "out": np.where(case.visibility.tile().any(-1)[..., None], y["out"], mean)}


def test_a_mean_of_all_is_not_judged() -> None:
    base = [replace(b, want=frozenset({"out"})) for b in SHORT if b.id == "causal-br-tall-f32"]
    rows = laws.rows(laws.select(["documents", "hidden_keys", "unit_values", "query_chunks", "unused_keys"]), base)
    assert not _failing(_verdicts(mean_of_all(conventions=Conventions(empty_rows="mean_all")), rows))
    assert {v.status for v in _verdicts(mean_of_all(), rows)} == {"failed", "passed"}


def test_declared_conventions_are_kept_in_mind() -> None:
    conventions = Conventions("leaks", "leaks", "nan", "nan", "2", "excluded")
    bases = [replace(b, B=1) for b in SHORT if b.id in ("sinks-bf16", "causal-br-tall-f32")]
    verdicts = _verdicts(unruly(conventions=conventions), laws.rows(None, bases))
    assert not _failing(v for v in verdicts if v.status == "failed")
    assert [v.status for v in verdicts].count("passed") > len(verdicts) / 2
    rows = laws.rows(laws.select(["duplicate_keys", "unused_keys", "split_merge", "values_rotation"]), bases)
    failing = {v.case.chapter for v in _verdicts(unruly(), rows) if v.status == "failed"}
    assert failing == {"laws.duplicate_keys", "laws.unused_keys", "laws.split_merge", "laws.values_rotation"}


@pytest.mark.parametrize("variant", ["default", "math", "flash"])
def test_torch_obeys(variant: str) -> None:
    adapter = pytest.importorskip("refattn.adapters.torch")
    pytest.importorskip("torch", reason="torch is not installed")
    firsts = {(law, row.dtype): row for law in laws.LAWS for row in _rows(law)[::-1] if row.Lk < 1000 and row.Lq < 1000}
    verdicts = _verdicts(getattr(adapter, variant), list(firsts.values())[::6])
    assert not _failing(v for v in verdicts if v.status == "failed")
    assert [v.status for v in verdicts].count("passed") > 5


# each law catches


def test_every_law_has_a_kernel_that_is_broken_for_it() -> None:
    assert set(BROKEN) == set(laws.LAWS)


@pytest.mark.parametrize("name", BROKEN)
def test_a_law_catches_the_kernel_that_is_broken_for_it(name: str) -> None:
    candidate = Local(BROKEN[name])
    for row in _rows(name):
        if row.Lk > 500_000:
            continue
        verdict = examine(candidate, row)
        if verdict.status == "failed":
            assert verdict.notes[0].startswith("law: ") and any(not o.passed for o in verdict.outputs)
            return
    pytest.fail(f"{name} lets {BROKEN[name].name} pass")


# the bench


def test_radii_are_respected_to_the_last() -> None:
    """An honest answer anywhere in its interval passes; one step further, and NaN, fail."""
    case = replace(SHORT[0], dtype="bfloat16", out_dtype="bfloat16", want=frozenset({"out"}), mask=None)
    contract = preset("bfloat16")
    expected = truth(make(case), contract)["out"]
    low, high = (Measured.of(end, expected, contract) for end in (expected.lo, expected.hi))
    assert compare("out", high, low).passed and compare("out", low, high).passed
    further = Measured.of(expected.hi * np.where(expected.hi > 0, 1 + 2.0**-7, 1 - 2.0**-7), expected, contract)
    assert not compare("out", further, low).passed
    assert not compare("out", Measured.of(expected.hi * np.nan, expected, contract), low).passed
    assert not compare("out", high, low, bitwise=True).passed and compare("out", low, low, bitwise=True).passed


numbers = st.floats(-100, 100)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(numbers, numbers, st.floats(0, 1), st.floats(-1, 1)), min_size=3, max_size=6), numbers)
def test_radii_cover_what_linear_maps_make_of_errors(rows: list[tuple[float, ...]], factor: float) -> None:
    value, weight, radius, share = (np.array(column)[None, :, None] for column in zip(*rows, strict=True))
    honest = Measured(value + radius * share, radius, radius, np.zeros(value.shape, dtype=bool))
    true = exact(value)
    for f in (
        lambda m: m.times(factor), lambda m: m.plus(weight), lambda m: m + m.times(weight), lambda m: m.sum(1),
        lambda m: m.onto(weight), lambda m: m[:, ::-1],
    ):  # fmt: skip
        assert compare("f", f(honest), f(true)).passed
    if radius.sum() > 1e-6 and (abs(weight) > 1e-3).all():
        wrong = Measured(value + 2 * radius, radius, radius, honest.free)
        assert not compare("f", wrong.onto(abs(weight)), true.onto(abs(weight))).passed


def test_a_part_of_a_problem_has_that_part_of_the_answer() -> None:
    mask = Causal("bottom_right") & Window(5, 0, "bottom_right")
    features: dict[str, Any] = {"mask": mask, "bias": BiasSpec("HQK"), "sinks": "normal"}
    want = frozenset({"out", "lse", "dq"})
    case = Case("whole", "x", B=2, H=4, Hkv=2, Lq=9, Lk=12, D=4, Dv=3, want=want, **features)
    whole = make(case)

    def answer(problem: Any) -> Any:
        x, c = problem.logical, problem.case
        return attention(x["q"], x["k"], x["v"], mask=c.visibility, bias=x["bias"], sinks=x["sinks"]).out

    rows, order = np.array([7, 2, 2]), np.random.default_rng(0).permutation(12)
    part = taken(taken(whole, "rows", entries=[1], rows=rows), "keys", keys=order)
    assert (part.case.B, part.case.Lq, part.case.Lk, part.case.id) == (1, 3, 12, "whole.rows.keys")
    assert part.logical["dout"].shape == (1, 4, 3, 3) and part.logical["dlse"].shape == (1, 4, 3)
    np.testing.assert_allclose(answer(part), answer(whole)[1:, :, rows], rtol=1e-12)
    with pytest.raises(Inexact, match="v of whole.odd is not exact in float32"):
        altered(whole, "odd", {"v": whole.logical["v"].astype(np.float64) / 3})


def test_what_a_law_cannot_be_asked_of() -> None:
    held = laws.LAWS["key_permutation"]
    fine = SHORT[0]
    assert held.applies(fine)
    for change in ({"dropout": 0.5}, {"k_lens": (60, 3)}, {"family": "poisoned"}, {"Lq": 0}):
        assert not held.applies(replace(fine, **change))
    long = replace(fine, Lq=4000, Lk=4000)
    assert held.applies(long) and not laws.LAWS["rotation"].applies(long)
    with pytest.raises(ValueError, match="'keys' matches no law; there are "):
        laws.select(["keys"])


@implementation(name="only out")
def only_out(q: Any, k: Any, v: Any, *, mask: Any = None, scale: Any = None) -> Any:
    return attention(q, k, v, mask=mask, scale=scale).out.astype(q.dtype)


def test_a_function_that_returns_out_alone_is_judged_on_it() -> None:
    base = [b for b in SHORT if b.id == "causal-f32"]
    verdicts = {v.case.chapter: v for v in _verdicts(only_out, laws.rows(None, base))}
    assert verdicts["laws.rotation"].status == "unsupported"
    assert verdicts["laws.rotation"].reasons == ("returns no dk dq dv",)
    assert verdicts["laws.key_permutation"].status == "passed"
    assert [o.name for o in verdicts["laws.key_permutation"].outputs] == ["out"]
    assert not _failing(v for v in verdicts.values() if v.status != "unsupported")


@implementation(name="refuses unequal lengths")
def fragile(q: Any, k: Any, v: Any, *, mask: Any = None) -> Any:
    if k.shape[2] > q.shape[2]:
        raise IndexError("out of range")
    return only_out.function(q, k, v, mask=mask)[:, :, : 70 if len(v) else 0]


def test_a_fault_in_a_later_call_fails_and_is_told() -> None:
    row = next(r for r in _rows("duplicate_keys") if r.id.endswith("causal-f32"))
    (verdict,) = _verdicts(fragile, [row])
    assert verdict.status == "failed" and "out.shape=(1, 2, 70, 16) should be (1, 2, 80, 16)" in verdict.reasons[0]
    row = next(r for r in _rows("unused_keys") if r.id.endswith("window-bf16"))
    (verdict,) = _verdicts(fragile, [row])
    assert verdict.status == "failed" and verdict.reasons[0].startswith("unused_keys.window-bf16.longer.unused: raised")


class in_place(Wrapped):
    """q is scaled where it lies."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        kept = given["q"].copy()
        given["q"][...] *= 2
        return case, {**given, "q": kept}


def test_what_a_call_does_to_its_inputs_is_told() -> None:
    (verdict,) = _verdicts(in_place(), [next(r for r in _rows("unit_values") if r.id.endswith("causal-f32"))])
    assert verdict.status == "failed" and verdict.reasons == ("unit_values.causal-f32.ones: q was modified in place",)


def test_narrow_radii_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(problem: Any, precision: Precision) -> Any:
        return {n: replace(e, lo=e.value, hi=e.value, narrow=True) for n, e in truth(problem, precision).items()}

    row = next(r for r in _rows("key_permutation") if r.id.endswith("full-f16"))
    monkeypatch.setattr("refattn.laws.bench.quick_truth", narrow)
    (verdict,) = _verdicts(KERNEL, [replace(row, seed=77)])
    assert verdict.status == "passed" and verdict.ratio > 0


# the command


def _check(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["check", *arguments])
    return code, capsys.readouterr().out


def test_command_runs_the_laws_of_an_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, junit = tmp_path / "r.json", tmp_path / "r.xml"
    broken = "refattn.mutants:causal_top_left"
    options = ("--laws", "--law", "causal_*", "--dtype", "bfloat16", "--json", str(report), "--junit", str(junit))
    code, out = _check(broken, *options, capsys=capsys)
    assert code == 1 and f"replay: refattn check {broken} --laws --law causal_last_row\n" in out
    assert "law: the last row of a causal problem = that row without a mask (bound)" in out
    verdicts = {v["case"]["id"]: v["status"] for v in json.loads(report.read_text())["verdicts"]}
    assert verdicts["causal_last_row.causal-br-bf16"] == "failed"
    assert 'classname="refattn.laws.causal_last_row"' in junit.read_text()
    case = json.dumps(replace(SHORT[0], id="mine", B=1, H=2, Hkv=1, Lq=5, Lk=6).to_json())
    code, out = _check("--law", "key_*", "--case-json", case, capsys=capsys)
    assert code == 0 and "1 of 1 passed" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--laws", "--case", "x"), "--laws and --case exclude each other"),
        (("--law", "nothing"), "--law: 'nothing' matches no law"),
        (("--laws", "--dtype", "float128"), "no law applies to what is selected"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--laws"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(laws.LAWS) and any(line.startswith("rotation") and "QᵀdQ = dKᵀK" in line for line in lines)
