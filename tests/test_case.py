"""A case is a value: equal after JSON, hashable, and refused at once where it makes no sense."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.case import (
    CACHES,
    GRADIENTS,
    MATRICES,
    OUTPUTS,
    BiasSpec,
    Cache,
    Case,
    Dense,
    Packed,
    Paged,
    Shared,
    Strided,
)  # fmt: skip
from refattn.dtypes import FORMATS
from refattn.masks import Causal, Documents, Padding, Prefix, SinkTokens, Window
from refattn.quantise import Quant
from refattn.rotary import Rotary
from refattn.score_mods import SCORE_MODS


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case that makes sense: what is drawn, less what the rest of it rules out."""
    b, hkv, group = draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(st.integers(1, 3))
    lq, lk = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    dtype = draw(st.sampled_from(list(FORMATS)))
    d, dv = draw(st.integers(0, 9) | st.just(32)), draw(st.integers(0, 9) | st.just(32))
    bias = draw(st.none() | st.builds(BiasSpec, st.sampled_from(["B", "HK", "BHQK"]), st.just("float16")))
    sinks, softcap = draw(st.none() | st.just("normal")), draw(st.none() | st.floats(0.1, 50))
    q_lens = draw(st.none() | st.tuples(*[st.integers(0, lq)] * b))
    k_lens = draw(st.none() | st.tuples(*[st.integers(0, lk)] * b))
    longest = zip(q_lens or (lq,) * b, k_lens or (lk,) * b, strict=True)
    narrow, behind = "float8" in dtype, all(n <= m for n, m in longest)
    rotary = draw(st.none() | st.builds(Rotary, st.sampled_from([2, 4]), st.booleans(), st.sampled_from([1e4, 500.0])))
    rotary = None if rotary is None or narrow or not behind or rotary.dim > d else rotary
    quants = [Quant("int8", "tensor", "qkv"), Quant("float8_e5m2", "head"), Quant("float8_e4m3fn", "block")]
    quants += [Quant("q8_0", "block"), Quant("q4_0", "block")] if d == dv == 32 else []
    quant = None if narrow or rotary else draw(st.none() | st.sampled_from(quants))
    storages = [Dense("BLHD"), Dense(), Strided(64)]
    if quant is None or quant.granularity != "block":
        storages += [Packed(draw(st.integers(0, 2))), Paged(draw(st.integers(1, 3)))]
    if quant is None:
        storages += [Shared()] if dv <= d else []
        grows = q_lens is None and all(n >= lq for n in k_lens or (lk,) * b)
        storages += [Cache(draw(st.integers(0, 2)))] if grows else []
    storage = draw(st.sampled_from(storages))
    want = set(OUTPUTS) | (set() if isinstance(storage, Packed) else set(MATRICES))
    want |= set(CACHES) if isinstance(storage, Cache) else set()
    low = rotary is not None and dtype in ("float16", "bfloat16")
    if not (narrow or low) and quant is None and not isinstance(storage, (Paged, Cache, Shared)):
        want |= set(GRADIENTS)
    needed = {"dbias": bias, "dsinks": sinks, "dsoftcap": softcap}
    want -= {name for name, value in needed.items() if value is None}
    window = Window(1, None, "top_left") | SinkTokens(1)
    masks = st.sampled_from([None, Causal("bottom_right"), window, ~Prefix(2, "top_left"), Padding((3,) * b)])
    return Case(
        id=draw(st.from_regex(r"[A-Za-z0-9_.+-]+", fullmatch=True)),
        why=draw(st.text()),
        flags=draw(st.tuples(st.text(max_size=3))),
        chapter=draw(st.sampled_from(["user", "masks"])),
        B=b,
        H=hkv * group,
        Hkv=hkv,
        Lq=lq,
        Lk=lk,
        D=d,
        Dv=dv,
        dtype=dtype,
        out_dtype=draw(st.sampled_from(["", "float16", "float32"])),
        seed=draw(st.integers(0, 2**63)),
        want=frozenset(draw(st.sets(st.sampled_from(sorted(want)), min_size=1))),
        mask=draw(masks),
        q_lens=q_lens,
        k_lens=k_lens,
        scale=draw(st.none() | st.floats(-2, 2)),
        softcap=softcap,
        bias=bias,
        sinks=sinks,
        score_mod=draw(st.none() | st.sampled_from(sorted(SCORE_MODS))),
        dropout=draw(st.none() | st.floats(0, 1)),
        rotary=rotary,
        quant=quant,
        storage=storage,
    )


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(cases())
def test_json_round_trip(case: Case) -> None:
    again = Case.from_json(json.loads(json.dumps(case.to_json())))
    assert again == case and hash(again) == hash(case)
    assert again.to_json() == case.to_json()
    assert case.visibility.tile().shape == (case.B, case.H, case.Lq, case.Lk)


def test_defaults_are_left_out_of_json() -> None:
    assert Case("x", "because").to_json() == {"id": "x", "why": "because", "out_dtype": "float32"}
    assert Case("x", "y", scale=0.0).to_json()["scale"] == 0.0
    with pytest.raises(ValueError, match="a case has no field colour; it has B, D, .*, why"):
        Case.from_json({"id": "x", "why": "y", "colour": 1})
    with pytest.raises(TypeError, match=r"a case has no field sofcap; do you mean softcap\? it has B, D"):
        Case("x", "y", sofcap=1.0)  # type: ignore[call-arg]


def test_every_field_survives_json() -> None:
    """Two cases, rotated and quantised, with no other field at its default, so that none can be forgotten."""
    rotated = Case(
        "x", "y", ("flag",), "masks", 2, 4, 2, 3, 5, 6, 7, "float16", "float32", "needle", 9,
        frozenset({"out", "biased"}), Documents((0,) * 5) & Causal("top_left"), (2, 3), (4, 5), 0.5, 3.0,
        BiasSpec("HK", "float16", "ties"), "large", "tilt", 0.25, Rotary(4, True, 500.0), None, Dense("BLHD"),
    )  # fmt: skip
    quantised = dataclasses.replace(
        rotated, rotary=None, quant=Quant("int8", "head", "qkv"), want={"out"}, storage=Paged(3)
    )
    for case, at_default in ((rotated, {"quant"}), (quantised, {"rotary"})):
        for f in dataclasses.fields(Case):
            assert (getattr(case, f.name) == f.default) == (f.name in at_default), f.name
        data = json.loads(json.dumps(case.to_json()))
        assert set(data) == {f.name for f in dataclasses.fields(Case)} - at_default
        assert Case.from_json(data) == case


def test_every_storage_survives_json() -> None:
    for storage in (Dense("LBHD"), Strided(7), Shared(), Packed(3), Paged(5), Cache(2)):
        case = Case("x", "y", storage=storage)
        again = Case.from_json(json.loads(json.dumps(case.to_json())))
        assert again == case and type(again.storage) is type(storage) and again.storage == storage
    with pytest.raises(ValueError, match="type='Heap' of a storage is not one of Dense, Strided"):
        Case.from_json({"id": "x", "why": "y", "storage": {"type": "Heap"}})


def test_what_is_given_loosely_is_kept_strictly() -> None:
    """Lists, NumPy integers and dtypes become tuples, ints and names."""
    loose = Case(
        "x", "y", flags=["a"], B=np.int64(2), Lk=3, k_lens=np.array([1, 3]), want={"out"}, dtype=np.float16  # type: ignore[arg-type]
    )  # fmt: skip
    assert loose == Case("x", "y", flags=("a",), B=2, Lk=3, k_lens=(1, 3), want=frozenset({"out"}), dtype="float16")
    assert json.dumps(loose.to_json()) and loose.out_dtype == "float16"
    assert Case("x", "y", dtype="float8_e4m3fn").out_dtype == "bfloat16"


def test_derived_facts() -> None:
    mask = ~Causal("top_left") & SinkTokens(2)
    case = Case("x", "y", H=6, Hkv=2, Lq=3, Lk=4, bias=BiasSpec("HK"), mask=mask, scale=0.0)
    assert case.bias_shape == (1, 6, 1, 4) and not case.backward
    words = {"dtype=float32", "causal", "sinktokens", "mask", "gqa", "Lq!=Lk", "bias", "bias=normal", "scale"}
    assert case.features() == words
    assert Case("x", "y", want=frozenset({"dq"})).backward and Case("x", "y", want={"dscale", "lse"}).backward


FEATURES: list[tuple[dict[str, Any], set[str]]] = [
    ({"want": {"dscale", "lse"}}, {"backward", "dscale", "dlse"}),
    ({"want": {"dsoftcap"}, "softcap": 2.0}, {"backward", "dsoftcap", "softcap"}),
    ({"want": {"capped"}}, {"matrices"}),
    ({"score_mod": "tilt"}, {"score_mod=tilt"}),
    ({"dropout": 0.0}, {"dropout"}),
    ({"rotary": Rotary(4, False)}, {"rotary"}),
    ({"quant": Quant("float8_e5m2", "head")}, {"quant=float8_e5m2"}),
    ({"storage": Dense("BLHD")}, {"strided"}),
    ({"storage": Strided()}, {"far"}),
    ({"storage": Paged(2), "k_lens": (1,)}, {"paged", "k_lens"}),
    ({"out_dtype": "float16"}, {"out_dtype"}),
    ({"dtype": "float8_e4m3fn", "out_dtype": "float16"}, {"out_dtype"}),
    ({"dtype": "float8_e4m3fn"}, set()),
]


@pytest.mark.parametrize(("fields", "words"), FEATURES, ids=lambda x: " ".join(sorted(x)))
def test_features(fields: dict[str, Any], words: set[str]) -> None:
    assert Case("x", "y", **fields).features() == words | {f"dtype={fields.get('dtype', 'float32')}"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"id": "a b"}, r"id='a b' must be made of letters, digits"),
    ({"id": ""}, r"id='' must be"),
    ({"B": -1}, r"B=-1 must be an int >= 0"),
    ({"D": 2.5}, r"D=2.5 must be an int >= 0"),
    ({"seed": -1}, r"seed=-1 must be an int >= 0"),
    ({"H": 3, "Hkv": 2}, r"H=3 must be a multiple of Hkv=2"),
    ({"H": 3, "Hkv": 0}, r"H=3 must be a multiple of Hkv=0"),
    ({"dtype": "fp16"}, r"dtype=fp16 is not a supported dtype; use one of"),
    ({"dtype": None}, r"dtype=None is not a supported dtype"),
    ({"out_dtype": "int8"}, r"out_dtype=int8 is not a supported dtype"),
    ({"out_dtype": "float8_e5m2"}, r"out_dtype=float8_e5m2: the outputs of float8 cases are float16 or bfloat16"),
    ({"want": frozenset()}, r"want=\[\] must hold some of out, lse, scores"),
    ({"want": frozenset({"dw"})}, r"want=\['dw'\] must hold some of"),
    ({"want": frozenset({"dbias"})}, r"asks for dbias of a case without bias"),
    ({"want": frozenset({"dsinks"})}, r"asks for dsinks of a case without sinks"),
    ({"want": frozenset({"dq"}), "dtype": "float8_e4m3fn"}, r"float8 gradients have no derived bound"),
    ({"softcap": 0.0}, r"softcap=0.0 must be > 0 and finite; pass None for no softcap"),
    ({"softcap": -1.0}, r"softcap=-1.0 must be > 0"),
    ({"softcap": float("nan")}, r"softcap=nan must be > 0"),
    ({"softcap": float("inf")}, r"softcap=inf must be > 0 and finite"),
    ({"scale": float("nan")}, r"scale=nan must be finite; pass None for D\*\*-0.5"),
    ({"scale": float("inf")}, r"scale=inf must be finite"),
    ({"k_lens": (2,)}, r"k_lens=\(2,\) must hold B=1 lengths from 0 to 1"),
    ({"q_lens": (1, 1)}, r"q_lens=\(1, 1\) must hold B=1 lengths"),
    ({"Lk": 4, "mask": Documents((0, 0))}, r"k_ids of shape \(1, 2\) is too small"),
    ({"B": 2, "mask": Padding((1,))}, r"lengths=\(1,\) must hold one value for each of B=2"),
    ({"want": {"dsoftcap"}}, r"asks for dsoftcap of a case without softcap"),
    ({"score_mod": "bend"}, r"score_mod='bend' is not one of relative, distance"),
    ({"dropout": 1.5}, r"dropout=1.5 must be from 0 to 1; pass None for no dropout"),
    ({"dropout": float("nan")}, r"dropout=nan must be from 0 to 1"),
    ({"rotary": Rotary(10, True)}, r"rotary.dim=10 must be <= D=8"),
    ({"rotary": Rotary(2, True), "dtype": "float8_e5m2"}, r"float8 is not rotated; use quant for a float8 cache"),
    ({"rotary": Rotary(2, True), "Lq": 3, "Lk": 2}, r"needs a key for each query: its position is i \+ lk - lq"),
    ({"rotary": Rotary(2, True), "Lk": 4, "k_lens": (0,)}, r"needs a key for each query"),
    ({"quant": Quant("int8", "head"), "want": {"dv"}}, r"quantised inputs have no gradients"),
    ({"quant": Quant("int8", "head"), "dtype": "float8_e4m3fn"}, r"must be that of the queries: float32, float16 or"),
    ({"quant": Quant("q4_0", "block")}, r"D=8, Dv=8 must be multiples of 32, the block of q4_0"),
    ({"quant": Quant("int8", "head"), "rotary": Rotary(2, True)}, r"a cache is rotated before it is quantised"),
    ({"quant": Quant("int8", "block"), "storage": Paged(2)}, r"has no scales by block; use granularity='head'"),
    ({"storage": Paged(2), "want": {"dq"}}, r"no gradients are taken through it"),
    ({"storage": Shared(), "Dv": 16}, r"storage=Shared\(\) needs Dv=16 <= D=8 and no quant"),
    ({"storage": Cache(), "Lq": 2, "Lk": 3, "k_lens": (1,)}, r"needs all Lq=2 queries among the keys k_lens=\(1,\)"),
    ({"storage": Cache(), "q_lens": (1,)}, r"neither q_lens nor quant"),
    ({"want": {"k_cache"}}, r"asks for a cache of storage=Dense\(.*\); use Cache\(\)"),
    ({"storage": Packed(), "want": {"biased"}}, r"scores of Packed sequences have no shape of their own"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refusals(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Case(**{"id": "x", "why": "y"} | changed)


def test_refused_parts() -> None:
    for dims in ("", "X", "hk"):
        with pytest.raises(ValueError, match=f"dims='{dims}' must hold some of the letters B, H, Q, K"):
            BiasSpec(dims)
    with pytest.raises(TypeError, match="bias dtype=fp32 is not a supported dtype"):
        BiasSpec(dtype="fp32")
    for layout in ("BHL", "BHLL", "bhld"):
        with pytest.raises(ValueError, match=f"layout='{layout}' must be a permutation of 'BHLD'"):
            Dense(layout)
    for kind, name, least in ((Strided, "row", 1), (Packed, "gap", 0), (Paged, "page_size", 1), (Cache, "spare", 0)):
        with pytest.raises(ValueError, match=f"{name}={least - 1} must be an int >= {least}"):
            kind(least - 1)
