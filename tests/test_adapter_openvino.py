"""openvino's scaled_dot_product_attention on the CPU through the suite, and its findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

openvino = pytest.importorskip("openvino", reason="openvino is not installed")

from refattn.adapters.openvino import bf16, default  # noqa: E402
from refattn.case import BiasSpec  # noqa: E402
from refattn.inputs import make  # noqa: E402
from refattn.judge import judge  # noqa: E402
from refattn.masks import Window  # noqa: E402
from refattn.precision import preset  # noqa: E402
from tests.adapter_checks import BOTTOM, TOP, judged, small  # noqa: E402

NARROW = ["bfloat16"] if "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else []
BOTH = [(default, dtype) for dtype in ("float32", "float16", *NARROW)] + [(bf16, dtype) for dtype in NARROW]


@pytest.mark.parametrize(("adapter", "dtype"), BOTH, ids=lambda x: x if isinstance(x, str) else x.hint)
@pytest.mark.parametrize(
    "fields",
    [
        {"mask": TOP, "Hkv": 1, "Dv": 24},
        {"mask": Window(2, 1, "bottom_right"), "k_lens": (9, 6), "scale": -0.3},
        {"mask": BOTTOM, "bias": True, "D": 32},
        {"scale": 0.7, "D": 24, "Dv": 24},
    ],
    ids=["mqa", "window", "bias", "scale"],
)
def test_passes(adapter: Any, dtype: str, fields: dict[str, Any]) -> None:
    if "bias" in fields:
        fields = fields | {"bias": BiasSpec("HQK", dtype)}
    case = small(dtype=dtype, **fields)
    assert judged(adapter, case) == "passed"
    assert judged(adapter, case, mask=BOTTOM if case.mask is None else ~case.mask) == "failed"


def test_alignment_and_empty_rows() -> None:
    assert judged(default, small(mask=TOP), mask=BOTTOM) == "failed"
    assert judged(default, small(mask=BOTTOM), mask=TOP) == "failed"
    assert judged(default, small(mask=BOTTOM, Lq=9, Lk=5)) == "acceptable"  # rows that see nothing are NaN
    assert judged(default, small(k_lens=(9, 6), family="poisoned")) == "acceptable"


@pytest.mark.parametrize(
    ("fields", "reason"), [({"Hkv": 2}, "gqa"), ({"sinks": "normal"}, "sinks"), ({"dtype": "float64"}, "float64")]
)
def test_refused(fields: dict[str, Any], reason: str) -> None:
    assert default.supports(small(**fields)) == reason


@pytest.mark.parametrize("dtype", ["float16", *NARROW])
def test_the_contract_is_needed(dtype: str) -> None:
    """1 / sqrt(32) is rounded to 16 bits: over a bound that does not know it."""
    case = small(dtype=dtype, Lq=33, Lk=65, D=32, Dv=32)
    problem = make(case)
    answer = default(case, problem.fresh())
    assert judge(problem, answer, default.precision(case), default.conventions).status == "passed"
    tight = replace(preset(dtype), weights=None) if dtype == "float16" else preset(dtype)
    assert judge(problem, answer, tight, default.conventions).status == "failed"


def test_finding_bfloat16_comes_as_float16() -> None:
    from openvino import opset13

    x = opset13.parameter([4], openvino.Type.bf16)
    compiled = openvino.Core().compile_model(openvino.Model([opset13.relu(x)], [x]), "CPU")
    ones = compiled(openvino.Tensor(np.full(4, 0x3F80, np.uint16), [4], openvino.Type.bf16))[0]
    assert ones.dtype == np.float16 and ones.tolist() == [1.875] * 4, "bfloat16 is bfloat16 now"
