"""A case is a value: equal after JSON, hashable, and refused at once where it makes no sense."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.case import GRADIENTS, OUTPUTS, BiasSpec, Case, Dense
from refattn.dtypes import FORMATS
from refattn.masks import Causal, Documents, Padding, Prefix, SinkTokens, Window


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case that makes sense."""
    b, hkv, group = draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(st.integers(1, 3))
    lq, lk = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    dtype = draw(st.sampled_from(list(FORMATS)))
    bias = draw(st.none() | st.builds(BiasSpec, st.sampled_from(["B", "HK", "BHQK"]), st.just("float16")))
    sinks = draw(st.none() | st.just("normal"))
    want = set(OUTPUTS) if "float8" in dtype else set(OUTPUTS + GRADIENTS)
    want -= {name for name, needed in (("dbias", bias), ("dsinks", sinks)) if needed is None}
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
        D=draw(st.integers(0, 9)),
        Dv=draw(st.integers(0, 9)),
        dtype=dtype,
        out_dtype=draw(st.sampled_from(["", "float16", "float32"])),
        seed=draw(st.integers(0, 2**63)),
        want=frozenset(draw(st.sets(st.sampled_from(sorted(want)), min_size=1))),
        mask=draw(masks),
        q_lens=draw(st.none() | st.tuples(*[st.integers(0, lq)] * b)),
        k_lens=draw(st.none() | st.tuples(*[st.integers(0, lk)] * b)),
        scale=draw(st.none() | st.floats(-2, 2)),
        softcap=draw(st.none() | st.floats(0.1, 50)),
        bias=bias,
        sinks=sinks,
        storage=draw(st.builds(Dense, st.sampled_from(["BHLD", "BLHD"]))),
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


def test_every_field_survives_json() -> None:
    """One case with no field at its default, so that none can be forgotten."""
    case = Case(
        "x", "y", ("flag",), "masks", 2, 4, 2, 3, 5, 6, 7, "float16", "float32", "needle", 9,
        frozenset({"out", "dbias"}), Documents((0,) * 5) & Causal("top_left"), (2, 3), (4, 5), 0.5, 3.0,
        BiasSpec("HK", "float16", "ties"), "large", Dense("BLHD"),
    )  # fmt: skip
    for f in dataclasses.fields(Case):
        assert getattr(case, f.name) != f.default, f.name
    data = json.loads(json.dumps(case.to_json()))
    assert set(data) == {f.name for f in dataclasses.fields(Case)}
    assert Case.from_json(data) == case


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
    assert case.features() == {"dtype=float32", "causal", "sinktokens", "mask", "gqa", "Lq!=Lk", "bias", "scale"}
    assert Case("x", "y", want=frozenset({"dq"})).backward


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
    ({"want": frozenset()}, r"want=\[\] must hold some of out, lse, dq"),
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
