"""jax.nn.dot_product_attention and Pallas' flash attention on the CPU through the suite, and a finding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from refattn.adapters.jax import default, eager, flash, splash  # noqa: E402
from refattn.adapters.jax.dot_product import options_of  # noqa: E402
from refattn.case import BiasSpec  # noqa: E402
from refattn.masks import Prefix, Window  # noqa: E402
from tests.adapter_checks import BOTTOM, GRAD, TOP, judged, small, verdict, words  # noqa: E402


@pytest.mark.parametrize(
    "fields",
    [
        {"Hkv": 2, "mask": Window(2, 1, "top_left"), "q_lens": (5, 3), "k_lens": (9, 6), "dtype": "bfloat16"},
        {"Hkv": 2, "mask": TOP, "want": GRAD | {"out", "dscale"}, "dtype": "float64"},
        {"mask": BOTTOM, "bias": BiasSpec("HQK"), "want": GRAD | {"dbias"}, "dtype": "float32"},
    ],
    ids=["window", "gradients", "bias"],
)
def test_passes(fields: dict[str, Any]) -> None:
    case = small(**fields)
    found = verdict(default, case)
    assert found.status == "passed" and {o.name for o in found.outputs} == set(case.want), found


def test_the_wrong_alignment_is_caught() -> None:
    assert judged(default, small(mask=BOTTOM), mask=TOP) == "failed"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"mask": TOP, "k_lens": (9, 6)}, {"is_causal": True, "key_value_seq_lengths": [9, 6]}),
        ({"mask": Window(2, None, "top_left")}, {"local_window_size": (2, 9)}),
        ({"q_lens": (5, 3)}, {"query_seq_lengths": [5, 3]}),
        ({"mask": BOTTOM, "k_lens": (9, 6)}, {"mask": ...}),
        ({"mask": Prefix(2, "top_left")}, {"mask": ...}),
    ],
    ids=words,
)
def test_what_the_function_is_told(fields: dict[str, Any], options: dict[str, Any]) -> None:
    told = options_of(small(**fields))
    assert told.keys() == options.keys()
    assert all(wanted is ... or np.array_equal(told[name], wanted) for name, wanted in options.items())


def test_conventions() -> None:
    assert judged(default, small(mask=BOTTOM, Lq=9, Lk=5)) == "acceptable"  # rows that see nothing: the mean of v
    hidden = verdict(default, small(k_lens=(9, 6), family="poisoned"))
    assert hidden.status == "acceptable" and hidden.conventions == {"masked_nan_v": "leaks"}


@pytest.mark.parametrize(
    ("adapter", "fields", "reason"),
    [
        (default, {"Dv": 24}, "D!=Dv"),
        (default, {"softcap": 1.0}, "softcap"),
        (default, {"dtype": "float16"}, "float16"),
        (default, {"want": GRAD | {"lse"}}, "dlse"),
        (flash, {"Hkv": 2}, "gqa"),
        (flash, {"bias": BiasSpec("HQK"), "D": 8, "Dv": 8}, "bias with a scale that is no power of 2"),
        (flash, {"Lq": 1000}, "too slow in interpret mode"),
        (flash, {"want": {"lse"}}, "returns no lse"),
        (flash, {"scale": 0.0, "mask": TOP}, "mask with scale=0"),
        (splash, {"mask": BOTTOM, "Lq": 9, "Lk": 5}, "a row that sees nothing"),
        (splash, {"D": 8, "want": GRAD}, "gradients with a scale that is no power of 2"),
    ],
)
def test_refused(adapter: Any, fields: dict[str, Any], reason: str) -> None:
    assert adapter.supports(small(**fields)) == reason


def test_flash() -> None:
    case = small(B=1, H=1, Hkv=1, mask=TOP, k_lens=(7,), dtype="bfloat16")
    assert judged(flash, case) == "passed"
    assert judged(flash, case, mask=BOTTOM) == "failed"


def test_splash() -> None:
    one = {"B": 1, "H": 2, "Hkv": 1, "softcap": 5.0, "sinks": "normal", "dtype": "bfloat16"}
    case = small(**one, mask=Window(2, 1, "bottom_right"), k_lens=(7,))
    assert judged(splash, case) == "passed"
    assert judged(splash, case, mask=TOP) == "failed"


def test_finding_float16_under_jit() -> None:
    x = np.ones((1, 2, 1, 8), np.float16)
    assert eager.supports(small(dtype="float16")) is None and default.supports(small(dtype="float16")) == "float16"
    assert (jax.nn.dot_product_attention(x, x, x) == 1).all()
    with pytest.raises(ValueError, match="F16_F16_F32"):
        jax.jit(jax.nn.dot_product_attention)(x, x, x)
