"""The Triton kernel through the suite, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if "tensorflow" in sys.modules:
    pytest.skip("triton and tensorflow in one process abort; run this file alone", allow_module_level=True)
if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("triton was imported without TRITON_INTERPRET=1", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"  # which triton reads when it is imported
pytest.importorskip("triton", reason="triton is not installed")

from refattn.adapters.triton import default  # noqa: E402
from refattn.masks import Window  # noqa: E402
from tests.adapter_checks import BOTTOM, TOP, judged, small, words  # noqa: E402


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "fields",
    [
        {"Hkv": 2, "mask": TOP, "Dv": 24, "D": 20},
        {"Hkv": 1, "mask": BOTTOM, "Lq": 70, "Lk": 130},
        {"mask": BOTTOM, "Lq": 67, "Lk": 3},
        {"scale": -0.4, "Lk": 65},
    ],
    ids=words,
)
def test_passes(dtype: str, fields: dict[str, Any]) -> None:
    assert judged(default, small(dtype=dtype, **fields)) == "passed"


def test_told_wrongly() -> None:
    assert judged(default, small(mask=TOP), mask=BOTTOM) == "failed"
    assert judged(default, small(), scale=0.5) == "failed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mask": Window(1, 0, "top_left")}, "window"),
        ({"k_lens": (9, 3)}, "lengths"),
        ({"mask": TOP, "k_lens": (9, 3)}, "lengths"),
        ({"softcap": 1.0}, "softcap"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_refused(fields: dict[str, Any], reason: str) -> None:
    assert default.supports(small(**fields)) == reason
