"""The door to the suite: what it refuses, how it realises a case, and each kernel judged on some cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from gpu import implementation as door
from gpu.launch import KERNELS
from gpu.launch.masks import band_of
from gpu.target import SIMULATED
from refattn.case import BiasSpec, Cache, Case, Packed, Paged
from refattn.cases import CASES, by_id
from refattn.conform import run
from refattn.implementation import Implementation, load
from refattn.inputs import make
from refattn.masks import Causal, Chunked, Padding, Window
from refattn.precision import preset
from refattn.quantise import Quant
from refattn.rotary import Rotary

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: these run in the executor")
ROOT = Path(__file__).parent.parent
LARGEST = 1 << 18
SMALL: dict[str, Any] = {"B": 2, "H": 4, "Hkv": 2, "Lq": 5, "Lk": 9, "D": 8, "Dv": 8}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ({"score_mod": "relative"}, "score_mod"),
    ({"dropout": 0.1}, "dropout"),
    ({"rotary": Rotary(8, interleaved=False), "Lq": 5, "Lk": 5}, "rotary"),
    ({"quant": Quant("int8", granularity="head")}, "quant"),
    ({"storage": Paged(4)}, "Paged"),
    ({"storage": Cache(), "mask": Causal("bottom_right")}, "Cache"),
    ({"dtype": "bfloat16", "out_dtype": "float32"}, "out_dtype=float32"),
    ({"want": {"weights"}}, "matrices of scores"),
    ({"want": {"dscale"}}, "returns no dscale"),
    ({"dtype": "float16", "bias": BiasSpec("K", "float64")}, "bias of float64"),
    ({"Lk": 10_000, "dtype": "float16"}, "too large for the executor: 4e+07 multiplications, the limit is 2e+07"),
]


def case(**fields: Any) -> Case:
    return Case("x", "a case of this test", **(SMALL | fields))


@pytest.mark.parametrize(("fields", "reason"), REFUSED, ids=[r[1].split(":")[0] for r in REFUSED])
def test_what_is_refused(fields: dict[str, Any], reason: str) -> None:
    assert door.attention.supports(case(**fields)) == reason


def test_what_is_taken() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert door.attention.supports(case(dtype=dtype)) is None
    assert door.attention.supports(case(bias=BiasSpec("HK", "bfloat16"))) is None  # exact in float32
    taken = [c for c in CASES if door.attention.supports(c) is None]
    assert len(taken) > 380, len(taken)


def test_the_limit_of_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    large = case(Lk=100_000)
    monkeypatch.setenv("GPU_EXECUTOR_LIMIT", "1e10")
    assert door.attention.supports(large) is None
    monkeypatch.setenv("GPU_EXECUTOR_LIMIT", "10")
    assert "too large for the executor" in str(door.attention.supports(case()))


def test_doors_have_the_names_of_the_kernels() -> None:
    for name in KERNELS:
        found = load(f"gpu.implementation:{name}")
        assert isinstance(found, Implementation) and found.name == f"gpu ({name})"
    assert door.attention.name == "gpu"


def seen_by(options: dict[str, Any], x: Case) -> Any:
    """What the kernels see, of the arguments that they are given: band, lengths, bias."""
    band = band_of(options.get("mask"))
    assert band is not None
    b, i, j = np.ogrid[: x.B, : x.Lq, : x.Lk]
    lens = []
    for letter, L in (("q", x.Lq), ("k", x.Lk)):
        n = options.get(f"seqused_{letter}")
        if n is None and f"cu_seqlens_{letter}" in options:
            n = np.diff(options[f"cu_seqlens_{letter}"])
        lens.append((np.full(x.B, L) if n is None else n)[:, None, None])
    own = i + (lens[1] - lens[0] if band.bottom_right else 0)
    seen = (j >= own - band.left) & (j <= own + band.right) & (i < lens[0]) & (j < lens[1])
    hidden = np.isneginf(options["bias"]) if "bias" in options else np.zeros((1, 1, 1, 1), bool)
    return np.broadcast_to(seen[:, None] & ~hidden, (x.B, x.H, x.Lq, x.Lk))


@pytest.mark.parametrize("chapter", sorted({c.chapter for c in CASES}))
def test_every_case_is_realised_exactly(chapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Band, lengths and bias together show what the case shows, and the bias is the case's where it does."""
    monkeypatch.setenv("GPU_EXECUTOR_LIMIT", "1e300")
    for x in CASES:
        if x.chapter != chapter or x.scores > LARGEST or door.attention.supports(x) is not None:
            continue
        given = make(x).fresh()
        options = door._options(x, given)
        visible = x.visibility.tile()
        hidden_by_bias = np.isneginf(given["bias"]) if "bias" in given else np.zeros((1, 1, 1, 1), bool)
        np.testing.assert_array_equal(seen_by(options, x), visible & ~hidden_by_bias, x.id)
        if "bias" in options:
            shape = visible.shape
            bias = np.broadcast_to(given["bias"] if "bias" in given else np.float32(0), shape)
            np.testing.assert_array_equal(np.broadcast_to(options["bias"], shape)[visible], bias[visible], x.id)


def test_masks_are_bands_and_lengths_where_they_can_be() -> None:
    def options(mask: Any, **fields: Any) -> dict[str, Any]:
        return door._options(case(mask=mask, **fields), {})

    band = options(Causal("bottom_right") & Window(3, None, "bottom_right"))
    assert "mask" in band and "bias" not in band
    padded = options(Padding((3, 9)) & Causal("top_left"), k_lens=(7, 6))
    assert padded["seqused_k"].tolist() == [3, 6] and padded["mask"] == Causal("top_left") and "bias" not in padded
    twice = options(Padding((3, 9)) & Padding((4, 2)))
    assert twice["seqused_k"].tolist() == [3, 2] and "mask" not in twice and "bias" not in twice
    shifted = options(Padding((3, 9)) & Causal("bottom_right"))  # lengths would shift the diagonal
    assert "seqused_k" not in shifted and "mask" not in shifted and shifted["bias"].dtype == np.float32
    square = options(Padding((3, 5)) & Causal("bottom_right"), Lk=5)
    assert square["seqused_k"].tolist() == [3, 5] and "bias" not in square
    ragged = options(Padding((3, 5)) & Causal("bottom_right"), Lk=5, k_lens=(4, 5))  # not square
    assert ragged["seqused_k"].tolist() == [4, 5] and "bias" in ragged
    assert "bias" in options(Chunked(4, "top_left"))


def test_contracts_say_why_they_are_looser() -> None:
    for x in CASES:
        if door.attention.supports(x) is None:
            contract = door.attention.precision(x)
            loosened = contract.looser_than(preset(x.dtype, x.out_dtype))
            assert set(loosened) == ({"weights_from_lse"} if x.backward else set())
            assert bool(loosened) == bool(contract.source)


JUDGED = {
    "attention": ("full-bf16", "causal-f64", "sinks-one-key-f16", "alibi-decode-bf16"),
    "tensor_core": ("full-f16", "bias-batch-f16", "mask-minus-10000-f16"),
    "decode": ("far-causal-bf16", "sinks-one-key-f16", "alibi-decode-bf16"),
    "wgmma": ("full-f16", "bias-batch-f16", "sinks-one-key-f16"),
    "tiled": ("sinks-f32", "shared-gqa-sinks-f64"),
    "naive": ("sinks-f32", "mask-minus-1e9-f64"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_kernels_are_judged(name: str) -> None:
    report = run(getattr(door, name), [by_id(case_id) for case_id in JUDGED[name]])
    assert [v.status for v in report.verdicts] == ["passed"] * len(JUDGED[name]), report.failures()


def test_packed_sequences_and_gradients_are_judged() -> None:
    packed = case(dtype="float16", storage=Packed(gap=2), q_lens=(5, 3), k_lens=(4, 9), mask=Causal("bottom_right"))
    for x in (packed, Case("y", "gradients", **(SMALL | {"dtype": "bfloat16", "want": {"dq", "dk", "dv"}}))):
        for implementation in (door.attention, door.varlen):
            (verdict,) = run(implementation, [x]).verdicts
            needs_packed = implementation is door.varlen and x is not packed
            assert verdict.status == ("unsupported" if needs_packed else "passed"), verdict


def test_a_wrong_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with one length left out: this is what a failure looks like."""
    realised = door._options
    monkeypatch.setattr(door, "_options", lambda x, given: realised(x, given) | {"seqused_k": None})
    (verdict,) = run(door.attention, [case(dtype="float16", k_lens=(4, 9), family="peaked")]).verdicts
    assert verdict.status == "failed"


def child(code: str, **environment: str) -> str:
    clean = {n: x for n, x in os.environ.items() if not n.startswith(("NUMBA", "GPU_"))}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.strip()


def test_without_a_driver_it_runs_in_the_executor_and_says_so() -> None:
    version = "from gpu.implementation import attention; print(attention.version)"
    if door._has_driver():
        pytest.skip("there is a CUDA driver")
    shown = child(version)
    assert shown.startswith("numba-cuda ") and shown.endswith(", executor, schedule first")
    assert child(version, GPU_SCHEDULE="7").endswith("schedule 7")
    look = "import os; {} import gpu.implementation; print(os.environ.get('NUMBA_ENABLE_CUDASIM'))"
    assert child(look.format("")) == "1"
    assert child(look.format("import numba;")) == "None"  # too late: numba has read it
    assert child(look.format(""), NUMBA_ENABLE_CUDASIM="0") == "0"
