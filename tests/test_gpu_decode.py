"""Decoding (k5) in the executor: within the bounds of the suite, whatever the splits, and the same bits in each run.

The executor raises on races, divergence, and reads that are out of bounds or uninitialised.
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

from gpu.kernels import k5_decode as k5
from gpu.kernels.spec import HEAD_SIZES
from gpu.target import SIMULATED
from refattn.case import BiasSpec, Case, Dense, Packed
from refattn.inputs import make
from refattn.masks import Causal, Window
from tests.gpu_forward import Call, Tiles, check, decode, small, with_slopes

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: these run in the executor")

ONE = Tiles(warps=1)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
EVERY = {
    "plain": (small(), Tiles()),
    "one query of one head": (small(B=1, H=1, Hkv=1, Lq=1), ONE),
    "float16": (small(dtype="float16", family="peaked"), ONE),
    "rows of two blocks": (small(B=1, H=6, Hkv=1, Lq=5, Lk=33, mask=Causal("bottom_right")), ONE),
    "rows of two stripes": (small(B=1, H=6, Hkv=1, Lq=4, Lk=33, mask=Causal("bottom_right")), Tiles(1, row_tiles=2)),
    "16 queries": (small(B=1, H=2, Hkv=2, Lq=16, Lk=40, mask=Window(5, 3, "bottom_right")), ONE),
    "causal, top left": (small(Lq=5, mask=Causal("top_left"), family="peaked"), ONE),
    "causal, bottom right": (small(Lq=5, mask=Causal("bottom_right"), family="peaked"), ONE),
    "window": (small(Lq=3, mask=Window(20, 0, "bottom_right"), family="peaked"), ONE),
    "window, both sides": (small(Lq=3, mask=Window(4, 17, "top_left"), family="peaked"), ONE),
    "causal in a window": (small(Lq=5, mask=Causal("bottom_right") & Window(9, None, "bottom_right")), ONE),
    "more warps than chunks": (small(B=1, H=1, Hkv=1, Lk=140, Dv=32), Tiles(8, splits=1)),
    "rows without a key": (small(B=1, Lq=5, Lk=3, mask=Causal("bottom_right")), ONE),
    "no keys": (small(B=1, Lk=0), ONE),
    "no keys but a sink": (small(B=1, Lk=0, sinks="normal"), ONE),
    "sinks": (small(Lk=40, sinks="normal"), ONE),
    "lengths of keys": (small(B=3, Lk=50, k_lens=(50, 0, 17)), ONE),
    "lengths, causal": (small(B=3, Lq=3, k_lens=(50, 1, 17), Lk=50, mask=Causal("bottom_right")), ONE),
    "lengths of queries": (small(B=2, Lq=4, q_lens=(0, 3), k_lens=(9, 30), Lk=33, mask=Causal("bottom_right")), ONE),
    "packed": (small(B=3, Lq=3, q_lens=(3, 0, 2), k_lens=(20, 9, 40), Lk=40, storage=Packed()), ONE),
    "packed with gaps": (small(B=2, Lq=3, q_lens=(3, 2), k_lens=(20, 40), Lk=40, storage=Packed(gap=2)), ONE),
    "softcap": (small(softcap=2.5), ONE),
    "bias": (small(H=2, Lk=33, bias=BiasSpec("BHQK")), ONE),
    "bias, broadcast": (small(H=2, Lk=33, bias=BiasSpec("HK", "bfloat16"), mask=Causal("bottom_right")), ONE),
    "bias, one for each row": (small(H=2, Lk=33, bias=BiasSpec("BQ")), ONE),
    "negative scale": (small(scale=-0.3), ONE),
    "negative scale, softcap": (small(scale=-0.3, softcap=2.0), ONE),
    "scale 0": (small(scale=0.0, mask=Causal("bottom_right")), ONE),
    "large scores": (small(family="large_logits"), ONE),
    "scores that rise": (small(family="rising"), Tiles()),
    "D is not Dv": (small(D=64, Dv=32), ONE),
    "Dv is not D": (small(D=32, Dv=96), ONE),
    "D between sizes": (small(D=40, Dv=56), ONE),
    "odd D": (small(B=1, D=33, Dv=35, Lk=33), Tiles(1, vector=False)),
    "D=128": (small(B=1, H=2, Hkv=1, D=128, Dv=128, Lk=80), Tiles(1, splits=5)),
    "D=256": (small(B=1, H=1, Hkv=1, D=256, Dv=256, Lk=40), Tiles(1, splits=2)),
    "q in shared memory": (small(B=1), Tiles(1, resident=False)),
    "32 keys at a time": (small(B=1, Lk=130), Tiles(keys=32, splits=2)),
    "rows of heads side by side": (small(storage=Dense("BLHD")), ONE),
    "rows of entries side by side": (small(Lq=3, storage=Dense("LBHD")), ONE),
}


@pytest.mark.parametrize("what", EVERY)
def test_within_bounds(what):
    case, tiles = EVERY[what]
    problem = make(case)
    check(problem, decode(Call(problem), tiles))


@pytest.mark.parametrize("mask", [None, Causal("bottom_right")])
def test_alibi(mask):
    problem = with_slopes(make(small(Lq=3, Lk=40, k_lens=(40, 23), bias=BiasSpec("BHQK"), mask=mask)), SLOPES)
    check(problem, decode(Call(problem, SLOPES), ONE))


def test_all_of_the_modifiers():
    bias, mask = BiasSpec("HQK", "bfloat16"), Window(30, 0, "bottom_right")
    problem = make(small(Lq=3, Lk=40, scale=0.4, softcap=3.0, bias=bias, sinks="normal", mask=mask))
    check(problem, decode(Call(problem), Tiles()))


def test_bias_that_hides():
    """A bias of -inf hides keys, in one row all of them; the others are seen by splits that have hidden ones too."""
    drawn = make(small(B=1, H=2, Lk=40, bias=BiasSpec("BHQK")))
    bias = drawn.logical["bias"].copy()
    bias[..., 3:20] = bias[0, 1, 1] = -np.inf
    problem = replace(drawn, logical={**drawn.logical, "bias": bias})
    check(problem, decode(Call(problem), ONE))


@pytest.mark.parametrize("schedule", ["first", "last", 0, 1])
def test_schedules(schedule):
    problem = make(small(B=1, Lq=3, Lk=100, mask=Causal("bottom_right"), sinks="normal"))
    check(problem, decode(Call(problem), Tiles(schedule=schedule, splits=2)))


def test_same_bits_under_any_schedule():
    problem = make(small(B=1, Lq=3, Lk=100))
    runs = [decode(Call(problem), Tiles(schedule=schedule)) for schedule in ("first", "first", "last", 3)]
    for name in ("out", "lse"):
        assert len({run[name].tobytes() for run in runs}) == 1


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_any_number_of_splits(splits):
    """Three tiles a head, so that some splits have no keys."""
    problem = make(small(B=1, H=2, Lk=47, family="peaked", sinks="normal"))
    check(problem, decode(Call(problem), Tiles(1, splits=splits)))


def test_more_splits_than_the_merge_has_threads():
    problem = make(small(B=1, H=1, Hkv=1, Lq=1, Lk=600, family="peaked"))
    check(problem, decode(Call(problem), Tiles(1, splits=36)))


def test_rows_beyond_a_length():
    """They are written too: out 0, lse -inf; and without a sink."""
    q_lens = (0, 3)
    answer = decode(Call(make(small(Lq=4, q_lens=q_lens, k_lens=(9, 30), Lk=33, sinks="normal"))), ONE)
    for b, n in enumerate(q_lens):
        assert (answer["out"][b, :, n:] == 0).all()
        assert np.isneginf(answer["lse"][b, :, n:]).all()


@pytest.mark.parametrize("splits", [1, 3])
def test_nan_in_a_split_of_little_weight_is_seen(splits):
    """v[0] is NaN and visible; the weight of keys 0 to 39, and of all keys of its split, is 2**-369: 0 in float32."""
    drawn = make(small(B=1, H=1, Hkv=1, Lq=1, scale=1.0))
    q, k, v = (drawn.logical[name].copy() for name in "qkv")
    q[...], k[...], k[:, :, :40], v[:, :, 0, 5] = 1, 0, -8, np.nan
    problem = replace(drawn, logical={"q": q, "k": k, "v": v})
    out = decode(Call(problem), Tiles(1, splits=splits))["out"].astype(float)
    assert np.isnan(out[..., 5]).all()
    assert np.isfinite(np.delete(out, 5, -1)).all()


def test_other_entries_do_not_matter():
    """The same bits for an entry, whatever the lengths of the others."""
    answers = []
    for other in (1, 64, 70):
        problem = make(small(k_lens=(other, 33)))
        answers.append(decode(Call(problem), ONE))
    assert len({a["out"][1].tobytes() + a["lse"][1].tobytes() for a in answers}) == 1


@st.composite
def problems(draw: Any) -> tuple[Case, Tiles]:
    group, Lq = draw(st.sampled_from([(1, 1), (1, 5), (2, 3), (3, 6), (5, 1), (9, 2)]))
    B, Hkv, Lk = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(0, 90))
    sides = st.none() | st.integers(0, Lk)
    masks = st.sampled_from([None, Causal("top_left"), Causal("bottom_right")])
    masks |= st.builds(Window, sides, sides, st.sampled_from(["top_left", "bottom_right"]))
    lens = st.tuples(*[st.integers(0, Lk)] * B)
    fields = {
        "mask": draw(masks),
        "k_lens": draw(st.none() | lens),
        "scale": draw(st.sampled_from([None, None, -0.2, 0.0])),
        "softcap": draw(st.sampled_from([None, None, 2.0])),
        "bias": draw(st.none() | st.builds(BiasSpec, st.sampled_from(["BHQK", "K", "HQ"]), st.just("float32"))),
        "sinks": draw(st.sampled_from([None, "normal"])),
        "storage": Dense(draw(st.sampled_from(["BHLD", "BLHD"]))),
        "family": draw(st.sampled_from(["normal", "peaked", "large_logits"])),
        "dtype": draw(st.sampled_from(["bfloat16", "float16"])),
        "D": draw(st.sampled_from([32, 24])),
        "Dv": draw(st.sampled_from([32, 64])),
    }
    tiles = Tiles(
        draw(st.integers(1, 2)), draw(st.integers(1, 2)), 16, draw(st.booleans()), draw(st.booleans()),
        draw(st.integers(1, 5)), draw(st.sampled_from(["first", "last", 0, 1])),
    )  # fmt: skip
    return small(B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, seed=draw(st.integers(0, 9)), **fields), tiles


@settings(max_examples=12)
@given(problems())
def test_any_problem(drawn):
    case, tiles = drawn
    problem = make(case)
    check(problem, decode(Call(problem), tiles))


@given(
    st.integers(1, 4096), st.integers(1, 128), st.integers(0, 2**20), st.integers(1, 200), st.sampled_from(HEAD_SIZES),
)  # fmt: skip
def test_number_of_splits(heads, rows, Lk, multiprocessors, D):
    spec = k5.usual("bfloat16", D, D, rows)
    splits = k5.splits_for(heads, rows, Lk, multiprocessors, spec)
    assert 1 <= splits <= k5.MAX_SPLITS
    step = spec.warps * spec.keys
    assert splits == 1 or (splits - 1) * step < Lk  # no split is without a step


@pytest.mark.parametrize(
    "heads, Lk, least, most",
    [
        (8, 8192, 32, 33), (8, 64, 1, 1), (8, 2**20, 30, 33), (1, 2**20, 120, 128), (32, 4096, 7, 8), (264, 8192, 1, 1),
        (1024, 2**17, 1, 1),
    ],
)  # fmt: skip
def test_splits_fill_an_h200(heads, Lk, least, most):
    """132 multiprocessors with two blocks each, so 264 blocks at a time; 64 keys in a step."""
    assert least <= k5.splits_for(heads, 8, Lk, 132, k5.usual("bfloat16", 128, 128, 8)) <= most
