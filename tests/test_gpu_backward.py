"""The backward (k4) in the executor: every element within the bounds of the suite, and the same bits in every run.

out and lse are the oracle's, rounded.  Inputs that must not be read hold NaN, and so do outputs before they are
written.  The executor raises on races, divergence, and reads that are out of bounds or uninitialised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from gpu.kernels import k4_backward as k4
from gpu.kernels.arguments import Band
from gpu.kernels.spec import HEAD_SIZES, Spec
from gpu.kernels.weights import weights_of
from gpu.target import SIMULATED
from refattn.case import BiasSpec, Case, Dense, Packed
from refattn.inputs import make
from refattn.masks import Causal, Window
from tests.gpu_backward import GRADIENTS, Backward, grad, gradients
from tests.gpu_forward import Tiles, check, with_slopes

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: these run in the executor")

ONE, WIDE = Tiles(warps=1), Tiles(warps=1, row_tiles=2, keys=32)
SLOPES = np.array([0.5, -0.25], np.float32)
WITH_DLSE = GRADIENTS | {"lse"}
EVERY: dict[str, tuple[Case, Tiles]] = {
    "plain": (grad(B=2), Tiles()),
    "one query, one key": (grad(Lq=1, Lk=1), ONE),
    "two stripes, wide tiles": (grad(Lq=37, Lk=70, family="peaked"), WIDE),
    "float16": (grad(dtype="float16", family="peaked"), Tiles()),
    "every head has its keys": (grad(H=2, Hkv=2), ONE),
    "groups of heads": (grad(H=6, Hkv=2, Lk=17), ONE),
    "causal, top left": (grad(Lq=40, Lk=40, mask=Causal("top_left"), family="peaked"), ONE),
    "causal, bottom right": (grad(mask=Causal("bottom_right"), family="peaked"), Tiles()),
    "causal, rows without a key": (grad(Lq=40, Lk=19, mask=Causal("bottom_right"), want=WITH_DLSE), WIDE),
    "causal, keys that nobody sees": (grad(Lq=19, Lk=70, mask=Causal("top_left")), ONE),
    "window": (grad(Lq=50, Lk=50, mask=Window(9, 0, "bottom_right"), family="peaked"), WIDE),
    "window, both sides": (grad(Lq=40, Lk=50, mask=Window(3, 18, "top_left")), ONE),
    "window beyond the keys": (grad(Lq=40, Lk=5, mask=Window(2, None, "top_left")), ONE),
    "causal in a window": (grad(mask=Causal("bottom_right") & Window(9, None, "bottom_right")), ONE),
    "sinks, dlse": (grad(B=2, sinks="normal", mask=Causal("bottom_right"), Lq=30, Lk=19,
                         want=WITH_DLSE | {"dsinks"}), ONE),
    "no keys but a sink": (grad(Lk=0, sinks="normal", want=WITH_DLSE | {"dsinks"}), ONE),
    "no keys": (grad(Lk=0), ONE),
    "no queries": (grad(Lq=0), ONE),
    "lengths": (grad(B=3, q_lens=(19, 0, 7), k_lens=(5, 9, 37), mask=Causal("bottom_right"), want=WITH_DLSE), ONE),
    "packed": (grad(B=3, q_lens=(19, 0, 3), k_lens=(17, 9, 37), mask=Causal("top_left"), storage=Packed()), ONE),
    "packed with gaps": (grad(B=2, q_lens=(19, 3), k_lens=(17, 37), storage=Packed(3), sinks="normal"), Tiles()),
    "softcap": (grad(softcap=1.5, family="peaked"), Tiles()),
    "bias": (grad(bias=BiasSpec("BHQK")), ONE),
    "bias, broadcast": (grad(bias=BiasSpec("HK", "bfloat16"), mask=Causal("bottom_right")), ONE),
    "negative scale": (grad(scale=-0.3, mask=Causal("top_left")), ONE),
    "negative scale, softcap": (grad(scale=-0.3, softcap=2.0), ONE),
    "scale 0": (grad(scale=0.0, mask=Causal("bottom_right"), k_lens=(20,)), ONE),
    "large scores": (grad(family="large_logits"), ONE),
    "D is not Dv": (grad(D=64, Dv=32), ONE),
    "Dv is not D": (grad(D=32, Dv=96), ONE),
    "D between sizes": (grad(D=40, Dv=56), ONE),
    "D=128": (grad(H=1, D=128, Dv=128), ONE),
    "D=256": (grad(H=1, D=256, Dv=256, Lq=9, Lk=17), ONE),
    "rows of heads side by side": (grad(B=2, storage=Dense("BLHD")), ONE),
    "rows of entries side by side": (grad(B=2, storage=Dense("LBHD")), ONE),
}  # fmt: skip


@pytest.mark.parametrize("what", EVERY)
def test_within_bounds(what):
    case, tiles = EVERY[what]
    problem = make(case)
    check(problem, gradients(Backward(problem), tiles))


@pytest.mark.parametrize("sizes", [(32, 32), (64, 32), (32, 64)])
def test_dk_and_dv_apart(sizes):
    problem = make(grad(D=sizes[0], Dv=sizes[1], mask=Causal("bottom_right")))
    apart, both = gradients(Backward(problem), ONE, apart=True), gradients(Backward(problem), ONE)
    check(problem, apart)
    assert all(apart[name].tobytes() == both[name].tobytes() for name in GRADIENTS)


@pytest.mark.parametrize("mask", [None, Causal("bottom_right")])
def test_alibi(mask):
    problem = with_slopes(make(grad(B=2, k_lens=(37, 20), bias=BiasSpec("BHQK"), mask=mask)), SLOPES)
    check(problem, gradients(Backward(problem, SLOPES), ONE))


def test_all_of_the_modifiers():
    bias, mask = BiasSpec("HQK", "bfloat16"), Window(30, 0, "bottom_right")
    problem = make(grad(scale=0.4, softcap=3.0, bias=bias, sinks="normal", mask=mask, want=WITH_DLSE | {"dsinks"}))
    check(problem, gradients(Backward(problem), WIDE))


def test_bias_that_hides():
    """A bias of -inf hides keys, in one row all of them; where the mask hides, a bias is NaN or +inf."""
    drawn = make(grad(Lq=37, Lk=37, bias=BiasSpec("BHQK"), mask=Window(9, 0, "top_left")))
    bias = drawn.logical["bias"].copy()
    bias[..., 3:20] = bias[0, 1, 5] = -np.inf
    i, j = np.indices((37, 37))
    bias[..., i < j], bias[..., i > j + 9] = np.nan, np.inf
    problem = replace(drawn, logical={**drawn.logical, "bias": bias})
    check(problem, gradients(Backward(problem), ONE))


def test_scores_far_below_zero():
    """2**(0 - less) overflows: what stands in for keys and rows that do not exist must not be weighed."""
    drawn = make(grad(B=2, Lq=19, Lk=37, k_lens=(37, 20), scale=1.0))
    k = drawn.logical["k"].copy()
    k[..., 0] = -64
    q = drawn.logical["q"].copy()
    q[..., 0] = 4
    problem = replace(drawn, logical={**drawn.logical, "q": q, "k": k})
    for tiles in (ONE, WIDE):
        check(problem, gradients(Backward(problem), tiles))


@pytest.mark.parametrize("sizes", [(32, 32), (33, 35)])
def test_element_by_element(sizes):
    """Rows at odd distances."""
    problem = make(grad(H=1, D=sizes[0], Dv=sizes[1]))
    call = Backward(problem)
    call.spread()
    check(problem, gradients(call, Tiles(warps=1, vector=False)))


@pytest.mark.parametrize("gap", [0, 20])
def test_grid_that_needs_no_lengths(gap):
    lens = (19, 0, 3, 33), (17, 9, 0, 40)
    case = grad(B=4, Lq=33, Lk=40, q_lens=lens[0], k_lens=lens[1], mask=Causal("bottom_right"), storage=Packed(gap))
    problem = make(case)
    found, usual = gradients(Backward(problem), ONE, varlen=True), gradients(Backward(problem), ONE)
    check(problem, found)
    assert all(found[name].tobytes() == usual[name].tobytes() for name in GRADIENTS)


def test_what_is_beyond_a_length_is_zero():
    for storage in (Dense(), Packed(20)):
        case = grad(B=2, q_lens=(7, 19), k_lens=(20, 3), storage=storage, family="peaked")
        found = gradients(Backward(make(case)), Tiles())
        for name, lens, start in (("dq", (7, 19), (0, 27)), ("dk", (20, 3), (0, 40)), ("dv", (20, 3), (0, 40))):
            x = found[name].astype(np.float64)
            for b, n in enumerate(lens):
                rest = x[b, :, n:] if isinstance(storage, Dense) else x[start[b] + n : start[b] + n + 20]
                assert (rest == 0).all(), (name, storage)


def test_rows_that_see_nothing_are_zero():
    """Their dlse, out and dout count for nothing in dq: lse is -inf there."""
    drawn = make(grad(Lq=40, Lk=19, mask=Causal("bottom_right"), want=WITH_DLSE))
    dlse = drawn.logical["dlse"].copy()
    dlse[..., :21] = np.nan
    call = Backward(replace(drawn, logical={**drawn.logical, "dlse": dlse}))
    call.given["out"][:, :, :21] = np.nan
    found = gradients(call, ONE)
    assert (found["dq"][:, :, :21].astype(np.float64) == 0).all()
    assert np.isposinf(call.known[:, :, :21, 0]).all() and (call.known[:, :, :21, 1] == 0).all()
    check(drawn, found)


@pytest.mark.parametrize("apart", [False, True])
def test_same_bits_under_any_schedule(apart):
    problem = make(grad(B=2, Lk=40, mask=Causal("bottom_right"), sinks="normal"))
    schedules = ("first", "first", "last", 0, 1)
    runs = [gradients(Backward(problem), Tiles(schedule=schedule), apart) for schedule in schedules]
    check(problem, runs[0])
    for name in runs[0]:
        assert len({run[name].tobytes() for run in runs}) == 1, name


def test_other_entries_do_not_matter():
    """The same bits for an entry, whatever the lengths of the others."""
    runs = [gradients(Backward(make(grad(B=2, k_lens=(n, 33), q_lens=(n % 20, 19)))), ONE) for n in (1, 37)]
    for name in GRADIENTS:
        assert len({run[name][1].tobytes() for run in runs}) == 1, name


def test_nan_reaches_only_rows_that_see_it():
    """v[16] is seen by queries 16 to 18, in a tile that other queries have too."""
    drawn = make(grad(mask=Causal("top_left")))
    v = drawn.logical["v"].copy()
    v[:, :, 16] = np.nan
    call = Backward(drawn)
    call.given["v"] = v
    dq = gradients(call, ONE)["dq"].astype(np.float64)
    assert np.isfinite(dq[:, :, :16]).all() and np.isnan(dq[:, :, 16:]).all()


@given(st.booleans(), st.integers(-70, 70), st.integers(-3, 40), st.integers(0, 70), st.integers(0, 70))
def test_full_tiles_are_those_in_which_nothing_is_hidden(transposed, shift, exist, left, right):
    band = Band(np.int32(left), np.int32(right), np.int32(0))
    full = weights_of(Spec("bfloat16", 32, 32), 1, 32, transposed).full(np.int32(shift), np.int32(exist), band)
    down, across = np.indices((16, 32))
    away = shift + (across - down if transposed else down - across)
    assert full == bool(((away <= left) & (-away <= right) & (across < exist)).all())


@st.composite
def problems(draw: Any) -> tuple[Case, Tiles, bool]:
    B, Hkv, group = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 3), (1, 2, 2)]))
    Lq, Lk = draw(st.integers(0, 40)), draw(st.integers(0, 50))
    sides = st.none() | st.integers(0, max(Lq, Lk))
    masks = st.sampled_from([None, Causal("top_left"), Causal("bottom_right")])
    masks |= st.builds(Window, sides, sides, st.sampled_from(["top_left", "bottom_right"]))
    q_lens, k_lens = (draw(st.none() | st.tuples(*[st.integers(0, n)] * B)) for n in (Lq, Lk))
    packed = q_lens is not None and k_lens is not None and draw(st.booleans())
    fields = {
        "mask": draw(masks), "q_lens": q_lens, "k_lens": k_lens,
        "scale": draw(st.sampled_from([None, None, -0.2, 0.0])),
        "softcap": draw(st.sampled_from([None, None, 2.0])),
        "bias": draw(st.none() | st.builds(BiasSpec, st.sampled_from(["BHQK", "K", "HQ"]), st.just("float32"))),
        "sinks": draw(st.sampled_from([None, "normal"])),
        "storage": Packed(draw(st.integers(0, 2))) if packed else Dense(draw(st.sampled_from(["BHLD", "BLHD"]))),
        "family": draw(st.sampled_from(["normal", "peaked", "large_logits"])),
        "dtype": draw(st.sampled_from(["bfloat16", "float16"])),
        "D": draw(st.sampled_from([32, 24])), "Dv": draw(st.sampled_from([32, 64])),
    }  # fmt: skip
    want = GRADIENTS | draw(st.sampled_from([{"lse"}, set()])) | ({"dsinks"} if fields["sinks"] else set())
    tiles = Tiles(
        warps=draw(st.integers(1, 2)), row_tiles=draw(st.integers(1, 2)), keys=draw(st.sampled_from([16, 32])),
        vector=draw(st.booleans()), schedule=draw(st.sampled_from(["first", "last", 0, 1])),
    )  # fmt: skip
    case = grad(B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, seed=draw(st.integers(0, 9)), want=want, **fields)
    return case, tiles, draw(st.booleans())


@settings(max_examples=12)
@given(problems())
def test_any_problem(drawn):
    case, tiles, apart = drawn
    problem = make(case)
    varlen = isinstance(case.storage, Packed)
    check(problem, gradients(Backward(problem), tiles, apart, varlen))


@given(
    st.sampled_from(HEAD_SIZES), st.sampled_from(HEAD_SIZES), st.booleans(), st.lists(st.integers(0, 999), min_size=1)
)  # fmt: skip
def test_tiles_and_grids(D, Dv, softcap, lens):
    """Every head size has tiles that fit an H100's shared memory, and blocks that cover the rows."""
    ways = k4.usual_keys("bfloat16", D, Dv, softcap=softcap)
    assert {outputs for _, outputs in ways} in ({"both"}, {"dk", "dv"})
    for spec, outputs in ways:
        assert k4.keys_bytes(spec, outputs) <= 227 * 1024
    spec = k4.usual_queries("bfloat16", D, Dv, softcap=softcap)
    assert k4.queries_bytes(spec) <= 227 * 1024
    longest = -(-max(lens) // spec.rows)
    assert k4.blocks(max(lens), len(lens), 3, spec) == longest * len(lens) * 3
    assert k4.blocks(sum(lens), len(lens), 3, replace(spec, varlen=True)) >= sum(-(-n // spec.rows) for n in lens) * 3


def test_refusals():
    with pytest.raises(ValueError, match="outputs='dq' must be both, dk or dv"):
        k4.keys_kernel(Spec("bfloat16", 32, 32), "dq")
