"""What the newer fields of Case hand to a plain function, and how what makes no sense is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import plain_functions as plain
import pytest

from refattn import attention, attention_grad
from refattn.calling import Local, call
from refattn.case import BiasSpec, Cache, Case, Dense, Packed, Paged, Shared, Strided
from refattn.cases import CASES, select
from refattn.conform import examine
from refattn.implementation import PLAIN as LISTED
from refattn.implementation import implementation, plain_options, wrap
from refattn.inputs import Problem, make
from refattn.judge import judge
from refattn.masks import Causal, Chunked
from refattn.precision import preset
from refattn.quantise import Quant
from refattn.rotary import Rotary
from refattn.score_mods import SCORE_MODS, ScoreMod, check_score_mod
from refattn.storage import storage_from_json
from refattn.streaming import Streaming
from refattn.truth import truth

SCORES = 20_000
"""cases with more are left out here"""
EACH = 8
BLIND = (plain.modified, plain.dropped)
"""these let NaN in hidden memory through"""
PLAIN = {"mask", "bias", "scale", "softcap", "sinks"}

DOORS: list[tuple[Callable[..., Any], Callable[[Case], bool], int]] = [
    (plain.dense, lambda case: isinstance(case.storage, Shared), 3),
    (plain.dense, lambda case: isinstance(case.storage, Strided), 3),
    (plain.dense, lambda case: isinstance(case.storage, Dense) and case.storage != Dense(), 5),
    (plain.modified, lambda case: case.score_mod is not None, 10),
    (plain.dropped, lambda case: case.dropout is not None, 10),
    (plain.rotated, lambda case: case.rotary is not None, 8),
    (plain.coded, lambda case: case.quant is not None and case.quant.kind in ("q8_0", "q4_0"), 6),
    (plain.coded, lambda case: case.quant is not None and case.quant.of == "qkv", 2),
    (plain.coded, lambda case: case.quant is not None and case.quant.of == "kv", 10),
    (plain.packed, lambda case: isinstance(case.storage, Packed), 5),
    (plain.paged, lambda case: isinstance(case.storage, Paged), 5),
    (plain.cached, lambda case: isinstance(case.storage, Cache) and case.rotary is None, 3),
    (plain.cached, lambda case: isinstance(case.storage, Cache) and case.rotary is not None, 2),
]


@pytest.mark.parametrize(("function", "is_for", "least"), DOORS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_plain_function_passes_the_cases_it_takes(
    function: Callable[..., Any], is_for: Callable[[Case], bool], least: int
) -> None:
    candidate = wrap(function, function.__name__)
    cases = [
        case
        for case in CASES
        if is_for(case) and case.scores <= SCORES
        if candidate.supports(case) is None and not case.backward
        if not (function in BLIND and case.family.startswith("poisoned"))
        if not (isinstance(case.storage, Dense) and case.rotary is not None and (case.q_lens or case.k_lens))
    ]
    assert len(cases) >= least, [case.id for case in cases]
    for case in cases[:: 1 + len(cases) // EACH]:
        problem = make(case)
        answer = call(candidate, problem)
        assert answer.kind == "answer" and not answer.findings, (case.id, answer.text, answer.findings)
        verdict = judge(problem, answer, candidate.precision(case), candidate.conventions, outputs=candidate.outputs)
        assert verdict.status == "passed", (case.id, verdict.outputs, verdict.reasons)
        assert set(verdict.case.want) & {"out", "lse", "k_cache"} >= {o.name for o in verdict.outputs} - {"v_cache"}


OPTIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({"score_mod": "tilt"}, {"score_mod"}),
    ({"dropout": 0.0}, {"dropout", "keep"}),
    ({"rotary": Rotary(4, True)}, {"cos", "sin", "interleaved"}),
    ({"quant": Quant("int8", "head")}, {"k_scale", "v_scale", "kind"}),
    ({"quant": Quant("int8", "head", "qkv")}, {"q_scale", "k_scale", "v_scale", "kind", "out_dtype"}),
    ({"storage": Dense("BLHD")}, set()),
    ({"storage": Strided()}, set()),
    ({"storage": Shared()}, set()),
    ({"storage": Packed(), "q_lens": (2, 1)}, {"cu_seqlens_q", "cu_seqlens_k"}),
    (
        {"storage": Packed(1), "q_lens": (2, 1)},
        {"cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"},
    ),
    ({"storage": Paged(2)}, {"block_table", "seqused_k"}),
    ({"storage": Cache(), "rotary": Rotary(4, True)},
     {"k_cache", "v_cache", "cache_lens", "cos", "sin", "interleaved"}),
    ({"out_dtype": "float16"}, {"out_dtype"}),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "names"), OPTIONS, ids=lambda x: " ".join(sorted(map(str, x))))
def test_a_plain_function_gets_what_is_new(fields: dict[str, Any], names: set[str]) -> None:
    """By name, each once; arrays are those of the problem; and a function without one of them is not called."""
    case = Case("x", "options", B=2, H=2, Hkv=2, Lq=2, Lk=5, **fields)
    assert set(plain_options(case)) == names
    seen: dict[str, Any] = {}

    def takes_all(q: Any, k: Any, v: Any, **options: Any) -> Any:
        seen.update(options)
        return q

    given = make(case).fresh()
    wrap(takes_all, "all")(case, given)
    for name, value in seen.items():
        assert value is given[name] if name in given else value is not None
    for missing in names:
        body = f"def f(q, k, v, {', '.join(f'{n}=None' for n in sorted(names - {missing}))}): return q"
        scope: dict[str, Any] = {}
        exec(body, scope)
        assert wrap(scope["f"], "f").supports(case) == f"takes no {missing}"


def test_the_options_of_a_plain_function_are_listed_and_others_are_told() -> None:
    assert PLAIN.union(*(names for _, names in OPTIONS)) == set(LISTED)
    for text, never in (
        (f"q, k, v, {', '.join(LISTED)}", ()),
        ("q, k, v, is_causal=False, *rest, mask=None, block=64", ("is_causal", "block")),
        ("case, given, is_causal", ()),
        ("q, k, v, **anything", ()),
    ):
        assert wrap(eval(f"lambda {text}: q"), "f").never_given == never


def test_values_of_options() -> None:
    case = Case("x", "values", B=2, Lq=2, Lk=5, score_mod="tilt", dropout=0.25, rotary=Rotary(4, True))
    options = plain_options(case)
    assert options["score_mod"] is SCORE_MODS["tilt"] and options["dropout"] == 0.25 and options["interleaved"] is True
    assert plain_options(Case("x", "y", quant=Quant("float8_e5m2", "head")))["kind"] == "float8_e5m2"


PARTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"storage": "paged"}, TypeError, r"storage='paged' must be one of Dense\(\), .*Cache\(\); Dense\(\) is the plain"),
    ({"storage": Paged}, TypeError, r"storage=<class '.*Paged'> must be one of Dense\(\)"),
    ({"storage": None}, TypeError, r"storage=None must be one of Dense\(\)"),
    ({"rotary": (4, True)}, TypeError, r"rotary=\(4, True\) must be a Rotary; pass None for no rotary"),
    ({"quant": "int8"}, TypeError, r"quant='int8' must be a Quant; pass None for no quant"),
    ({"mask": "causal"}, TypeError, r"mask='causal' must be a Mask; pass None for no mask"),
    ({"bias": "normal"}, TypeError, r"bias='normal' must be a BiasSpec; pass None for no bias"),
    ({"score_mod": abs}, ValueError, r"score_mod=<built-in function abs> is not one of relative, distance"),
    ({"score_mod": ["tilt"]}, ValueError, r"score_mod=\['tilt'\] is not one of relative"),
    ({"dropout": False}, TypeError, r"dropout=False must be a number; pass None for no dropout"),
    ({"dropout": "0.5"}, TypeError, r"dropout='0.5' must be a number; pass None for no dropout"),
    ({"dropout": -0.1}, ValueError, r"dropout=-0.1 must be from 0 to 1; pass None for no dropout"),
    ({"softcap": True}, TypeError, r"softcap=True must be a number; pass None for no softcap"),
    ({"scale": "one"}, TypeError, r"scale='one' must be a number; pass None for D\*\*-0.5"),
    ({"rotary": Rotary(16, True)}, ValueError, r"rotary.dim=16 must be <= D=8"),
    ({"storage": Shared(), "D": 4}, ValueError, r"storage=Shared\(\) needs Dv=8 <= D=4 and no quant"),
    ({"storage": Shared(), "quant": Quant("int8", "head")}, ValueError, r"storage=Shared\(\) needs .* no quant"),
    ({"storage": Cache(), "quant": Quant("int8", "head")}, ValueError, r"storage=Cache\(.*\) needs .* nor quant"),
    ({"storage": Packed(), "want": {"weights"}}, ValueError, r"scores of Packed sequences have no shape"),
    ({"storage": Cache(), "want": {"dscale"}}, ValueError, r"storage=Cache\(.*\) with \['dscale'\]: no gradients"),
    ({"storage": Packed(), "quant": Quant("int8", "block")}, ValueError, r"use granularity='head' or 'tensor'"),
    ({"want": {"v_cache"}, "storage": Packed()}, ValueError, r"asks for a cache of storage=Packed.*; use Cache\(\)"),
]


@pytest.mark.parametrize(("fields", "kind", "message"), PARTS, ids=[message[:30] for _, _, message in PARTS])
def test_a_case_refuses_what_is_no_field_of_it(
    fields: dict[str, Any], kind: type[Exception], message: str
) -> None:  # fmt: skip
    with pytest.raises(kind, match=message):
        Case("x", "y", **fields)


def test_numbers_are_floats_afterwards() -> None:
    case = Case("x", "y", dropout=np.float32(0.5), scale=np.float64(2), softcap=3)  # type: ignore[arg-type]
    assert [type(x) for x in (case.dropout, case.scale, case.softcap)] == [float] * 3
    assert case == Case("x", "y", dropout=0.5, scale=2.0, softcap=3.0)


BUILT: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Rotary(3, True), ValueError, r"dim=3 must be an even int > 0; pass no rotary to rotate nothing"),
    (lambda: Rotary(0, True), ValueError, r"dim=0 must be an even int > 0"),
    (lambda: Rotary(2, 1), ValueError, r"interleaved=1 must be True \(pairs 2i, 2i\+1\) or False"),  # type: ignore
    (lambda: Rotary(2, True, 0.5), ValueError, r"base=0.5 must be a finite number >= 1; RoFormer has 10000"),
    (lambda: Rotary(2, True, float("inf")), ValueError, r"base=inf must be a finite number"),
    (lambda: Quant("int4", "head"), ValueError, r"kind='int4' is not one of int8, float8_e4m3fn"),  # type: ignore
    (lambda: Quant("int8", "row"), ValueError, r"granularity='row' is not one of tensor, head, block"),  # type: ignore
    (lambda: Quant("q8_0", "head"), ValueError, r"granularity='head' must be 'block' for kind='q8_0'"),
    (lambda: Quant("int8", "head", "k"), ValueError, r"of='k' must be 'kv' or 'qkv'"),  # type: ignore
    (lambda: Quant("q4_0", "block", "qkv"), ValueError, r"of='qkv' must be 'kv' for kind='q4_0', the format of a cac"),
    (lambda: Strided(0), ValueError, r"row=0 must be an int >= 1"),
    (lambda: Packed(-1), ValueError, r"gap=-1 must be an int >= 0"),
    (lambda: Paged("4"), ValueError, r"page_size='4' must be an int >= 1"),  # type: ignore[arg-type]
    (lambda: Cache(True), ValueError, r"spare=True must be an int >= 0"),
    (lambda: Dense(None), ValueError, r"layout=None must be a permutation of 'BHLD'"),  # type: ignore[arg-type]
    (lambda: storage_from_json({"type": "Heap"}), ValueError, r"type='Heap' of a storage is not one of Dense, Strided"),
    (lambda: storage_from_json("Paged"), ValueError, r"storage='Paged' must be an object whose type is"),  # type: ignore
    (lambda: storage_from_json({"type": "Paged", "size": 3}), ValueError, r"must be an object with page_size \(or not"),
    (lambda: storage_from_json({"type": "Shared", "of": 1}), ValueError, r"must be an object with nothing but its"),
    (lambda: check_score_mod("tilt", False), TypeError, r"score_mod='tilt' must be callable as f\(s, b, h, i, j\); SC"),
    (lambda: check_score_mod(abs, True), TypeError, r"must have slope\(s, b, h, i, j\), its derivative; see ScoreMod"),
]


@pytest.mark.parametrize(("build", "kind", "message"), BUILT, ids=[message[:30] for _, _, message in BUILT])
def test_the_parts_of_a_case_refuse_by_name(build: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        build()


FROM_JSON: list[tuple[dict[str, Any], str]] = [
    ({"rotary": 4}, r"rotary=4 must be an object with dim, interleaved, base \(or not\)"),
    ({"rotary": {"dims": 4}}, r"rotary=\{'dims': 4\} must be an object with dim, interleaved"),
    ({"quant": {"kind": "int8"}}, r"quant=\{'kind': 'int8'\} must be an object with kind, granularity"),
    ({"bias": "HQK"}, r"bias='HQK' must be an object with dims \(or not\)"),
    ({"storage": "Paged"}, r"storage='Paged' must be an object whose type is one of"),
    ({"rotary": {"dim": 3, "interleaved": True}}, r"dim=3 must be an even int > 0"),
]


@pytest.mark.parametrize(("data", "message"), FROM_JSON, ids=[message[:30] for _, message in FROM_JSON])
def test_json_is_refused_by_name(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.from_json({"id": "x", "why": "y", **data})


def test_none_is_off_and_the_rest_is_on() -> None:
    """dropout = 0 is a feature: a mask is handed over, and all of it is kept."""
    off = Case("x", "y", B=1, Lq=3, Lk=4)
    assert "keep" not in make(off).fresh() and not off.features() & {"dropout", "rotary"}
    given = make(replace(off, dropout=0.0)).fresh()
    assert given["keep"].dtype == np.bool_ and given["keep"].all()
    assert not make(replace(off, dropout=1.0)).fresh()["keep"].any()


def test_a_score_mod_of_one_s_own_needs_a_slope_only_in_a_backward() -> None:
    check_score_mod(lambda s, b, h, i, j: s, False)
    check_score_mod(SCORE_MODS["tilt"], True)
    assert all(isinstance(mod, ScoreMod) for mod in SCORE_MODS.values())


def test_a_wrong_reading_of_the_options_is_seen() -> None:
    """The check above can fail: each option is read wrongly once."""
    small: dict[str, Any] = {"B": 2, "H": 2, "Hkv": 2, "Lq": 3, "Lk": 7, "family": "peaked"}
    small["mask"] = Causal("bottom_right")
    wrong: list[tuple[dict[str, Any], Callable[..., Any]]] = [
        ({"dropout": 0.5}, lambda q, k, v, *, keep, **o: plain.dropped(q, k, v, keep=~keep, **o)),
        ({"score_mod": "relative"},
         lambda q, k, v, *, score_mod, **o: plain.modified(q, k, v, score_mod=lambda s, *at: s, **o)),
        ({"rotary": Rotary(8, True)},
         lambda q, k, v, *, interleaved, **o: plain.rotated(q, k, v, interleaved=not interleaved, **o)),
        ({"quant": Quant("int8", "head")},
         lambda q, k, v, *, k_scale, v_scale, **o: plain.coded(q, k, v, k_scale=v_scale, v_scale=k_scale, **o)),
        ({"storage": Paged(2)},
         lambda q, k, v, *, block_table, **o: plain.paged(q, k, v, block_table=block_table[:, ::-1], **o)),
        ({"storage": Packed(1)},
         lambda q, k, v, *, seqused_k, **o: plain.packed(q, k, v, seqused_k=None, **{**o, "mask": None})),
        ({"storage": Cache()},
         lambda q, k, v, *, cache_lens, **o: plain.cached(q, k, v, cache_lens=np.maximum(cache_lens - 1, 0), **o)),
        ({"storage": Shared(), "Dv": 4}, lambda q, k, v, **o: plain.dense(q, k, k[..., 4:], **o)),
    ]  # fmt: skip
    for fields, function in wrong:
        case = Case("x", "misread", **small | fields)
        problem = make(case)
        candidate = wrap(function, "wrong")
        answer = candidate(case, problem.fresh())
        assert judge(problem, answer, candidate.precision(case), candidate.conventions).status == "failed", fields


def test_bias_reaches_a_modifier() -> None:
    case = Case("x", "y", Lq=3, Lk=4, bias=BiasSpec("HQK"), score_mod="parabola", softcap=3.0, family="peaked")
    candidate = wrap(plain.modified, "modified")
    problem = make(case)
    answer = candidate(case, problem.fresh())
    assert judge(problem, answer, candidate.precision(case), candidate.conventions).status == "passed"
    assert set(plain_options(case)) <= PLAIN | {"score_mod"}


def test_a_plain_function_without_what_it_needs_is_unsupported() -> None:
    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
        raise AssertionError("not called")

    assert wrap(varlen, "varlen").supports(Case("c", "dense")) == "needs cu_seqlens_q"
    assert wrap(varlen, "varlen").supports(Case("c", "packed", storage=Packed())) is None


def test_none_is_not_returned_and_a_number_is_an_array() -> None:
    case = Case("c", "a scalar", Lq=2, Lk=3, want=frozenset({"dq", "dscale"}))

    @implementation(outputs=("dq", "dscale"))
    def from_the_oracle(case: Case, given: Any) -> Any:
        g = attention_grad(given["q"], given["k"], given["v"], given["dout"])
        return {**g._asdict(), "dq": g.dq.astype("f4"), "dscale": np.float32(g.dscale), "dk": None, "dv": None}

    assert examine(Local(from_the_oracle), case).status == "passed"


def test_a_problem_has_what_its_case_needs() -> None:
    case = Case("c", "dropout", Lq=2, Lk=3, dropout=0.5)
    logical = {n: x for n, x in make(case).logical.items() if n != "keep"}
    with pytest.raises(ValueError, match="c: logical has q, k, v; the case needs keep too"):
        Problem(case, logical)


@pytest.mark.parametrize(
    ("make_it", "text"),
    [
        (lambda: Case.from_json({"id": "x", "why": "y", "scale": 10**400}), "scale must be within the range"),
        (lambda: Case("x", "y", flags="abc"), "flags='abc' must be a tuple"),  # type: ignore[arg-type]
        (lambda: BiasSpec(dims=["B"]), "must hold some of the letters"),  # type: ignore[arg-type]
        (lambda: Case("x", "y", Lk=4, mask=Chunked(2**70, "top_left")), "must be <= "),
        (lambda: Paged(10**12), "page_size=1000000000000 must be <= "),
        (lambda: Case("x", "y", dtype="float16", rotary=Rotary(4, True), want=frozenset({"dq"})), "no bound that"),
        (lambda: Problem(Case("x", "y"), {n: np.zeros((1, 1, 1, 7)) for n in "qkv"}), r"q.shape=\(1, 1, 1, 7\) must"),
    ],
)
def test_refused_in_words(make_it: Callable[[], Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make_it()


def test_nothing_at_all_is_rotated() -> None:
    for case in (
        Case("x", "y", B=0, rotary=Rotary(4, True)),
        Case("x", "y", Lq=1, Lk=0, q_lens=(0,), rotary=Rotary(2, True)),
    ):
        assert examine(Local(Streaming()), case).status == "passed"


def test_a_softcap_beyond_squares_has_a_bound() -> None:
    case = Case("x", "y", Lq=4, Lk=4, softcap=1e300, dtype="float64", want=frozenset({"out", "dsoftcap"}))
    assert examine(Local(Streaming()), case).status == "passed"


def test_a_returned_keep_is_counted_over_what_is_visible() -> None:
    case = Case("x", "y", H=2, Hkv=2, Lq=32, Lk=32, D=4, Dv=4, dropout=0.3, mask=Causal("top_left"))
    seen, rng = case.visibility.tile(), np.random.default_rng(0)
    drawn = rng.random(seen.shape) >= 0.3

    def verdict(keep: Any) -> Any:
        @implementation(outputs=("out",))
        def own(case: Case, given: Any) -> Any:
            options = {"mask": case.mask, "dropout": case.dropout, "keep": keep}
            return {"out": attention(given["q"], given["k"], given["v"], **options).out.astype("f4"), "keep": keep}

        return examine(Local(own), case)

    assert verdict(drawn & seen).status == verdict(drawn | ~seen).status == "passed"
    kept = verdict(np.where(seen, True, rng.random(seen.shape) > 0.62))
    assert kept.status == "failed" and "visible pairs, too far" in kept.reasons[0]


VACUOUS = [case for case in select(features=("rotary", "quant=*")) if "out" in case.want and case.Lk]


@pytest.mark.parametrize("case", VACUOUS, ids=lambda case: case.id)
def test_an_answer_of_zeros_is_not_within_the_bound(case: Case) -> None:
    """The bounds of inputs that are known but roughly are wide; not so wide."""
    problem = make(case)
    e = truth(problem, preset(case.dtype, case.out_dtype))["out"]
    judged = ~e.ignored & (e.value != 0)
    assert (~((e.lo <= 0) & (e.hi >= 0)))[judged].mean() > 0.05
