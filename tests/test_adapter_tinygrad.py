"""tinygrad's scaled_dot_product_attention through the suite."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")
if shutil.which("clang") is None:
    pytest.skip("tinygrad needs clang on the CPU", allow_module_level=True)

from refattn.adapters.tinygrad import default  # noqa: E402
from refattn.case import BiasSpec  # noqa: E402
from tests.adapter_checks import BOTTOM, GRAD, TOP, judged, small, words  # noqa: E402


@pytest.mark.parametrize(
    "fields",
    [
        {"Hkv": 2, "mask": TOP, "want": GRAD | {"out"}},
        {"mask": BOTTOM, "bias": BiasSpec("HQK", "float64"), "dtype": "float64"},
    ],
    ids=words,
)
def test_passes(fields: dict[str, Any]) -> None:
    case = small(**fields)
    assert judged(default, case) == "passed"
    assert judged(default, case, mask=~BOTTOM) == "failed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"scale": 0.5}, "scale"),
        ({"dtype": "float16"}, "float16"),
        ({"Lk": 0}, "a size of 0"),
        ({"bias": BiasSpec("HQK", "float32"), "mask": TOP, "want": GRAD | {"dbias"}}, "dbias beside a mask"),
    ],
)
def test_refused(fields: dict[str, Any], reason: str) -> None:
    assert default.supports(small(**fields)) == reason
