"""What `gpu.attention` takes, refuses and answers: every argument by name, every odd shape right, in the executor."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed; pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="greenlet is not installed; pip install 'refattn[gpu-dev]'")

import ml_dtypes  # noqa: E402

import gpu  # noqa: E402
from gpu.kernels.arguments import NO_LIMIT  # noqa: E402
from gpu.launch import BACKWARD, KERNELS, Refused, operands, tiles  # noqa: E402
from gpu.launch.arrays import as_array  # noqa: E402
from gpu.launch.checks import LONGEST, check  # noqa: E402
from gpu.launch.choose import chosen, fitted, head_size  # noqa: E402
from gpu.launch.device import EXECUTOR, launch  # noqa: E402
from gpu.launch.forward import choose  # noqa: E402
from gpu.launch.masks import EVERYTHING, band_of  # noqa: E402
from gpu.launch.streams import stream_of  # noqa: E402
from gpu.target import SIMULATED  # noqa: E402
from refattn.masks import Causal, Chunked, Padding, Visibility, Window  # noqa: E402
from refattn.oracle import attention as truth  # noqa: E402
from refattn.oracle import attention_grad as true_gradients  # noqa: E402

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: these run in the executor")

BF16 = ml_dtypes.bfloat16
CLOSE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-13}


def random(*shape: int, dtype: Any = np.float16, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(
    B: int = 1, H: int = 2, Hkv: int = 1, Lq: int = 5, Lk: int = 7, D: int = 16, Dv: int = 8, dtype: Any = np.float16
) -> tuple[Any, Any, Any]:
    return tuple(  # type: ignore[return-value]
        random(*shape, dtype=dtype, seed=seed)
        for seed, shape in enumerate(((B, H, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv)))
    )


def assert_right(out: Any, lse: Any, q: Any, k: Any, v: Any, **options: Any) -> None:
    close = CLOSE[out.dtype.name]
    wide = {n: np.asarray(x, np.float64) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    expected = truth(*(np.asarray(x, np.float64) for x in (q, k, v)), **wide)
    assert out.dtype == q.dtype and out.shape == expected.out.shape
    np.testing.assert_allclose(out.astype(np.float64), expected.out, atol=close, rtol=close)
    np.testing.assert_allclose(lse, expected.lse, atol=1e-4, rtol=1e-4)


# Refusals.

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


# Right answers.


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (37, 1), (40, 33)])
def test_sizes(dtype: Any, sizes: tuple[int, int]) -> None:
    q, k, v = qkv(Lq=sizes[0], Lk=sizes[1], dtype=dtype)
    assert_right(*gpu.attention(q, k, v), q, k, v)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("empty", ["B", "H", "Lq", "Lk", "D", "Dv"])
def test_empty_dimensions(dtype: Any, empty: str) -> None:
    sizes: dict[str, Any] = {empty: 0} | ({"Hkv": 0} if empty == "H" else {})
    q, k, v = qkv(**sizes, dtype=dtype)
    sinks = np.full(q.shape[1], 0.5, np.float32)
    for options in ({}, {"sinks": sinks}):
        out, lse = gpu.attention(q, k, v, **options)
        assert_right(out, lse, q, k, v, **options)
    if dtype == np.float16:
        dout = random(*out.shape)
        found = gpu.attention_grad(dout, q, k, v, out, lse, sinks=sinks)
        expected = true_gradients(*(x.astype(np.float64) for x in (q, k, v, dout)), sinks=sinks)
        for name in ("dq", "dk", "dv", "dsinks"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=5e-3)


def views(x: Any) -> dict[str, Any]:
    """The numbers of `x` (B, H, L, D), in memory of other strides."""
    B, H, L, D = x.shape
    swapped = x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
    apart = np.zeros((B, H, L, 2 * D), x.dtype)
    apart[..., ::2] = x
    shifted = np.zeros(x.size + 1, x.dtype)[1:].reshape(x.shape)
    shifted[...] = x
    backwards = x[:, ::-1, ::-1].copy()[:, ::-1, ::-1]
    wide = np.zeros((B, H, L, D + 4), x.dtype)
    wide[..., 3 : D + 3] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    return {
        "BLHD": swapped, "elements apart": apart[..., ::2], "misaligned": shifted, "backwards": backwards,
        "within rows": wide[..., 3 : D + 3], "read-only": read_only,
        "elements backwards": x[..., ::-1].copy()[..., ::-1],
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("kind", list(views(np.zeros((1, 1, 1, 1)))))
def test_strides(dtype: Any, kind: str) -> None:
    q, k, v = qkv(B=2, H=4, Hkv=2, dtype=dtype)
    given = [views(x)[kind] for x in (q, k, v)]
    assert_right(*gpu.attention(*given), q, k, v)


def test_gradients_of_strided_arrays() -> None:
    q, k, v = qkv(B=2, H=4, Hkv=2)
    dout = random(2, 4, 5, 8, seed=9)
    out, lse = gpu.attention(q, k, v)
    plain = gpu.attention_grad(dout, q, k, v, out, lse)
    for kind in ("BLHD", "misaligned", "backwards", "elements apart"):
        given = [views(x)[kind] for x in (dout, q, k, v, out)]
        odd = gpu.attention_grad(*given, lse[:, :, ::-1].copy()[:, :, ::-1])
        for name in ("dq", "dk", "dv"):
            np.testing.assert_array_equal(getattr(odd, name), getattr(plain, name))


def test_broadcast_batch() -> None:
    q, k, v = qkv(B=3)
    k, v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))
    assert_right(*gpu.attention(q, k, v), q, k, v)


def test_int16_holds_bfloat16() -> None:
    q, k, v = qkv(Lq=20, dtype=BF16)
    out, lse = gpu.attention(*(x.view(np.int16) for x in (q, k, v)), sinks=np.ones(2, BF16).view(np.int16))
    assert out.dtype == np.int16
    assert_right(out.view(BF16), lse, q, k, v, sinks=np.ones(2))
    dout = random(1, 2, 20, 8, dtype=BF16)
    found = gpu.attention_grad(
        *(x.view(np.int16) for x in (dout, q, k, v)), out, lse, sinks=np.ones(2, BF16).view(np.int16)
    )
    usual = gpu.attention_grad(dout, q, k, v, out.view(BF16), lse, sinks=np.ones(2, BF16))
    for a, b in zip(found, usual, strict=True):
        assert a.dtype == np.int16 and b.dtype == BF16
        np.testing.assert_array_equal(a.view(BF16), b)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sink_dtype", [np.float16, BF16, np.float32, np.float64])
def test_sinks_of_other_dtypes(dtype: Any, sink_dtype: Any) -> None:
    q, k, v = qkv(dtype=dtype)
    sinks = np.array([0.5, -2.0], sink_dtype)
    assert_right(*gpu.attention(q, k, v, sinks=sinks), q, k, v, sinks=sinks)


@pytest.mark.parametrize("kernel", ["tensor_core", "decode", "wgmma", "tiled", "naive"])
def test_alibi_slopes_are_the_bias_they_stand_for(kernel: str) -> None:
    dtype = np.float32 if kernel in ("tiled", "naive") else np.float16
    q, k, v = qkv(H=4, Hkv=2, Lq=21, Lk=50, dtype=dtype)
    slopes = np.array([0.5, 0.25, 0.125, 0.0], np.float32)
    away = np.abs(np.arange(21)[:, None] + 50 - 21 - np.arange(50))
    found = gpu.attention(q, k, v, kernel=kernel, alibi_slopes=slopes, mask=Causal("bottom_right"))
    assert_right(*found, q, k, v, bias=-slopes[None, :, None, None] * away, mask=Causal("bottom_right"))


def test_gradients_with_alibi_slopes() -> None:
    q, k, v = qkv(H=4, Hkv=2, Lq=21, Lk=50)
    slopes = np.array([0.5, 0.25, 0.125, 0.0], np.float32)
    bias = (-slopes[None, :, None, None] * np.abs(np.arange(21)[:, None] + 29 - np.arange(50))).astype(np.float32)
    dout = random(1, 4, 21, 8)
    out, lse = gpu.attention(q, k, v, alibi_slopes=slopes)
    found = gpu.attention_grad(dout, q, k, v, out, lse, alibi_slopes=slopes)
    expected = true_gradients(*(x.astype(np.float64) for x in (q, k, v, dout)), bias=bias)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=5e-3)


@pytest.mark.parametrize("kernel", [None, "tensor_core", "decode", "varlen", "wgmma", "tiled", "naive"])
@pytest.mark.parametrize("gaps", [False, True])
def test_packed(kernel: str | None, gaps: bool) -> None:
    dtype = np.float32 if kernel in ("tiled", "naive") else np.float16
    starts_q, starts_k, lens_q, lens_k = [0, 20, 20, 61, 64], [0, 3, 40, 40, 75], [20, 0, 41, 3], [3, 37, 0, 35]
    if gaps:
        lens_q, lens_k = [17, 0, 30, 3], [3, 20, 0, 34]
    q, k, v = random(70, 4, 16, dtype=dtype), random(80, 2, 16, dtype=dtype), random(80, 2, 24, dtype=dtype)
    for x, starts, lens in ((q, starts_q, lens_q), (k, starts_k, lens_k), (v, starts_k, lens_k)):
        exists = np.zeros(len(x), bool)
        for start, n in zip(starts, lens, strict=False):
            exists[start : start + n] = True
        x[~exists] = np.nan  # what is not in use must not be read
    used = {"seqused_q": lens_q, "seqused_k": lens_k} if gaps else {}
    lengths = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, **used}
    out, lse = gpu.attention(q, k, v, kernel=kernel, mask=Causal("bottom_right"), **lengths)
    assert out.shape == (70, 4, 24) and lse.shape == (4, 70)
    exists = np.zeros(70, bool)
    for a, b, n, m in zip(starts_q, starts_k, lens_q, lens_k, strict=False):
        one, two, three = (x[None].swapaxes(1, 2) for x in (q[a : a + n], k[b : b + m], v[b : b + m]))
        assert_right(
            out[None, a : a + n].swapaxes(1, 2), lse[None, :, a : a + n], one, two, three, mask=Causal("bottom_right")
        )
        exists[a : a + n] = True
    assert (out[~exists] == 0).all() and (lse[:, ~exists] == -np.inf).all()


@pytest.mark.parametrize("kernel", [None, "decode", "wgmma", "tiled", "naive"])
def test_lengths(kernel: str | None) -> None:
    dtype = np.float32 if kernel in ("tiled", "naive") else np.float16
    q, k, v = qkv(B=4, Lq=20, Lk=50, dtype=dtype)
    lens_q, lens_k = np.array([20, 7, 0, 1], np.int32), np.array([3, 50, 20, 0], np.int32)
    for x, lens in ((q, lens_q), (k, lens_k), (v, lens_k)):
        for b, n in enumerate(lens):
            x[b, :, n:] = np.nan
    out, lse = gpu.attention(
        q, k, v, kernel=kernel, mask=Window(9, 2, "bottom_right"), seqused_q=lens_q, seqused_k=lens_k
    )
    for b, (n, m) in enumerate(zip(lens_q, lens_k, strict=True)):
        one = (x[b : b + 1, :, :length] for x, length in ((q, n), (k, m), (v, m)))
        assert_right(out[b : b + 1, :, :n], lse[b : b + 1, :, :n], *one, mask=Window(9, 2, "bottom_right"))
        assert (out[b, :, n:] == 0).all() and (lse[b, :, n:] == -np.inf).all()


# Masks, tiles, choices.


@pytest.mark.parametrize(
    "mask",
    [
        None, Causal("top_left"), Causal("bottom_right"), Window(3, 1, "top_left"), Window(None, 2, "bottom_right"),
        Window(0, None, "bottom_right"), Window(None, None, "top_left"), Window(2**40, 0, "top_left"),
        Causal("top_left") & Window(2, 5, "top_left"), Window(1, 9, "bottom_right") & Window(7, 0, "bottom_right"),
        Window(None, None, "top_left") & Causal("bottom_right"),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("sizes", [(6, 6), (4, 9), (9, 4)])
def test_bands_are_the_masks(mask: Any, sizes: tuple[int, int]) -> None:
    Lq, Lk = sizes
    band = band_of(mask, square=Lq == Lk)
    assert band is not None and max(band.left, band.right) <= NO_LIMIT
    i, j = np.arange(Lq)[:, None], np.arange(Lk)
    own = i + (Lk - Lq if band.bottom_right else 0)
    seen = (j >= own - band.left) & (j <= own + band.right)
    np.testing.assert_array_equal(seen, Visibility(mask, 1, 1, Lq, Lk).tile()[0, 0])


def test_other_masks_are_no_bands() -> None:
    either = Causal("top_left") | Causal("bottom_right")
    for mask in (Padding((3,)), Chunked(4, "top_left"), either, ~Causal("top_left")):
        assert band_of(mask) is None and band_of(mask & Causal("top_left")) is None
    both = Causal("top_left") & Window(1, None, "bottom_right")
    assert band_of(both) is None and band_of(both, square=True) is not None
    assert band_of(None) == EVERYTHING


def test_operands_address_the_elements() -> None:
    x = random(2, 3, 5, 8)[:, ::-1, ::2]
    found = operands.operand(as_array("x", x))
    packed = operands.operand(as_array("x", x[0].swapaxes(0, 1)))
    for b, h, i in np.ndindex(2, 3, 3):
        at = x[b, h, i].__array_interface__["data"][0]
        assert found.ptr + b * found.batch + h * found.head + i * found.row == at
        if b == 0:
            assert packed.ptr + h * packed.head + i * packed.row == at
    bias = operands.bias(as_array("bias", random(1, 3, 1, 8)))
    assert bias.batch == bias.row == 0 and bias.head == 16 and bias.column == 2


def test_alignment_is_seen() -> None:
    x = np.zeros(8 * 8 * 8 + 8, np.float16)
    start = (-x.__array_interface__["data"][0] % 16) // 2
    x = x[start : start + 512].reshape(1, 8, 8, 8)
    assert operands.aligned([as_array("x", x)])
    assert not operands.aligned([as_array("x", x[..., :4])])
    assert not operands.aligned([as_array("x", x.reshape(-1)[8:-504].reshape(1, 1, 1, 0)), as_array("x", x[..., 1:])])
    assert not operands.aligned([as_array("x", np.lib.stride_tricks.as_strided(x, (1, 2, 2, 8), (0, 32, 8, 2)))])
    assert operands.aligned([as_array("x", np.lib.stride_tricks.as_strided(x, (1, 2, 1, 8), (6, 32, 8, 2)))])


def test_tiles_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen() == {"warps": 2, "row_tiles": 1, "keys": 32}
    monkeypatch.setenv("GPU_TILES", "warps=1, keys=16")
    assert chosen() == {"warps": 1, "row_tiles": 1, "keys": 16}
    with tiles(keys=64), tiles(row_tiles=2):
        assert chosen() == {"warps": 1, "row_tiles": 2, "keys": 64}
    with pytest.raises(ValueError, match="tiles have no colour; they have warps"), tiles(colour=1):
        pass
    monkeypatch.setenv("GPU_TILES", "warps")
    with pytest.raises(ValueError, match="GPU_TILES='warps' must be like warps=2,keys=16"):
        chosen()


def test_tiles_fit_the_machine() -> None:
    from gpu.kernels import k3_tensor_core as k3

    usual = k3.usual("float16", 256, 256)
    with tiles(warps=4, keys=64):
        assert k3.shared_bytes(fitted(usual, EXECUTOR, k3.shared_bytes)) > 100_000
        small = fitted(usual, EXECUTOR._replace(shared_bytes=100_000), k3.shared_bytes)
        assert k3.shared_bytes(small) <= 100_000 and small.keys % 16 == 0
        with pytest.raises(Refused, match="no tile fits 1000 bytes"):
            fitted(usual, EXECUTOR._replace(shared_bytes=1000), k3.shared_bytes)
        assert fitted(usual, EXECUTOR, k3.shared_bytes, warps=8).warps == 8
    assert [head_size(n) for n in (0, 1, 32, 33, 65, 129, 193)] == [32, 32, 32, 64, 96, 192, 256]


@pytest.mark.parametrize(
    "tile", [{"warps": 1, "keys": 16}, {"warps": 3, "keys": 48}, {"row_tiles": 2, "q_in_registers": 0}], ids=str
)
def test_answers_do_not_depend_on_tiles(tile: dict[str, int]) -> None:
    q, k, v = qkv(Lq=70, Lk=90)
    with tiles(**tile):
        assert_right(*gpu.attention(q, k, v, mask=Causal("top_left")), q, k, v, mask=Causal("top_left"))


def test_choice_of_kernels() -> None:
    def name(**sizes: Any) -> str:
        packed = sizes.pop("packed", False)
        q, k, v = qkv(**sizes)
        if packed:
            q, k, v = (x[0].swapaxes(0, 1) for x in (q, k, v))
            problem = check(q, k, v, cu_seqlens_q=[0, q.shape[0]], cu_seqlens_k=[0, k.shape[0]])
        else:
            problem = check(q, k, v)
        return next(n for n, kernel in KERNELS.items() if kernel is choose(problem, None))

    assert name() == "tensor_core"
    assert name(Lq=1, Lk=300) == "decode" and name(Lq=17, Lk=300) == "tensor_core"
    assert name(packed=True) == "varlen"
    assert name(dtype=np.float32) == name(dtype=np.float64) == name(dtype=np.float32, packed=True) == "tiled"
    assert name(dtype=np.float32, D=300) == "naive"
    assert set(BACKWARD) <= set(KERNELS)


def test_capability_is_looked_at() -> None:
    problem = check(*qkv())
    assert KERNELS["tensor_core"].refuses(problem, EXECUTOR._replace(capability=(7, 5))) is not None
    assert KERNELS["wgmma"].refuses(problem, EXECUTOR._replace(capability=(8, 9))) is not None
    assert KERNELS["wgmma"].refuses(problem, EXECUTOR._replace(capability=(10, 0))) is not None
    assert KERNELS["wgmma"].refuses(problem, EXECUTOR) is None


class WithPtr:
    ptr = 7


class WithCudaStream:
    cuda_stream = 8


class WithProtocol:
    def __init__(self, version: int) -> None:
        self.version = version

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.version, 9


class WithHandle:
    handle = None


def test_streams() -> None:
    streams = (0, 5, WithPtr(), WithCudaStream(), WithProtocol(0), WithHandle())
    assert [stream_of(s) for s in streams] == [0, 5, 7, 8, 9, 0]
    with pytest.raises(ValueError, match="stream=-1 must be the address"):
        stream_of(-1)
    with pytest.raises(TypeError, match="version 1 of __cuda_stream__, not 0"):
        stream_of(WithProtocol(1))
    with pytest.raises(TypeError, match="stream is a bool"):
        stream_of(True)
