"""What `gpu.attention` makes of arrays: strides, sizes, lengths, masks, tiles, kernels; answers in the executor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

import ml_dtypes

import gpu
from gpu.kernels.arguments import NO_LIMIT
from gpu.launch import BACKWARD, KERNELS, Refused, operands, tiles
from gpu.launch.arrays import as_array
from gpu.launch.checks import check
from gpu.launch.choose import chosen, fitted, head_size
from gpu.launch.device import EXECUTOR
from gpu.launch.forward import choose
from gpu.launch.masks import EVERYTHING, band_of
from gpu.launch.streams import stream_of
from gpu.target import SIMULATED
from refattn.masks import Causal, Chunked, Padding, Visibility, Window
from refattn.oracle import attention as truth
from refattn.oracle import attention_grad as true_gradients

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
    dout = random(*out.shape, dtype=dtype)
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gradients_of_strided_arrays(dtype: Any) -> None:
    q, k, v = qkv(B=2, H=4, Hkv=2, dtype=dtype)
    dout = random(2, 4, 5, 8, dtype=dtype, seed=9)
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


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_gradients_of_packed_sequences(dtype: Any) -> None:
    starts_q, starts_k, lens_q, lens_k = [0, 20, 20, 39], [0, 3, 25, 37], [17, 0, 19], [3, 20, 11]
    q, k, v = random(44, 4, 16, dtype=dtype), random(40, 2, 16, dtype=dtype), random(40, 2, 24, dtype=dtype)
    lengths = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "seqused_q": lens_q, "seqused_k": lens_k}
    options: dict[str, Any] = {"mask": Window(9, 3, "bottom_right"), "sinks": random(4, dtype=dtype)}
    out, lse = gpu.attention(q, k, v, **options, **lengths)
    dout, dlse = random(44, 4, 24, dtype=dtype, seed=7), random(4, 44, dtype=lse.dtype, seed=8)
    found = gpu.attention_grad(dout, q, k, v, out, lse, dlse=dlse, **options, **lengths)
    expected = [np.zeros(x.shape) for x in (q, k, v, options["sinks"])]
    for a, b, n, m in zip(starts_q, starts_k, lens_q, lens_k, strict=False):
        rows, keys = slice(a, a + n), slice(b, b + m)
        wide = [x[None].swapaxes(1, 2).astype(np.float64) for x in (q[rows], k[keys], v[keys], dout[rows])]
        one = true_gradients(*wide, dlse[None, :, rows].astype(np.float64), **options)
        for whole, part, at in zip(expected, (one.dq, one.dk, one.dv), (rows, keys, keys), strict=False):
            whole[at] = part[0].swapaxes(0, 1)
        expected[3] += one.dsinks
    for x, should in zip(found, expected, strict=True):
        np.testing.assert_allclose(x.astype(np.float64), should, atol=1e-2 if dtype == np.float16 else 1e-12)


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
    with pytest.raises(ValueError, match="tiles have no colour; they have usual, warps"), tiles(colour=1):
        pass
    monkeypatch.setenv("GPU_TILES", "usual,keys=16")
    assert chosen() == {"keys": 16}
    for wrong in ("warps", "warps=two", "keys=0"):
        monkeypatch.setenv("GPU_TILES", wrong)
        with pytest.raises(ValueError, match=f"tiles '{wrong}' must be like warps=2,keys=16, or usual"):
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


def test_grids_of_decode_are_looked_at() -> None:
    problem = check(*qkv())
    assert KERNELS["decode"].refuses(replace(problem, B=65535), EXECUTOR) is None
    for sizes in ({"B": 65536}, {"H": 65536}):
        reason = KERNELS["decode"].refuses(replace(problem, **sizes), EXECUTOR)
        assert reason is not None and reason.startswith("takes at most 65535 batch entries and heads")


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
