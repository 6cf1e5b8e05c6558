"""The case table: every case earns its place, and nothing that the suite promises to try is missing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pytest

from refattn.case import GRADIENTS, MATRICES, Cache, Case, Dense, Packed, Paged, Shared, Strided
from refattn.cases import CASES, CHAPTERS, FLAGS, FULL, by_id, select
from refattn.cases.pairs import FEATURES, MASKS
from refattn.dtypes import FORMATS
from refattn.inputs import FAMILIES, make
from refattn.judge import judge
from refattn.masks import Causal
from refattn.mutants import MUTANTS
from refattn.quantise import KINDS, Quant
from refattn.score_mods import SCORE_MODS

USUAL = select()
TILES = (16, 32, 64, 128, 256)
TAIL = 64
EDGES = sorted(tile + step for tile in TILES for step in (-1, 0, 1))
LONG = (1000, 10_000, 2**15, 2**16, 999_999)
KILLS = {
    "full-f32": "mean_of_v",
    "full-f16": "v_is_k",
}
"""what is kept for a mutant that it kills: all that it tries is tried by others"""


def _words(case: Case) -> frozenset[str]:
    """The features of a case down to their variants, its dtype and family; of its sizes only what is a feature."""
    words = set(case.features()) | {f"out {case.out_dtype}", case.family} | (case.want - {"out"})
    if case.want == {"lse"}:
        words.add("lse alone")
    mask, storage = repr(case.mask), case.storage
    words |= set(re.findall(r"top_left|bottom_right", mask))
    words |= {word for sign, word in ((" & ", "and"), (" | ", "or"), ("~", "not")) if sign in mask}
    for side in re.findall(r"Window\((\w+), (\w+)", mask):
        words.add("window " + " ".join({"None": "open", "0": "0"}.get(n, "n") for n in side))
    if case.H != case.Hkv:
        words.add(f"group {case.H // case.Hkv}")
    if case.scale is not None:
        words.add(f"scale {(case.scale > 0) - (case.scale < 0)}")
    if case.bias is not None:
        words |= {f"bias {word}" for word in (case.bias.dims, case.bias.family, case.bias.dtype)}
    if case.sinks is not None:
        words.add(f"sinks {case.sinks}")
    if case.dropout is not None:
        words.add(f"dropout {case.dropout:.0f}" if case.dropout in (0, 1) else "dropout p")
    if case.rotary is not None:
        words.add("rotary pairs" if case.rotary.interleaved else "rotary halves")
        words |= {"rotary partial"} if case.rotary.dim < case.D else set()
    if case.quant is not None:
        words |= {f"scales by {case.quant.granularity}", f"codes of {case.quant.of}"}
    if isinstance(storage, Dense):
        words.add(storage.layout)
    elif isinstance(storage, Packed):
        words.add("gaps" if storage.gap else "no gaps")
    elif isinstance(storage, Paged):
        words.add(f"pages of {storage.page_size}")
    elif isinstance(storage, Cache) and not storage.spare:
        words.add("cache full")
    words |= {f"{name}=0" for name in ("B", "Lq", "Lk", "D", "Dv") if getattr(case, name) == 0}
    words |= {f"{name}=1" for name in ("Lq", "Lk") if getattr(case, name) == 1}
    words |= {f"{name} with 0" for name in ("q_lens", "k_lens") if 0 in (getattr(case, name) or ())}
    words |= {f"{name} >= {n}" for name in ("Lq", "Lk") for n in LONG if getattr(case, name) >= n}
    words.add("Lq < Lk" if case.Lq < case.Lk else "Lq > Lk" if case.Lq > case.Lk else "Lq = Lk")
    words.add("D < 16" if case.D < 16 else "D odd" if case.D % 16 else "D > 128" if case.D > 128 else "D of tiles")
    return frozenset(words | ({"D < Dv"} if case.D < case.Dv else set()))


@cache
def _pairs(case: Case) -> frozenset[frozenset[str]]:
    return frozenset(frozenset(pair) for pair in combinations(_words(case), 2))


def _sizes(case: Case) -> set[str]:
    """Small lengths, those at the edge of tiles, each length of a tail, all of which are to be tried; and each D."""
    lengths = {f"{name}={n}" for name in ("Lq", "Lk") if (n := getattr(case, name)) in {0, 1, 2, 3, 5, *EDGES}}
    tail = {f"{case.Lk % TAIL} keys in a tail"} if case.Lk > TAIL else set()
    return lengths | tail | {f"D={case.D}"}


def _alone(cases: Iterable[Case]) -> dict[str, set[object]]:
    """For each case the pairs of words that no other of the cases has."""
    pairs = {case.id: _pairs(case) for case in cases}
    count = Counter(pair for of_case in pairs.values() for pair in of_case)
    return {id: {pair for pair in of_case if count[pair] == 1} for id, of_case in pairs.items()}


@cache
def _needs(case: Case) -> frozenset[str]:
    """What an implementation must be able to do for the case, its dtype included."""
    return case.features() - {"Lq!=Lk"}


def _lost(case: Case, others: Iterable[Case]) -> set[object]:
    """What a kernel that can do no more than this case needs would not be tried on without it."""
    tried: set[object] = set()
    needs = _needs(case)
    for other in others:
        if other.id != case.id and _needs(other) <= needs:
            tried |= _pairs(other) | _sizes(other)
    return (_pairs(case) | _sizes(case)) - tried


def test_at_least_500_cases_have_a_pair_of_features_that_no_other_case_has() -> None:
    """dtype and family are among the features."""
    alone = _alone(CASES)
    assert sum(map(bool, alone.values())) >= 500
    assert not [case.id for case in CASES if case.chapter in FULL and not alone[case.id]]


def test_every_case_earns_its_place() -> None:
    """A pair of features that no other case of the usual run has, or none that simpler kernels can do, or a kill."""
    alone = _alone(USUAL)
    redundant = {case.id for case in USUAL if not alone[case.id] and not _lost(case, USUAL)}
    assert redundant == set(KILLS), f"tried by others: {redundant - set(KILLS)}; no more: {set(KILLS) - redundant}"


@pytest.mark.parametrize(("id", "mutant"), KILLS.items())
def test_kills(id: str, mutant: str) -> None:
    case, kernel = by_id(id), MUTANTS[mutant].implementation
    problem = make(case)
    verdict = judge(problem, kernel(case, problem.fresh()), kernel.precision(case), kernel.conventions)
    assert MUTANTS[mutant].flag in case.flags and verdict.status == "failed"


def test_a_copy_would_not_earn_its_place() -> None:
    """The rule above can fail: a second case of the same kind adds nothing, and takes the merit of the first."""
    case = by_id("gqa-causal-br-ragged-bf16")
    twin = Case.from_json(case.to_json() | {"id": "twin", "seed": 1, "k_lens": [41, 7, 12]})
    assert _lost(case, USUAL) and not _lost(twin, USUAL) and not _lost(case, (*USUAL, twin))
    assert not _alone((*USUAL, twin))["twin"]


def test_each_row_of_pairs_is_the_only_one_of_its_mask_and_feature() -> None:
    count = Counter(
        (mask, name)
        for case in USUAL
        for mask, kind in MASKS.items()
        if kind.word in case.features()
        for name, feature in FEATURES.items()
        if feature.has(case)
    )
    assert len(count) == len(MASKS) * len(FEATURES), "every mask meets every feature"
    rows = select(chapters=["pairs"])
    for case in rows:
        mask, _, rest = case.id.partition("-x-")
        assert count[mask, rest.rpartition("-")[0]] == 1, case.id
    assert len(rows) >= 250


def test_number_and_ids() -> None:
    assert len(CASES) >= 500
    assert max(Counter(case.id for case in CASES).values()) == 1
    assert all(re.fullmatch(r"[a-z0-9-]+", case.id) for case in CASES)
    assert all(case.why.endswith(".") and len(case.why) <= 120 for case in CASES)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_json_round_trip(chapter: str) -> None:
    for case in select(chapters=[chapter]):
        again = Case.from_json(json.loads(json.dumps(case.to_json())))
        assert again == case and hash(again) == hash(case)


def test_flags_are_described_and_used_in_a_usual_run() -> None:
    used = {flag for case in USUAL for flag in case.flags}
    assert used == set(FLAGS) == {flag for case in CASES for flag in case.flags}
    assert all(case.flags for case in CASES)
    for flag, text in FLAGS.items():
        assert re.fullmatch(r"[a-z0-9_]+", flag)
        source = re.search(r"\(([^()]+(\([^()]*\))?)\)$", text)
        assert source and len(source.group(1)) > 8, f"{flag} names no source: {text}"


def test_chapters() -> None:
    assert CHAPTERS == (
        "basics", "shapes", "masks", "patterns", "heads", "scores", "modifiers", "transforms", "storage", "outputs",
        "precision", "long", "gradients", "degenerate", "captured", "pairs", "huge",
    )  # fmt: skip
    assert all(count >= 10 for count in Counter(case.chapter for case in CASES).values())
    assert all(case.backward for case in select(chapters=["gradients"]))
    assert all(case.Lk >= 1000 for case in select(chapters=["long"])) and max(case.Lk for case in USUAL) == 47_000


def test_huge_is_huge() -> None:
    """A position that 16 bits do not hold, or an offset that 31 bits do not; and every limit is passed."""
    for case in select(chapters=["huge"]):
        rows = case.Hkv * case.Lk if case.H * case.Lq < case.Hkv * case.Lk else case.H * case.Lq
        far = isinstance(case.storage, Strided) and case.B * rows * case.storage.row >= 2**31
        assert far or max(case.Lq, sum(case.k_lens or (case.Lk,))) > 65_536, case.id
    assert sum(case.Lk >= 999_999 for case in CASES) >= 5
    for name in ("q", "bias"):
        assert any(
            isinstance(case.storage, Strided) and case.storage.row * (case.H * case.Lq - 1) >= 2**32
            and (name == "q" or case.bias is not None) for case in USUAL
        )  # fmt: skip
    turned = [case.Lk for case in USUAL if case.rotary is not None]
    assert max(turned) > 46_341 and any(32_767 < n < 46_341 for n in turned)


def test_basics_need_nothing_but_q_k_v_and_a_mask() -> None:
    basics = select(chapters=["basics"])
    for case in basics:
        assert case.want == {"out", "lse"} and case.H == case.Hkv and case.D == case.Dv and case.out_dtype == case.dtype
        assert case.mask in (None, Causal("top_left")) and (case.mask is None or case.Lq == case.Lk)
        simple = Case(
            case.id, case.why, case.flags, "basics", case.B, case.H, case.Hkv, case.Lq, case.Lk, case.D, case.Dv,
            dtype=case.dtype, family=case.family, mask=case.mask,
        )  # fmt: skip
        assert case == simple
    assert {case.dtype for case in basics} == {"float64", "float32", "float16", "bfloat16"}


def test_gradient_cases_want_gradients_and_lse_only_to_bring_dlse() -> None:
    for case in CASES:
        assert not case.backward or case.want - {"lse"} <= set(GRADIENTS)


def test_sizes() -> None:
    for name in ("Lq", "Lk"):
        assert {0, 1, 2, 3, 5, *EDGES} <= {getattr(case, name) for case in USUAL}
    assert {0, 1, 8, 16, 32, 40, 64, 80, 96, 128, 192, 256, 576} <= {case.D for case in USUAL}
    assert {1, 2, 3, 4, 5, 6} <= {case.H // case.Hkv for case in USUAL}
    for backward in (False, True):
        shapes = [case for case in USUAL if case.backward == backward]
        assert sum(case.Lq > case.Lk for case in shapes) >= 8 and sum(case.Lq < case.Lk for case in shapes) >= 8
        assert any(case.Dv > case.D for case in shapes)


def test_tails() -> None:
    """Every length of a tail that a tile of 64 can leave, of queries and of keys, where nothing else is asked for."""
    plain = [case for case in USUAL if case.features() <= {f"dtype={case.dtype}", "Lq!=Lk"}]
    for name in ("Lq", "Lk"):
        assert {getattr(case, name) % TAIL for case in plain} == set(range(TAIL))


def test_sizes_are_pairwise_different() -> None:
    """So that exchanging any two is seen; D = Dv and square lengths apart."""
    on_purpose = {
        "small-5x3-f32", "small-3x5-bf16",  # lengths are exchanged with batch and heads
        "drawn-per-head-f32", "bias-keys-f32",  # B = H: what belongs to one may be read by the other
        "gqa-2x2-f32", "gqa-mask-per-head-f32",  # the smallest groups
    }  # fmt: skip
    for case in CASES:
        sizes = [case.B, case.Hkv, case.H // case.Hkv, *{case.Lq, case.Lk}, *{case.D, case.Dv}]
        large = [n for n in sizes if n > 1]
        assert (len(large) == len(set(large))) != (case.id in on_purpose), case.id


def test_every_feature_in_every_dtype_it_matters_for() -> None:
    full = ["float64", "float32", "float16", "bfloat16"]
    forward = {(word, case.dtype) for case in USUAL if not case.backward for word in case.features()}
    for dtype in full:
        for word in ("mask", "causal", "gqa", "scale", "softcap", "bias", "sinks", "k_lens", "q_lens", "strided"):
            assert (word, dtype) in forward, (word, dtype)
        wanted = set().union(*(case.want for case in USUAL if case.dtype == dtype and case.backward))
        assert wanted == {*GRADIENTS, "lse"}, dtype
    text = " ".join(repr(case.mask) for case in USUAL)
    assert all(sign in text for sign in ("&", "|", "~"))
    for lens in ("q_lens", "k_lens"):
        masks_of_lens = " ".join(repr(case.mask) for case in USUAL if getattr(case, lens))
        assert "bottom_right" in masks_of_lens and "None" in masks_of_lens
    assert {case.dtype for case in USUAL} == set(FORMATS)


@pytest.mark.parametrize("name", [*MASKS, *FEATURES])
def test_every_mask_and_feature_meets_all_dtypes_and_most_families(name: str) -> None:
    if name in MASKS:
        its = [case for case in USUAL if MASKS[name].word in case.features()]
        dtypes = set(FORMATS) - {"float8_e5m2"}
    else:
        its = [case for case in USUAL if FEATURES[name].has(case)]
        dtypes = set(FEATURES[name].dtypes) - {"float8_e5m2"}
    assert {case.dtype for case in its} >= dtypes, f"{name} lacks {dtypes - {case.dtype for case in its}}"
    families = {case.family for case in its}
    assert len(families) >= len(FAMILIES) / 2, f"{name} lacks {set(FAMILIES) - families}"


def test_every_family_meets_every_dtype_that_has_room_for_it() -> None:
    met = {(case.family, case.dtype) for case in USUAL}
    assert {(f, d) for f in FAMILIES for d in ("float64", "float32", "float16", "bfloat16")} <= met
    assert {family for family, dtype in met if "float8" in dtype} >= {"peaked", "needle", "ties", "poisoned", "normal"}


def test_every_value_of_every_field() -> None:
    """Each score_mod, kind and granularity of codes, pairing, storage, output; backward too where there is one."""
    seen = {word for case in USUAL for word in _words(case)}
    backward = {word for case in USUAL if case.backward for word in _words(case)}
    mods = {f"score_mod={name}" for name in SCORE_MODS}
    pairing = {"rotary pairs", "rotary halves", "rotary partial"}
    drops = {"dropout p", "dropout 0", "dropout 1"}
    both = mods | pairing | drops | {"gaps", "no gaps", "far", "strided", "q_lens with 0", "k_lens with 0"}
    assert both <= backward and both <= {word for case in USUAL if not case.backward for word in _words(case)}
    assert seen >= {f"quant={kind}" for kind in KINDS} | {f"pages of {n}" for n in (1, 3, 16, 64)}
    assert seen >= {*MATRICES, "lse", "k_cache", "v_cache", "cache full", "shared", "lse alone"}
    quants = {case.quant for case in USUAL if case.quant is not None}
    plain = ("int8", "float8_e4m3fn", "float8_e5m2")
    assert {(q.kind, q.granularity) for q in quants} >= {(k, g) for k in plain for g in ("tensor", "head", "block")}
    assert {q.kind for q in quants if q.of == "qkv"} == set(plain)
    assert {p for case in USUAL if (p := case.dropout) is not None} == {0.0, 0.1, 0.5, 0.9, 1.0}
    stored: set[type] = {type(case.storage) for case in USUAL if case.quant is not None}
    assert stored == {Dense, Packed, Paged} and Quant("int8", "head") in quants
    assert {case.dtype for case in USUAL if isinstance(case.storage, Cache)} == set(FORMATS)
    assert any(isinstance(case.storage, Shared) and (case.D, case.Dv) == (576, 512) for case in USUAL)


@pytest.mark.parametrize(
    ("feature", "most"), [("D!=Dv", 0.15), ("sinks", 0.2), ("bias", 0.2), ("softcap", 0.15), ("strided", 0.15)]
)
def test_features_that_many_kernels_lack_are_in_few_cases(feature: str, most: float) -> None:
    """A kernel that refuses one of them is still tried on the rest."""
    assert sum(feature in case.features() for case in USUAL) <= most * len(USUAL)


def test_cost() -> None:
    """Elements of scores: what the truth and its bound cost."""
    elements = {case.id: prod((case.B, case.H, case.Lq, case.Lk)) for case in CASES}
    assert max(elements[case.id] for case in USUAL) <= 2_000_000 and max(elements.values()) <= 6_000_000
    forward = sum(elements[case.id] for case in USUAL if not case.backward)
    assert forward <= 14_000_000 and sum(elements[case.id] for case in USUAL) - forward <= 3_500_000
    rows = select(chapters=["pairs"])
    assert all(max(case.Lq, case.Lk) < 70 for case in rows) and max(elements[case.id] for case in rows) < 20_000


def test_select() -> None:
    assert select() == tuple(case for case in CASES if case.chapter != "huge") and select(full=True) == CASES
    assert by_id("causal-f32") in select(["causal-*"])
    assert select(["full-f32", "causal-f??"], ["basics"], ["float32"]) == (by_id("full-f32"), by_id("causal-f32"))
    assert {case.dtype for case in select(dtypes=["float64"])} == {"float64"}
    assert FULL == ("huge",) and not {case.chapter for case in select(dtypes=["float32"])} & set(FULL)
    assert select(["million-f32"]) == (by_id("million-f32"),)
    assert {case.chapter for case in select(chapters=["huge"])} == {"huge"}
    for arguments, message in (
        ({"patterns": ["full-f32", "nothing-*"]}, "'nothing-\\*' matches no case"),
        ({"chapters": ["ends"]}, "chapter 'ends' is not one of basics"),
        ({"dtypes": ["int8"]}, "dtype 'int8' is not one of float32"),
    ):
        with pytest.raises(ValueError, match=message):
            select(**arguments)
    with pytest.raises(ValueError, match="id='full' is no case"):
        by_id("full")


BLIND_TO_PAIRING = {"rotary-two-f64", "rotary-one-token-bf16"}
"""one pair of coordinates, which is the same in both conventions; position 0, which is not turned"""


@pytest.mark.parametrize("case", [c for c in CASES if c.rotary], ids=lambda case: case.id)
def test_the_rotation_shows_in_the_scores(case: Case) -> None:
    """Pairs of coordinates taken the other way, or no rotation, give other scores."""
    if not 0 < case.Lq * case.Lk <= 1 << 20:
        return
    assert case.rotary is not None
    problem = make(case)
    other = replace(case, rotary=replace(case.rotary, interleaved=not case.rotary.interleaved))

    def scores(x: Mapping[str, Any]) -> Any:
        k = np.repeat(x["k"].astype(np.float64), case.H // case.Hkv, axis=1)
        seen = case.visibility.tile()
        with np.errstate(invalid="ignore"):
            return np.where(seen, x["q"].astype(np.float64) @ k.swapaxes(-1, -2), 0.0)

    right, unturned = scores(problem.logical), scores({**problem.logical, **problem.stored})
    assert case.id == "rotary-one-token-bf16" or not np.allclose(right, unturned, rtol=1e-6, equal_nan=True)
    flipped = scores(make(other).logical)
    assert (case.id in BLIND_TO_PAIRING) == bool(np.allclose(right, flipped, rtol=1e-6, equal_nan=True))
