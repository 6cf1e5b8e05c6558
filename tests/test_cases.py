"""The case table: every case earns its place, and nothing that the suite promises to try is missing."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from math import prod

import pytest

from refattn.case import GRADIENTS, Case
from refattn.cases import CASES, CHAPTERS, FLAGS, by_id, select
from refattn.dtypes import FORMATS
from refattn.masks import Causal

TILES = (16, 32, 64, 128, 256)
EDGES = sorted(tile + step for tile in TILES for step in (-1, 0, 1))


def _kind(case: Case) -> frozenset[str]:
    """The features of a case down to the variants of each, without sizes and family."""
    words = set(case.features()) | {case.storage.layout, f"out {case.out_dtype}"} | (case.want - {"out"})
    words |= set(re.findall(r"top_left|bottom_right|Window\([^,]+, [^,]+", repr(case.mask)))
    if case.H != case.Hkv:
        words.add(f"group {case.H // case.Hkv}")
    if case.scale is not None:
        words.add(f"scale {(case.scale > 0) - (case.scale < 0)}")
    if case.bias is not None:
        words |= {f"bias {word}" for word in (case.bias.dims, case.bias.family, case.bias.dtype)}
    if case.sinks is not None:
        words.add(f"sinks {case.sinks}")
    return frozenset(words)


def _sizes(case: Case) -> set[str]:
    """Lengths by class: up to 5 and at the edge of tiles each its own, else by order of magnitude."""
    words = {"Lq<Lk" if case.Lq < case.Lk else "Lq>=Lk"}
    for name in ("Lq", "Lk"):
        n = getattr(case, name)
        words.add(f"{name}={n}" if n <= 5 or n in EDGES else f"{name} of {len(str(n))} digits")
    words.add(f"D={case.D}" if case.D < 16 or case.D % 16 or case.D > 128 else "D of whole tiles")
    words |= {f"{name}=0" for name in ("B", "Dv") if getattr(case, name) == 0}
    return words | {f"{name} with 0" for name in ("q_lens", "k_lens") if 0 in (getattr(case, name) or ())}


def _tokens(case: Case) -> set[object]:
    """What a case tries: pairs of features, sizes and family; each of its bugs in its family and in its
    dtype; its family in its dtype, forward or backward; and its features with nothing else beside them.
    """
    words = _kind(case) | _sizes(case) | {case.family}
    pairs: set[object] = {frozenset(pair) for pair in combinations(words, 2)}
    bugs = {(flag, word) for flag in case.flags for word in (case.family, case.dtype)}
    return pairs | bugs | {(case.family, case.dtype, case.backward), _kind(case)}


def test_every_case_earns_its_place() -> None:
    tokens = {case.id: _tokens(case) for case in CASES}
    count = Counter(token for of_case in tokens.values() for token in of_case)
    redundant = [id for id, of_case in tokens.items() if all(count[token] > 1 for token in of_case)]
    assert not redundant, f"all that these cases try is tried by others: {', '.join(redundant)}"


def test_a_copy_would_not_earn_its_place() -> None:
    """The rule above can fail: a second case of the same kind adds nothing."""
    case = by_id("gqa-causal-br-ragged-bf16")
    twin = Case.from_json(case.to_json() | {"id": "twin", "seed": 1, "k_lens": [41, 7, 12]})
    assert _tokens(twin) == _tokens(case)


def test_number_and_ids() -> None:
    assert len(CASES) >= 150
    assert max(Counter(case.id for case in CASES).values()) == 1
    assert all(re.fullmatch(r"[a-z0-9-]+", case.id) for case in CASES)
    assert all(case.why.endswith(".") and len(case.why) <= 120 for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_json_round_trip(case: Case) -> None:
    again = Case.from_json(json.loads(json.dumps(case.to_json())))
    assert again == case and hash(again) == hash(case)


def test_flags_are_described_and_used() -> None:
    used = {flag for case in CASES for flag in case.flags}
    assert used == set(FLAGS)
    assert all(case.flags for case in CASES)
    for flag, text in FLAGS.items():
        assert re.fullmatch(r"[a-z0-9_]+", flag)
        source = re.search(r"\(([^()]+(\([^()]*\))?)\)$", text)
        assert source and len(source.group(1)) > 8, f"{flag} names no source: {text}"


def test_chapters() -> None:
    assert CHAPTERS == (
        "basics", "shapes", "masks", "patterns", "heads", "scores", "precision", "long", "gradients", "degenerate",
    )  # fmt: skip
    assert all(count >= 10 for count in Counter(case.chapter for case in CASES).values())
    assert all(case.backward for case in select(chapters=["gradients"]))
    assert all(case.Lk >= 1000 for case in select(chapters=["long"])) and max(case.Lk for case in CASES) == 16384


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
        assert {0, 1, 2, 3, 5, *EDGES} <= {getattr(case, name) for case in CASES}
    assert {0, 1, 8, 16, 32, 40, 64, 80, 96, 128, 192, 256} <= {case.D for case in CASES}
    assert {1, 2, 3, 4, 5, 6} <= {case.H // case.Hkv for case in CASES}
    for backward in (False, True):
        shapes = [case for case in CASES if case.backward == backward]
        assert sum(case.Lq > case.Lk for case in shapes) >= 8 and sum(case.Lq < case.Lk for case in shapes) >= 8
        assert any(case.Dv > case.D for case in shapes)


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
    forward = {(word, case.dtype) for case in CASES if not case.backward for word in _kind(case)}
    for dtype in full:
        for word in ("mask", "causal", "gqa", "scale", "softcap", "bias", "sinks", "k_lens", "q_lens", "strided"):
            needed = full if word in ("mask", "causal", "gqa") else ["float32", "bfloat16"]
            assert dtype not in needed or (word, dtype) in forward, (word, dtype)
        wanted = set().union(*(case.want for case in CASES if case.dtype == dtype and case.backward))
        assert wanted == {*GRADIENTS, "lse"}, dtype
    masks = {word for case in CASES for word in case.features()}
    assert masks >= {
        "causal", "window", "prefix", "documents", "padding", "sinktokens", "blocksparse", "dense",
    }  # fmt: skip
    text = " ".join(repr(case.mask) for case in CASES)
    assert all(sign in text for sign in ("&", "|", "~"))
    for lens in ("q_lens", "k_lens"):
        masks_of_lens = " ".join(repr(case.mask) for case in CASES if getattr(case, lens))
        assert "bottom_right" in masks_of_lens and "None" in masks_of_lens
    assert {case.dtype for case in CASES} == set(FORMATS)


@pytest.mark.parametrize(
    ("feature", "most"), [("D!=Dv", 0.15), ("sinks", 0.2), ("bias", 0.2), ("softcap", 0.15), ("strided", 0.15)]
)
def test_features_that_many_kernels_lack_are_in_few_cases(feature: str, most: float) -> None:
    """A kernel that refuses one of them is still tried on the rest."""
    assert sum(feature in case.features() for case in CASES) <= most * len(CASES)


def test_cost() -> None:
    """Elements of scores: what the truth and its bound cost."""
    elements = {case.id: prod((case.B, case.H, case.Lq, case.Lk)) for case in CASES}
    assert max(elements.values()) <= 2_000_000
    forward = sum(elements[case.id] for case in CASES if not case.backward)
    assert forward <= 12_000_000 and sum(elements.values()) - forward <= 3_000_000


def test_select() -> None:
    assert select() == CASES
    assert by_id("causal-f32") in select(["causal-*"])
    assert select(["full-f32", "causal-f??"], ["basics"], ["float32"]) == (by_id("full-f32"), by_id("causal-f32"))
    assert {case.dtype for case in select(dtypes=["float64"])} == {"float64"}
    for arguments, message in (
        ({"patterns": ["full-f32", "nothing-*"]}, "'nothing-\\*' matches no case"),
        ({"chapters": ["ends"]}, "chapter 'ends' is not one of basics"),
        ({"dtypes": ["int8"]}, "dtype 'int8' is not one of float32"),
    ):
        with pytest.raises(ValueError, match=message):
            select(**arguments)
    with pytest.raises(ValueError, match="id='full' is no case"):
        by_id("full")
