"""What `gpu.attention` and `gpu.attention_grad` refuse: every argument, by its name, the rule and the cure."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

import ml_dtypes

import gpu
from gpu.launch import Refused
from gpu.launch.checks import LONGEST
from gpu.launch.device import launch
from gpu.target import SIMULATED
from refattn.masks import Causal, Window
from tests.test_gpu_launch import BF16, qkv, random

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: NumPy arrays are refused at once")


REFUSALS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("list", {"q": [[1.0]]}, TypeError, "q is a list, which must be an array of CuPy or torch"),
    ("integers", {"q": np.zeros((1, 2, 5, 16), np.int64)}, TypeError, "q.dtype=int64 must be one of float16"),
    ("float8", {"q": np.zeros((1, 2, 5, 16), ml_dtypes.float8_e4m3fn)}, TypeError, "q.dtype=float8_e4m3fn must be"),
    ("byte order", {"q": random(1, 2, 5, 16).astype(">f2")}, TypeError, "byte order"),
    ("mixed dtypes", {"k": random(1, 1, 7, 16, dtype=BF16)}, TypeError, "k.dtype=bfloat16 must be q.dtype=float16"),
    ("3 dimensions", {"q": random(2, 5, 16)}, ValueError, "q.shape=(2, 5, 16) must have 4 dimensions (B, H, Lq, D)"),
    ("5 dimensions", {"v": random(1, 1, 1, 7, 8)}, ValueError, "v.shape=(1, 1, 1, 7, 8) must have 4 dimensions"),
    ("batch", {"q": random(3, 2, 5, 16)}, ValueError, "k.shape=(1, 1, 7, 16) must have the B=3"),
    ("head size", {"q": random(1, 2, 5, 17)}, ValueError, "k.shape=(1, 1, 7, 16) must have the D=17"),
    ("v unlike k", {"v": random(1, 1, 8, 8)}, ValueError, "v.shape=(1, 1, 8, 8) must be that of k"),
    ("heads", {"k": random(1, 3, 7, 16), "v": random(1, 3, 7, 8)}, ValueError, "H=2 heads of q must be a multiple of"),
    ("no key heads", {"k": random(1, 0, 7, 16), "v": random(1, 0, 7, 8)}, ValueError, "H=2 heads of q must be a mult"),
    ("softcap 0", {"softcap": 0}, ValueError, "softcap=0 must be > 0; pass None for no softcap"),
    ("softcap tiny", {"softcap": 1e-300}, ValueError, "softcap=1e-300 must be within the range of float32"),
    ("softcap text", {"softcap": "1"}, TypeError, "softcap is a str, which must be a number; pass None for no softcap"),
    ("scale inf", {"scale": math.inf}, ValueError, "scale=inf must be finite; pass None for D**-0.5"),
    ("scale bool", {"scale": True}, TypeError, "scale is a bool, which must be a number"),
    ("mask array", {"mask": np.ones((5, 7), bool)}, TypeError, "mask is a ndarray, which must be a Causal or Window"),
    ("mask bool", {"mask": True}, TypeError, "mask is a bool"),
    ("no band", {"mask": ~Causal("top_left")}, ValueError, "is no band about one diagonal; pass a bias of 0 and -inf"),
    (
        "two diagonals", {"mask": Causal("top_left") & Window(1, None, "bottom_right")}, ValueError,
        "is no band about one diagonal",
    ),
    ("bias shape", {"bias": np.zeros((1, 1, 5, 6), np.float32)}, ValueError, "bias.shape=(1, 1, 5, 6) must have Lk=7"),
    ("bias dims", {"bias": np.zeros((5, 7), np.float32)}, ValueError, "bias.shape=(5, 7) must have 4 dimensions"),
    ("bias dtype", {"bias": np.zeros((1, 1, 5, 7))}, TypeError, "bias.dtype=float64 must be float32 or q.dtype=float1"),
    ("sinks shape", {"sinks": np.zeros(1, np.float32)}, ValueError, "sinks.shape=(1,) must be (H,)=(2,)"),
    ("sinks dtype", {"sinks": np.zeros(2, np.int32)}, TypeError, "sinks.dtype=int32 must be float32"),
    ("slopes", {"alibi_slopes": np.zeros((1, 2), np.float32)}, ValueError, "alibi_slopes.shape=(1, 2) must be (H,)"),
    ("one cu_seqlens", {"cu_seqlens_q": [0, 5]}, TypeError, "cu_seqlens_k is missing"),
    ("packed 4-D", {"cu_seqlens_q": [0, 5], "cu_seqlens_k": [0, 7]}, ValueError, "must have 3 dimensions (tokens, "),
    ("used shape", {"seqused_k": [1, 2]}, ValueError, "seqused_k.shape=(2,) must be (B,)=(1,)"),
    ("used long", {"seqused_k": [8]}, ValueError, "seqused_k=[8] must be from 0 to the lengths [7]"),
    ("used negative", {"seqused_q": [-1]}, ValueError, "seqused_q=[-1] must be from 0 to the lengths [5]"),
    ("used dtype", {"seqused_q": np.array([1], np.int64)}, TypeError, "seqused_q.dtype=int64 must be int32"),
    ("used huge", {"seqused_q": [2**40]}, ValueError, "seqused_q must fit int32"),
    ("kernel", {"kernel": "fast"}, ValueError, "kernel='fast' must be one of varlen, decode"),
    ("kernel dtype", {"kernel": "tiled"}, Refused, "kernel='tiled' takes float32 and float64, and q.dtype=float16"),
    ("kernel packed", {"kernel": "varlen"}, Refused, "kernel='varlen' takes packed sequences"),
    ("stream", {"stream": "0"}, TypeError, "stream is a str"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "text"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_refusals(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments = dict(zip("qkv", qkv(), strict=True)) | changed
    with pytest.raises(error, match=re.escape(text)):
        gpu.attention(**arguments)


PACKED_REFUSALS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("begin", {"cu_seqlens_q": [1, 5]}, ValueError, "cu_seqlens_q=[1, 5] must begin with 0"),
    ("falls", {"cu_seqlens_q": [0, 5, 3]}, ValueError, "cu_seqlens_q=[0, 5, 3] must not fall"),
    ("beyond", {"cu_seqlens_k": [0, 8]}, ValueError, "cu_seqlens_k=[0, 8] must end within the 7 tokens of k"),
    ("entries", {"cu_seqlens_k": [0, 3, 7]}, ValueError, "cu_seqlens_k.shape=(3,) must be (B + 1,)=(2,)"),
    ("empty", {"cu_seqlens_q": []}, ValueError, "cu_seqlens_q.shape=(0,) must be (B + 1,)"),
    ("2-D", {"cu_seqlens_q": np.zeros((1, 2), np.int32)}, ValueError, "cu_seqlens_q.shape=(1, 2) must have 1 dim"),
    ("dtype", {"cu_seqlens_q": np.array([0, 5])}, TypeError, "cu_seqlens_q.dtype=int64 must be int32"),
    ("floats", {"cu_seqlens_q": [0.0, 5.0]}, TypeError, "cu_seqlens_q.dtype=float64 must be int32"),
    ("used", {"seqused_k": [8]}, ValueError, "seqused_k=[8] must be from 0 to the lengths [7]"),
    ("bias", {"bias": np.zeros((1, 1, 4, 7), np.float32)}, ValueError, "bias.shape=(1, 1, 4, 7) must have Lq=5"),
]


@pytest.mark.parametrize(
    ("changed", "error", "text"), [r[1:] for r in PACKED_REFUSALS], ids=[r[0] for r in PACKED_REFUSALS]
)
def test_packed_refusals(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    q, k, v = (x[0].swapaxes(0, 1) for x in qkv())
    with pytest.raises(error, match=re.escape(text)):
        gpu.attention(q, k, v, **({"cu_seqlens_q": [0, 5], "cu_seqlens_k": [0, 7]} | changed))


GRADIENT_REFUSALS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("dout shape", {"dout": random(1, 2, 5, 16)}, ValueError, "dout.shape=(1, 2, 5, 16) must be (1, 2, 5, 8)"),
    ("dout dtype", {"dout": random(1, 2, 5, 8, dtype=np.float32)}, TypeError, "dout.dtype=float32 must be float16"),
    ("out", {"out": random(1, 2, 6, 8)}, ValueError, "out.shape=(1, 2, 6, 8) must be (1, 2, 5, 8)"),
    ("lse dtype", {"lse": random(1, 2, 5)}, TypeError, "lse.dtype=float16 must be float32"),
    ("lse shape", {"lse": random(1, 2, 5, 1, dtype=np.float32)}, ValueError, "lse.shape=(1, 2, 5, 1) must be"),
    ("dlse", {"dlse": random(2, 5, dtype=np.float32)}, ValueError, "dlse.shape=(2, 5) must be (1, 2, 5)"),
    ("kernel", {"kernel": "decode"}, ValueError, "kernel='decode' of attention_grad must be one of tensor_core"),
]


@pytest.mark.parametrize(
    ("changed", "error", "text"), [r[1:] for r in GRADIENT_REFUSALS], ids=[r[0] for r in GRADIENT_REFUSALS]
)
def test_gradient_refusals(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments = dict(zip("qkv", qkv(), strict=True))
    arguments |= {"dout": random(1, 2, 5, 8), "out": random(1, 2, 5, 8), "lse": random(1, 2, 5, dtype=np.float32)}
    with pytest.raises(error, match=re.escape(text)):
        gpu.attention_grad(**(arguments | changed))


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_head_sizes_beyond_the_kernels(dtype: Any) -> None:
    with pytest.raises(Refused, match="takes head sizes up to 256, and D=257"):
        gpu.attention(*qkv(D=257, dtype=dtype))


def test_sequences_beyond_32_bits_are_refused() -> None:
    far = np.lib.stride_tricks.as_strided(random(1, 1, 1, 8), (1, 1, LONGEST + 1, 8), (0, 0, 0, 2))
    with pytest.raises(ValueError, match=r"k has 268435457 tokens of a sequence, which must be at most 2\*\*28"):
        gpu.attention(random(1, 1, 1, 8), far, far)


def test_grids_beyond_the_device_are_refused() -> None:
    with pytest.raises(ValueError, match="needs more than 2147483647 blocks in a direction"):
        launch(None, None, 2**31, 32, 0, (), [], None, 0)
    with pytest.raises(ValueError, match="needs more than 65535 blocks in a direction"):
        launch(None, None, (1, 65536), 32, 0, (), [], None, 0)
