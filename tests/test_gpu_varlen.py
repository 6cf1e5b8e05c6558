"""Packed sequences (k6) in the executor: every sequence gets its tiles, within the bounds of the suite.

Packed inputs lie side by side, so that a row too far is read from the next sequence; gaps hold NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from gpu import simt
from gpu.kernels import k6_varlen as k6
from gpu.kernels.places import packed_tile
from gpu.target import SIMULATED
from refattn.case import BiasSpec, Case, Packed
from refattn.inputs import make
from refattn.masks import Causal, Window
from tests.gpu_forward import Call, Tiles, check, small, varlen, with_slopes

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: these run in the executor")

ONE = Tiles(warps=1)
SLOPES = np.array([0.5, 0.25], np.float32)


def packed(q_lens: tuple[int, ...], k_lens: tuple[int, ...] | None = None, gap: int = 0, **fields: Any) -> Case:
    k_lens = q_lens if k_lens is None else k_lens
    usual = {"B": len(q_lens), "H": 2, "Hkv": 1, "Lq": max(q_lens), "Lk": max(k_lens), "storage": Packed(gap)}
    return small(**{**usual, "q_lens": q_lens, "k_lens": k_lens, **fields})


EVERY = {
    "one sequence": (packed((33,)), ONE),
    "several": (packed((16, 1, 33, 17), (20, 5, 1, 40)), Tiles()),
    "none": (packed((5, 0, 0, 20, 0), (7, 3, 0, 0, 0)), ONE),
    "all empty": (packed((0, 0), (3, 0)), ONE),
    "many short": (packed((1, 2, 3, 1, 0, 1, 2, 5, 1), H=1), ONE),
    "as long as a tile": (packed((16, 32, 16)), ONE),
    "causal": (packed((20, 33, 3), (35, 30, 3), mask=Causal("bottom_right"), family="peaked"), ONE),
    "window": (packed((20, 33), (35, 30), mask=Window(5, 3, "top_left"), family="peaked"), ONE),
    "used lengths": (packed((5, 0, 20), (9, 4, 33), gap=13), ONE),
    "a tile that is not used": (packed((5, 20), (9, 33), gap=40), ONE),
    "sinks": (packed((5, 20), (0, 33), sinks="normal"), ONE),
    "bias": (packed((5, 20), (9, 33), bias=BiasSpec("BHQK")), ONE),
    "softcap": (packed((5, 20), (9, 33), softcap=2.0), ONE),
    "two stripes": (packed((30, 45), H=1, mask=Causal("top_left")), Tiles(1, row_tiles=2)),
    "element by element": (packed((5, 20), (9, 33), D=33, Dv=35, H=1), Tiles(1, vector=False)),
    "groups of heads": (packed((18, 3), H=6, Hkv=2), ONE),
}


@pytest.mark.parametrize("what", EVERY)
def test_within_bounds(what):
    case, tiles = EVERY[what]
    problem = make(case)
    check(problem, varlen(Call(problem), tiles))


def test_alibi():
    problem = with_slopes(make(packed((20, 3), (33, 7), bias=BiasSpec("BHQK"))), SLOPES)
    check(problem, varlen(Call(problem, SLOPES), ONE))


@pytest.mark.parametrize("schedule", ["first", "last", 0, 1])
def test_schedules(schedule):
    problem = make(packed((20, 3, 33), mask=Causal("bottom_right")))
    check(problem, varlen(Call(problem), Tiles(schedule=schedule)))


def test_same_bits_as_alone():
    """A sequence's answer does not depend on the others, nor on the schedule."""
    together = make(packed((20, 3, 33), mask=Causal("bottom_right")))
    q_lens = together.case.q_lens
    for schedule in ("first", 2):
        answer = varlen(Call(together), Tiles(schedule=schedule))
        first = 0
        for b, n in enumerate(q_lens):
            parts = {name: x[b : b + 1, :, :n] for name, x in together.logical.items()}
            alone = varlen(Call(type(together)(packed((n,), mask=Causal("bottom_right")), parts)), Tiles())
            assert answer["out"][first : first + n].tobytes() == alone["out"].tobytes()
            assert answer["lse"][:, first : first + n].tobytes() == alone["lse"].tobytes()
            first += n


def test_beyond_used_lengths_nothing_is_written():
    call = Call(make(packed((5, 20), (9, 33), gap=40)))
    answer = varlen(call, ONE)
    written = ~np.isnan(answer["lse"][0])
    assert written.tolist() == [True] * 5 + [False] * 40 + [True] * 20 + [False] * 40
    assert (np.isnan(answer["out"].astype(float)).any(axis=(1, 2)) == ~written).all()


@st.composite
def problems(draw: Any) -> tuple[Case, Tiles]:
    B = draw(st.integers(1, 6))
    q_lens, k_lens = (tuple(draw(st.lists(st.integers(0, 40), min_size=B, max_size=B))) for _ in range(2))
    sides = st.none() | st.integers(0, 40)
    masks = st.sampled_from([None, Causal("top_left"), Causal("bottom_right")])
    masks |= st.builds(Window, sides, sides, st.sampled_from(["top_left", "bottom_right"]))
    schedules = st.sampled_from(["first", "last", 0])
    tiles = Tiles(draw(st.integers(1, 2)), draw(st.integers(1, 2)), schedule=draw(schedules))
    gap, sinks = draw(st.sampled_from([0, 0, 3])), draw(st.sampled_from([None, "normal"]))
    return packed(q_lens, k_lens, gap, H=1, mask=draw(masks), sinks=sinks), tiles


@settings(max_examples=10)
@given(problems())
def test_any_problem(drawn):
    case, tiles = drawn
    problem = make(case)
    check(problem, varlen(Call(problem), tiles))


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20), st.sampled_from([16, 32, 64, 128]), st.integers(0, 99))
def test_every_row_is_in_one_tile(lens, rows, before):
    """The tiles of the grid have the rows of all sequences, once; at most one tile a sequence has none.

    `before`: tokens of the array before the first sequence, as a slice of cu_seqlens has them.
    """
    starts = np.cumsum([before, *lens], dtype=np.int32)
    spec = k6.usual("bfloat16", 64, 64, warps=rows // 16, row_tiles=1)
    tiles = k6.grid(int(starts[-1]), len(lens), 1, spec)
    found: list[tuple[int, int]] = []

    def look(_: Any) -> None:  # in the executor, since packed_tile reads by address
        for tile in range(tiles):
            b, own = packed_tile(np.int32(tile), np.int32(rows), np.int64(starts.ctypes.data), np.int32(len(lens)))
            found.append((int(b), int(own)))

    if tiles:
        simt.run(look, (1,), (1,), 0, (0,), [starts])
    assert all(own >= 0 for _, own in found)
    assert len(set(found)) == len(found)
    covered = {(b, own) for b, own in found if own * rows < lens[b]}
    assert covered == {(b, own) for b, n in enumerate(lens) for own in range(-(-n // rows))}
    assert len(found) - len(covered) <= len(lens) + -(-before // rows)
