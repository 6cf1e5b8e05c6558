"""Kernels k1 and k2 as implementations of the suite, on NumPy arrays and without gpu.launch, and cases for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu.kernels import k1_naive, k2_gradients, k2_tiled
from gpu.kernels.arguments import NO_LIMIT, Band, Shape
from gpu.kernels.plain import Given
from refattn.alibi import slopes
from refattn.case import BiasSpec, Case, Dense, Packed, Strided
from refattn.implementation import Function
from refattn.inputs import BIAS, SINKS, Problem, make
from refattn.masks import Causal, Mask, Window
from refattn.precision import Precision, preset
from refattn.visibility import And

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Array = np.ndarray[Any, Any]
ALIBI = BiasSpec("HQK", "float32", "alibi")
"""Handed over as slopes."""
HARD = (
    "normal", "peaked", "ties", "rising", "falling", "large_logits", "all_negative_logits", "far_below", "underflow",
    "poisoned", "poisoned_pairs",
)  # fmt: skip


@dataclass
class Call:
    """A case and its arrays as the kernels are handed them; `x` has them by the kernels' names of arguments."""

    shape: Shape
    band: Band
    given: Given
    x: dict[str, Any]

    def arguments(self, *names: str) -> list[Any]:
        return [getattr(self, n) if n in ("shape", "band", "given") else self.x[n] for n in names]


def call_of(case: Case, arrays: Mapping[str, Array]) -> Call:
    """Outputs and workspace are full of NaN, so that what is not written is seen."""
    real = np.dtype(case.dtype)
    packed, (q_lens, k_lens) = isinstance(case.storage, Packed), case.lengths
    x: dict[str, Any] = {n: entries(arrays[n]) if packed else arrays[n] for n in ("q", "k", "v", "dout") if n in arrays}
    tokens = x["q"].shape[:3]
    for name, shape in {
        "out": (*tokens, case.Dv), "lse": tokens, "weights": (case.B, case.H, case.Lq, case.Lk), "delta": tokens,
        "dq": x["q"].shape, "dk": x["k"].shape, "dv": x["v"].shape, "dsinks": (case.H,),
    }.items():  # fmt: skip
        x[name] = np.full(shape, np.nan, real)
    x["dlse"] = arrays.get("dlse", np.zeros((1, 1, 1), real))
    if packed and "dlse" in arrays:
        x["dlse"] = arrays["dlse"][None]
    alibi = case.bias == ALIBI and case.q_lens is case.k_lens is None  # the family knows no lengths
    x["bias"] = arrays["bias"].astype(np.float32) if case.bias and not alibi else np.zeros((1, 1, 1, 1), np.float32)
    x["slopes"] = slopes(case.H).astype(real) if alibi else arrays.get("slopes", np.zeros(1, real))
    x["sinks"] = arrays.get("sinks", np.zeros(1, real))
    for side, lens, uses in (("q", q_lens, case.q_lens), ("k", k_lens, case.k_lens)):
        x[f"start_{side}"] = arrays.get(f"cu_seqlens_{side}", np.zeros(1, np.int32))
        x[f"used_{side}"] = np.array(lens if uses and not packed else arrays.get(f"seqused_{side}", [0]), np.int32)
    gap = packed and "seqused_q" in arrays
    flags = [packed, packed, *(gap or (lens is not None and not packed) for lens in (case.q_lens, case.k_lens))]
    flags += [case.bias is not None and not alibi, "sinks" in arrays, alibi or "slopes" in arrays, "dlse" in arrays]
    x["scale"] = real.type(case.D**-0.5 if case.scale is None else case.scale)
    x["softcap"] = real.type(case.softcap or 0)
    group = case.H // case.Hkv
    sizes = (case.B, case.H, group, case.Lq, case.Lk, case.D, case.Dv)
    return Call(Shape(*map(np.int32, sizes)), band_of(case.mask), Given(*map(np.int32, flags)), x)


def entries(x: Array) -> Array:
    """(tokens, heads, D) as the kernels have packed arrays: (1, heads, tokens, D)."""
    return x.swapaxes(0, 1)[None]


def band_of(mask: Mask | None) -> Band:
    left = right = NO_LIMIT
    align = "top_left"
    for part in (mask.left, mask.right) if isinstance(mask, And) else (mask,):
        if isinstance(part, Causal):
            right, align = 0, part.align
        elif isinstance(part, Window):
            left = min(left, NO_LIMIT if part.left is None else part.left)
            right, align = min(right, NO_LIMIT if part.right is None else part.right), part.align
    return Band(np.int32(left), np.int32(right), np.int32(align == "bottom_right"))


def answer(case: Case, call: Call, *names: str) -> dict[str, Array]:
    """Outputs as the case's storage has them; lse of float32 or float64."""
    found = {n: call.x[n] for n in names if n in case.want}
    if isinstance(case.storage, Packed):
        found = {n: x[0] if n == "lse" else x if n == "dsinks" else x[0].swapaxes(0, 1) for n, x in found.items()}
    return found


def naive(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    call = call_of(case, arrays)
    rows = case.B * case.H * case.Lq
    lengths = ("start_q", "start_k", "used_q", "used_k")
    for kernel, threads, names in zip(
        k1_naive.kernels(case.dtype),
        (rows * case.Lk, rows, rows * case.Dv),
        (
            ("q", "k", "bias", "slopes", *lengths, "weights", "shape", "band", "given", "scale", "softcap"),
            ("weights", "sinks", "start_q", "used_q", "lse", "shape", "given"),
            ("weights", "v", *lengths, "out", "shape", "given"),
        ),
        strict=True,
    ):
        launch(kernel, (k1_naive.grid(threads),), k1_naive.THREADS, 0, call.arguments(*names))
    return answer(case, call, "out", "lse")


FORWARD = (
    "q", "k", "v", "out", "lse", "bias", "sinks", "slopes", "start_q", "start_k", "used_q", "used_k", "shape", "band",
    "given", "scale", "softcap",
)  # fmt: skip


def tiled(tile_of: Callable[[Case], k2_tiled.Tile]) -> Callable[..., dict[str, Array]]:
    def run(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
        call, tile = call_of(case, arrays), tile_of(case)
        kernel, grid = k2_tiled.forward(case.dtype, tile), k2_tiled.grid(tile, call.shape)
        launch(kernel, grid, tile.rows, k2_tiled.shared_bytes(case.dtype, tile), call.arguments(*FORWARD))
        return answer(case, call, "out", "lse")

    return run


REST = FORWARD[5:6] + FORWARD[7:]


def gradients(tile_of: Callable[[Case], k2_gradients.Tile]) -> Callable[..., dict[str, Array]]:
    """out and lse by k2, then what the case wants of its gradients."""

    def run(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
        call, tile = call_of(case, arrays), tile_of(case)
        forward_tile = k2_tiled.Tile(tile.D, tile.rows, tile.others, tile.columns)
        launch(
            k2_tiled.forward(case.dtype, forward_tile), k2_tiled.grid(forward_tile, call.shape), tile.rows,
            k2_tiled.shared_bytes(case.dtype, forward_tile), call.arguments(*FORWARD),
        )  # fmt: skip
        delta, keys, queries, sinks = k2_gradients.kernels(case.dtype, tile)
        threads, shared = k2_gradients.THREADS, k2_gradients.shared_bytes(case.dtype, tile)
        rows = (-(-case.B * case.H * case.Lq // threads),)
        names = ("out", "dout", "dlse", "start_q", "used_q", "delta", "shape", "given")
        launch(delta, rows, threads, 0, call.arguments(*names))
        inputs = ("q", "k", "v", "dout", "lse", "delta")
        of_keys, of_queries = k2_gradients.keys_grid(tile, call.shape), k2_gradients.queries_grid(tile, call.shape)
        launch(keys, of_keys, tile.rows, shared, call.arguments(*inputs, "dk", "dv", *REST))
        launch(queries, of_queries, tile.rows, shared, call.arguments(*inputs, "dq", *REST))
        if "sinks" in arrays:
            names = ("sinks", "lse", "delta", "dsinks", "start_q", "used_q", "shape", "given")
            launch(sinks, (case.H,), threads, 0, call.arguments(*names))
        return answer(case, call, "out", "lse", "dq", "dk", "dv", "dsinks")

    return run


def launch(kernel: Any, grid: tuple[int, ...], threads: int, shared: int, arguments: list[Any]) -> None:
    if min(grid):
        kernel[grid, threads, 0, shared](*arguments)


def small(case: Case) -> k2_gradients.Tile:
    """Of 8 rows, 4 keys and 4 columns, so that small cases have many."""
    return k2_gradients.Tile(padded(case.D), padded(case.Dv), 8, 4, 4)


def small_forward(case: Case) -> k2_tiled.Tile:
    return k2_tiled.Tile(padded(case.D), 8, 4, 4)


def padded(D: int) -> int:
    return max(-(-D // 4) * 4, 4)


def implementation_of(function: Callable[..., Any], name: str, outputs: tuple[str, ...] = ("out", "lse")) -> Function:
    def attention(case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        return dict(function(case, given))

    return Function(attention, name, outputs=frozenset(outputs), precision_of=contract)


def contract(case: Case) -> Precision:
    """The usual one; of the backward, with weights that are made from lse."""
    usual = preset(case.dtype, case.out_dtype)
    return replace(usual, weights_from_lse=True, source="FlashAttention's backward") if case.backward else usual


def cases(want: tuple[str, ...] = ("out", "lse"), largest: int = 17) -> SearchStrategy[Case]:
    """Cases of every feature that the kernels have, of up to `largest` rows, keys and columns."""
    from hypothesis import strategies as st

    @st.composite
    def draw_case(draw: Any) -> Case:
        def one(*values: Any) -> Any:
            return draw(st.sampled_from(values))

        def within(low: int, high: int) -> int:
            return int(draw(st.integers(low, high)))

        B, Hkv, group = within(1, 2), within(1, 2), within(1, 2)
        Lq, Lk = one(1, 3, 4, 5, 8, 0, largest), one(1, 3, 4, 5, 9, 0, largest)
        bias = None
        if one(False, True):
            dims = one("K", "HK", "QK", "BHQK", "B")
            bias = one(ALIBI, BiasSpec(dims, "float32", one(*BIAS)))
        sinks = one(None, None, *SINKS)
        return Case(
            "drawn", "drawn at random", B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk,
            D=within(1, largest), Dv=within(1, largest), dtype=one("float32", "float64"),
            family=one(*HARD),
            seed=within(0, 99), want=frozenset(want) | ({"dsinks"} if sinks and "dq" in want else set()),
            mask=draw(masks()),
            q_lens=tuple(within(0, Lq) for _ in range(B)) if one(False, False, True) else None,
            k_lens=tuple(within(0, Lk) for _ in range(B)) if one(False, False, True) else None,
            scale=one(None, None, 1.0, -0.25, 0.0), softcap=one(None, None, 30.0, 1.0), bias=bias, sinks=sinks,
            storage=one(Dense(), Dense("BLHD"), Dense("LBHD"), Strided(40), Packed(), Packed(2)),
        )  # fmt: skip

    return draw_case()


def hard_case(family: str, want: tuple[str, ...] = ("out", "lse")) -> Case:
    """Rows without a key, and with none but a sink; a bias that hides keys from all rows."""
    return Case(
        "hard", "one of each family", B=1, H=2, Hkv=1, Lq=9, Lk=6, D=5, Dv=6, family=family, sinks="normal",
        mask=Causal("bottom_right"), bias=BiasSpec("K", "float32", "minus_inf"), want=frozenset(want),
    )  # fmt: skip


def prepared(case: Case) -> tuple[Case, dict[str, Array]]:
    """A case and its arrays."""
    return case, make(case).fresh()


def with_slopes(packed: bool, want: tuple[str, ...]) -> tuple[Case, dict[str, Array], Problem]:
    """A case with lengths, its arrays and slopes, and the same problem with ALiBi written out as a bias."""
    case = Case(
        "slopes", "ALiBi and lengths", B=3, H=2, Hkv=2, Lq=5, Lk=7, D=4, Dv=3, q_lens=(2, 5, 0), k_lens=(6, 3, 4),
        mask=Window(2, None, "bottom_right"), storage=Packed(1) if packed else Dense(), want=frozenset(want),
    )  # fmt: skip
    problem, m = make(case), np.array([0.5, 0.25], np.float32)
    i, j = np.ogrid[: case.Lq, : case.Lk]
    lq, lk = (np.reshape(lens, (case.B, 1, 1, 1)) for lens in case.lengths)
    bias = (-m[:, None, None] * abs(i + lk - lq - j)).astype(np.float32)
    told = replace(case, bias=BiasSpec("BHQK", "float32", "given"))
    return case, {**problem.fresh(), "slopes": m}, Problem(told, {**problem.logical, "bias": bias})


def masks() -> SearchStrategy[Mask | None]:
    """Bands of both alignments."""
    from hypothesis import strategies as st

    align = st.sampled_from(("top_left", "bottom_right"))
    side = st.sampled_from((None, 0, 1, 2, 5))
    causal, window = st.builds(Causal, align), st.builds(Window, side, side, align)
    both = align.flatmap(lambda a: st.builds(lambda left: Causal(a) & Window(left, None, a), side))
    return st.one_of(st.none(), causal, window, both)
