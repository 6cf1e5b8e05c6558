"""onnx.reference, Attention of opsets 23 to 25, through the suite; and what is known of it, in that library alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnx.reference", reason="onnx has no reference implementation")

from refattn.adapters.onnx import OnnxAttention, default, opset24, opset25  # noqa: E402
from refattn.case import BiasSpec, Cache, Case, Dense, Packed  # noqa: E402
from refattn.inputs import make  # noqa: E402
from refattn.masks import Documents, Window  # noqa: E402
from tests.adapter_checks import BOTTOM, TOP, judged, small, verdict, words  # noqa: E402

OPSETS = {23: default, 24: opset24, 25: opset25}
MATRICES = frozenset({"scores", "capped", "biased", "weights"})


def native(adapter: OnnxAttention, case: Case) -> dict[str, Any]:
    """What of the case the operator is told by attributes and by its last inputs."""
    feeds, options = adapter.inputs(case, make(case).fresh())
    return {**options, **{name: "given" for name in ("mask", "lengths", "past_k", "k_cache") if name in feeds}}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "fields",
    [
        {"Hkv": 2, "Dv": 24, "mask": TOP, "storage": Dense("BLHD")},
        {"mask": Window(2, 1, "bottom_right"), "k_lens": (9, 6)},
        {"Hkv": 2, "storage": Cache(), "mask": BOTTOM, "want": {"out", "k_cache", "v_cache"}},
        {"scale": 0.25, "bias": True, "mask": BOTTOM, "want": MATRICES | {"out"}},
    ],
    ids=["blhd", "window", "cache", "scores"],
)  # fmt: skip
def test_passes(opset: int, dtype: str, fields: dict[str, Any]) -> None:
    if "bias" in fields:
        fields = fields | {"bias": BiasSpec("HQK", dtype)}
    case = small(dtype=dtype, **fields)
    found = verdict(OPSETS[opset], case)
    assert found.status == "passed" and {o.name for o in found.outputs} == set(case.want) - {"lse"}, found.reasons
    assert judged(OPSETS[opset], case, mask=~TOP) == "failed"


@pytest.mark.parametrize(
    ("opset", "fields", "told"),
    [
        (23, {"mask": TOP}, {"is_causal": 1}),
        (23, {"mask": BOTTOM}, {"mask": "given"}),
        (23, {"mask": TOP, "k_lens": (9, 4)}, {"mask": "given"}),
        (23, {"storage": Cache(), "mask": BOTTOM}, {"is_causal": 1, "past_k": "given"}),
        (24, {"mask": BOTTOM}, {"is_causal": 1, "lengths": "given"}),
        (24, {"k_lens": (9, 4)}, {"lengths": "given"}),
        (24, {"mask": BOTTOM, "q_lens": (5, 3)}, {"mask": "given"}),
        (24, {"storage": Cache(), "k_lens": (9, 6)}, {"lengths": "given", "k_cache": "given"}),
        (25, {"mask": Window(2, 0, "top_left")}, {"left_window_size": 2, "right_window_size": 0}),
        (25, {"mask": Window(None, 1, "bottom_right")}, {"right_window_size": 1, "lengths": "given"}),
        (24, {"mask": Window(2, 0, "top_left")}, {"mask": "given"}),
    ],
    ids=words,
)  # fmt: skip
def test_what_the_operator_is_told(opset: int, fields: dict[str, Any], told: dict[str, Any]) -> None:
    case = small(**fields)
    assert native(OPSETS[opset], case) == told
    assert judged(OPSETS[opset], case) == "passed"


def test_the_wrong_alignment_is_caught() -> None:
    for adapter in OPSETS.values():
        assert judged(adapter, small(mask=TOP), mask=BOTTOM) == "failed"
        assert judged(adapter, small(mask=BOTTOM), mask=TOP) == "failed"


def test_conventions() -> None:
    assert judged(default, small(family="poisoned", k_lens=(9, 4))) == "acceptable"
    hidden = small(mask=Documents((1,) * 5, (1,) * 4 + (0,) * 5), family="poisoned", k_lens=(4, 4))
    assert judged(default, hidden) == "unsupported"  # all that it returns is NaN: nothing is left to judge
    assert judged(default, small(mask=BOTTOM, Lq=9, Lk=5)) == "passed"  # rows that see nothing are zero


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"scale": -1.0}, "scale<0"),
        ({"dtype": "float64", "scale": 0.5}, "attribute beyond float32"),
        ({"storage": Cache(), "k_lens": (9, 7)}, "ragged cache"),
        ({"sinks": "normal"}, "sinks"),
        ({"storage": Packed()}, "packed"),
        ({"want": {"dq", "dk", "dv"}}, "returns no dk dq dv"),
    ],
)
def test_refused(fields: dict[str, Any], reason: str) -> None:
    assert default.supports(small(**fields)) == reason


def alone(feeds: dict[str, Any], **options: Any) -> Any:
    """The last output of a model of one Attention-23."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    outputs = ["out", "", "", "qk"] if "qk_matmul_output_mode" in options else ["out"]
    kind = helper.np_dtype_to_tensor_dtype(feeds["q"].dtype)
    value = [helper.make_tensor_value_info(n, kind, None) for n in (*feeds, "out", "qk")]
    node = helper.make_node("Attention", list(feeds), outputs, **options)
    graph = helper.make_graph([node], "alone", value[:-2], [x for x in value[-2:] if x.name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    found: Any = ReferenceEvaluator(model).run(None, feeds)
    return found[-1]


def test_findings_in_onnx_alone() -> None:
    q = np.full((1, 1, 3, 4), 3, np.float32)
    qkv = {"q": q, "k": q, "v": np.eye(3, 4, dtype=np.float32)[None, None]}
    raw = alone(qkv, softcap=1.0, qk_matmul_output_mode=0)
    assert raw.max() == 1.0, "mode 0 is before softcap now: 18"
    whole, one_row = (
        alone(qkv | {"mask": np.zeros((1, 1, rows, 3), np.float32)}, is_causal=1)[0, 0, :, 0] for rows in (3, 1)
    )
    assert whole[2] == np.float32(1 / 3) and (one_row == 1).all(), "is_causal broadcasts its mask now"
    with pytest.raises(ValueError, match="zero-size array"):
        alone({"q": q, "k": q[:, :, :0], "v": q[:, :, :0]})


def test_softmax_of_bfloat16_needs_its_precision() -> None:
    import ml_dtypes

    x = np.ones((1, 1, 1000, 4), ml_dtypes.bfloat16)
    qkv = {"q": x[:, :, :1], "k": x, "v": x}
    assert alone(qkv).max() == 3.90625 and alone(qkv, softmax_precision=1).max() == 1.0
    assert native(default, small(dtype="bfloat16"))["softmax_precision"] == 1
