"""Schedules: which warp runs when, that each is reproducible, and how one is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import simt  # noqa: E402


@cuda.jit
def diary(seen):
    for step in range(4):
        seen.append((cuda.blockIdx.x, cuda.threadIdx.x, step))
        cuda.shfl_xor_sync(0xFFFFFFFF, step, 1)
    cuda.syncthreads()
    seen.append((cuda.blockIdx.x, cuda.threadIdx.x, 4))


def written(schedule: Any) -> list[tuple[int, int, int]]:
    seen: list[tuple[int, int, int]] = []
    simt.run(diary, 3, 128, 0, [seen], [], schedule)
    return seen


def warps(seen: list[tuple[int, int, int]]) -> list[tuple[int, int, bool]]:
    """(block, warp, whether after the barrier), as often as another takes over."""
    found: list[tuple[int, int, bool]] = []
    for block, thread, step in seen:
        if not found or found[-1] != (block, thread // 32, step == 4):
            found.append((block, thread // 32, step == 4))
    return found


def test_first_and_last_are_depth_first() -> None:
    up = [(b, w, after) for b in range(3) for after in (False, True) for w in range(4)]
    assert warps(written("first")) == up
    down = [(b, w, after) for b in (2, 1, 0) for after in (False, True) for w in (3, 2, 1, 0)]
    assert warps(written("last")) == down


@pytest.mark.parametrize("schedule", ["first", "last", 0, 7])
def test_a_schedule_is_reproducible(schedule: Any) -> None:
    once, again = written(schedule), written(schedule)
    assert once == again
    everything = sorted((b, t, s) for b in range(3) for t in range(128) for s in range(5))
    assert sorted(once) == everything


def test_seeds_differ_and_mix() -> None:
    drawn = [written(seed) for seed in range(4)]
    assert len({tuple(seen) for seen in drawn}) == 4
    assert len({tuple(t for b, t, s in seen if b == 0 and s == 0 and t < 32) for seen in drawn}) == 4, "order of lanes"
    assert len({tuple(dict.fromkeys(b for b, _, _ in seen)) for seen in drawn}) > 1, "order of blocks"
    assert any(len(warps(seen)) > 24 for seen in drawn), "a warp gives way at collectives"


def test_the_default_is_chosen_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(None) == written("first")
    monkeypatch.setenv("GPU_SCHEDULE", "3")
    assert written(None) == written(3)
    with simt.scheduled("last"):
        assert written(None) == written("last")
        with simt.scheduled(5):
            assert written(None) == written(5)
        assert written(None) == written("last")
    assert written(None) == written(3)
    monkeypatch.setenv("GPU_SCHEDULE", "sideways")
    with pytest.raises(ValueError, match="schedule='sideways' must be"):
        written(None)


@pytest.mark.parametrize("schedule", [True, 1.5, "", "-"])
def test_unknown_schedules_are_refused(schedule: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        written(schedule)


def test_a_launch_by_brackets_follows_the_default() -> None:
    seen: list[Any] = []
    with simt.scheduled("last"):
        diary[3, 128](seen)
    assert seen == written("last")


@cuda.jit
def launches(out):
    diary[1, 32]([])


def test_launches_do_not_nest() -> None:
    with pytest.raises(simt.InvalidLaunch, match="diary is launched while a kernel runs"):
        simt.run(launches, 1, 1, 0, [np.zeros(1)], [])
