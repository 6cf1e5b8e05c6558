"""The contract and the conventions: presets, refusals, what is printed of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.dtypes import FORMATS
from refattn.precision import Conventions, Precision, eager, preset


def test_presets() -> None:
    assert preset("float64") == Precision("float64", "float64", accumulate="float64", lse="float64")
    assert preset("float32") == Precision("float32", "float32", accumulate="float32", weights=None)
    assert preset("float16").weights == "float16" and preset("float16").accumulate == "float32"
    sixteen = {name: "bfloat16" for name in ("weights", "rotated")}
    assert preset("bfloat16", "float32") == Precision("bfloat16", "float32", **sixteen)  # type: ignore[arg-type]
    assert preset("float8_e4m3fn", "bfloat16").weights == "bfloat16"
    assert eager("bfloat16").scores == "bfloat16" and eager("bfloat16").weights_normalised
    for dtype in FORMATS:
        assert preset(dtype, "float16").inputs == dtype and hash(preset(dtype, "float16"))


def test_dtypes_become_names() -> None:
    assert preset(np.float16) == preset("float16")  # type: ignore[arg-type]
    assert Precision(np.dtype("float32"), np.float32) == Precision("float32", "float32")  # type: ignore[arg-type]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"inputs": "float8"}, TypeError, "inputs=float8 is not a supported dtype"),
    ({"inputs": None}, TypeError, "inputs=None is not a supported dtype"),
    ({"out": "int8"}, TypeError, "out=int8 is not"),
    ({"accumulate": None}, TypeError, "accumulate=None is not"),
    ({"accumulate": "bfloat16"}, ValueError, "accumulate=bfloat16 has no derived bound; use float32 or float64"),
    ({"accumulate_rounding": "up"}, ValueError, "accumulate_rounding=up must be nearest or truncate"),
    (
        {"accumulate_rounding": "truncate", "accumulate": "float64"}, ValueError,
        "accumulate_rounding=truncate has no bound for accumulate=float64; use float32",
    ),
    ({"weights": "fp16"}, TypeError, "weights=fp16 is not"),
    ({"scores": "bf16"}, TypeError, "scores=bf16 is not"),
    ({"scaled_q": "tf32"}, TypeError, "scaled_q=tf32 is not"),
    ({"lse": "e"}, TypeError, "lse=e is not"),
    ({"exp_ulp": 0.0}, ValueError, "exp_ulp=0.0 must be > 0"),
    ({"exp_ulp": float("nan")}, ValueError, "exp_ulp=nan must be > 0"),
    ({"tanh_error": -1.0}, ValueError, "tanh_error=-1.0 must be > 0"),
    ({"tile": 0}, ValueError, "tile=0 must be >= 1"),
    ({"grad_q_block": -1}, ValueError, "grad_q_block=-1 must be >= 0"),
    ({"grad_k_block": -1}, ValueError, "grad_k_block=-1 must be >= 0"),
]


@pytest.mark.parametrize(("changed", "kind", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refusals(changed: dict[str, Any], kind: type[Exception], message: str) -> None:
    Precision("float32", "float32")
    with pytest.raises(kind, match=message):
        Precision(**{"inputs": "float32", "out": "float32"} | changed)


def test_refused_presets() -> None:
    with pytest.raises(ValueError, match="out=float8_e4m3fn: the outputs of float8 cases are float16 or bfloat16"):
        preset("float8_e4m3fn")
    with pytest.raises(TypeError, match="dtype=fp32 is not"):
        preset("fp32")
    with pytest.raises(TypeError, match="out=fp32 is not"):
        preset("float8_e5m2", "fp32")


def test_what_is_printed() -> None:
    """The fields that differ, their source aside."""
    contract = Precision("bfloat16", "bfloat16", weights="bfloat16", grad_q_block=32, source="measured")
    assert contract.looser_than(preset("bfloat16")) == {"grad_q_block": 32}
    truncating = replace(preset("bfloat16"), accumulate_rounding="truncate")
    assert truncating.looser_than(preset("bfloat16")) == {"accumulate_rounding": "truncate"}
    assert preset("bfloat16").looser_than(truncating) == preset("float32").looser_than(preset("float32")) == {}
    assert Conventions().declared() == {}
    assert Conventions(empty_rows="nan", lse_base="2").declared() == {"empty_rows": "nan", "lse_base": "2"}
