"""onnxruntime on the CPU through the suite: Attention, MultiHeadAttention, GroupQueryAttention; and its findings."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from refattn.adapters.onnxruntime import default, gqa, mha, opset24, opset25  # noqa: E402
from refattn.adapters.onnxruntime.grouped import INPUTS  # noqa: E402
from refattn.adapters.onnxruntime.session import contrib  # noqa: E402
from refattn.case import BiasSpec, Cache, Dense  # noqa: E402
from refattn.masks import Documents, Window  # noqa: E402
from refattn.rotary import Rotary  # noqa: E402
from tests.adapter_checks import BOTTOM, TOP, judged, small, verdict  # noqa: E402

ALL = {"23": default, "24": opset24, "25": opset25, "mha": mha, "gqa": gqa}
GROUPS = {"Hkv": 2}
APPENDED = {"storage": Cache(), "mask": BOTTOM, "want": {"out", "k_cache", "v_cache"}}
RAGGED = {"k_lens": (9, 6), "q_lens": (5, 3)}
PASSES: list[tuple[str, dict[str, Any]]] = [
    ("23", {**GROUPS, "mask": TOP, "storage": Dense("BLHD"), "Dv": 24}),
    ("23", {**GROUPS, "mask": BOTTOM, "bias": BiasSpec("BK"), "softcap": 5.0}),
    ("23", {**GROUPS, **APPENDED}),
    ("24", {"mask": BOTTOM, "k_lens": (9, 6)}),
    ("24", {**GROUPS, **APPENDED, "k_lens": (9, 6)}),
    ("25", {**GROUPS, "mask": Window(2, 0, "bottom_right"), "k_lens": (9, 6)}),
    ("mha", {"mask": TOP, "Lq": 9, "Dv": 24}),
    ("mha", {"k_lens": (9, 6), "scale": -0.5}),
    ("mha", {"mask": Window(2, 1, "bottom_right"), "bias": BiasSpec("HK")}),
    ("mha", APPENDED),
    ("gqa", {**GROUPS, **RAGGED, "mask": BOTTOM, "softcap": 5.0, "sinks": "normal"}),
    ("gqa", {**GROUPS, **RAGGED, "mask": Window(2, 0, "bottom_right"), "bias": BiasSpec("HQK")}),
    ("gqa", {**GROUPS, **RAGGED, "want": {"out", "weights"}}),
    ("gqa", {**GROUPS, "mask": Window(2, 1, "bottom_right"), "bias": BiasSpec("HK")}),
    ("gqa", {**GROUPS, **APPENDED, "k_lens": (9, 6), "rotary": Rotary(16, True)}),
    ("gqa", {**GROUPS, "Lq": 9, "rotary": Rotary(16, False), "mask": TOP}),
]


@pytest.mark.parametrize(("who", "fields"), PASSES, ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x)))
def test_passes(who: str, fields: dict[str, Any]) -> None:
    case = small(**fields)
    found = verdict(ALL[who], case)
    wanted = {name for name in case.want if name != "lse"}
    assert found.status == "passed" and {o.name for o in found.outputs} == wanted, found
    assert judged(ALL[who], case, mask=BOTTOM if case.mask is None else ~case.mask) == "failed"


@pytest.mark.parametrize("who", ["23", "24", "25", "gqa"])
def test_float16(who: str) -> None:
    case = small(dtype="float16", **GROUPS, mask=BOTTOM, D=32, Dv=32)
    assert judged(ALL[who], case) == "passed"
    assert judged(ALL[who], case, scale=0.25) == "failed"


def test_conventions() -> None:
    """What hides nothing from NaN, and what rows that see nothing are."""
    none = small(mask=Documents((1,) * 5, (1,) * 4 + (0,) * 5), k_lens=(5, 5), family="poisoned")
    empty = small(mask=Documents((1,) * 4 + (2,), (1,) * 9))
    for who, adapter in ALL.items():
        assert judged(adapter, small(k_lens=(9, 5), family="poisoned")) in ("acceptable", "passed")
        assert judged(adapter, none) in ("unsupported", "passed")  # all is NaN: nothing is left to judge
        assert judged(adapter, empty) == ("acceptable" if who in ("mha", "gqa") else "passed")


@pytest.mark.parametrize(
    ("who", "fields", "reason"),
    [
        ("23", {"scale": 0.0}, "scale=0"),
        ("23", {"Lk": 0}, "a dimension of 0"),
        ("23", {"dtype": "bfloat16"}, "bfloat16"),
        ("mha", GROUPS, "gqa"),
        ("mha", {"scale": 0.0}, "scale=0"),
        ("mha", {**APPENDED, "k_lens": (9, 6)}, "ragged cache"),
        ("mha", {"softcap": 1.0}, "softcap"),
        ("gqa", {"D": 12, "Dv": 12}, "D is no multiple of 8"),
        ("gqa", {"Dv": 24}, "D!=Dv"),
        ("gqa", {"Lq": 10}, "more queries than keys"),
        ("gqa", {"rotary": Rotary(16, True)}, "rotary of a past"),
        ("gqa", {"rotary": Rotary(16, True), "Lq": 9, "dtype": "float16"}, "cos and sin in float16"),
    ],
)  # fmt: skip
def test_refused(who: str, fields: dict[str, Any], reason: str) -> None:
    assert ALL[who].supports(small(**fields)) == reason


def test_finding_the_default_scale_of_float64() -> None:
    assert judged(opset25, small(dtype="float64")) == "passed"  # 1 / sqrt(16) is exact
    assert judged(opset25, small(dtype="float64", D=8)) == "failed"


def test_finding_unidirectional_with_more_keys() -> None:
    zero = np.zeros((1, 5, 8), np.float32)
    feeds = {"q": zero[:, :3], "k": zero, "v": np.eye(5, 8, dtype=np.float32)[None]}
    out = contrib("MultiHeadAttention", ["q", "k", "v"], ["out"], {"num_heads": 1, "unidirectional": 1}, feeds)["out"]
    assert out[0, 1, :5].tolist() == [0.5, 0.5, 0, 0, 0] and np.allclose(out[0, 2, :5], 0.2)


def test_finding_nan_in_a_query() -> None:
    k = np.ones((1, 4, 8), np.float32)
    feeds = {"q": k * np.nan, "k": k, "v": k, "seqlens_k": np.array([3], np.int32), "total": np.array(4, np.int32)}
    options = {"num_heads": 1, "kv_num_heads": 1}
    found = contrib("GroupQueryAttention", INPUTS[:7], ["out", "present_k", "present_v"], options, feeds)
    out = found["out"][0, :, 0]
    assert (out[:3] == 0).all() and np.isnan(out[3])


def test_finding_an_empty_batch_kills_the_process() -> None:
    code = (
        "from refattn.adapters.onnxruntime import gqa\nfrom refattn.cases import by_id\n"
        "from refattn.inputs import make\n"
        "case = by_id('no-batch-f32'); gqa(case, make(case).fresh())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode < 0
