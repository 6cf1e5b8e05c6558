"""The cost model on paper: its arithmetic, by hand."""

from __future__ import annotations

import pytest

from gpu.cost import H200, MMA_SHARE, cost, main, together

LOOP = {
    **{"tensor": 64, "flop": 64 * 4096, "xu": 32, "fma": 96, "heavy": 32, "alu": 64, "issue": 400},
    **{"shared": 16384, "global": 4096, "nested": 0},
}


def test_peak_is_that_of_the_data_sheet() -> None:
    assert H200.multiprocessors * H200.clock * H200.tensor / 1e12 == pytest.approx(989.4, abs=0.05)


def test_clocks_of_a_loop() -> None:
    found = cost(LOOP, threads=128, wgmma=False)
    assert found.clocks == pytest.approx(
        {
            "tensor": 4 * 64 * 4096 / 4096 / MMA_SHARE,
            "mufu": 4 * 32 * 32 / 16,
            "fma": 4 * 128 * 32 / 128,
            "alu": 4 * 64 * 32 / 64,
            "issue": 400,
            "shared": 4 * 16384 / 128,
            "l2": 4 * 4096 / H200.l2,
        }
    )
    assert found.binds == "l2"
    assert found.ceiling == pytest.approx(256 / (16384 / H200.l2))
    assert found.in_turn == pytest.approx(256 / (256 / MMA_SHARE + 400))
    starved = cost({**LOOP, "global": 16384}, threads=128, wgmma=False)
    assert starved.in_turn == starved.ceiling == pytest.approx(256 / (4 * 16384 / H200.l2))


def test_wgmma_reaches_the_peak_and_heavy_binds_half_a_pipe() -> None:
    found = cost({**LOOP, "global": 0, "shared": 0, "issue": 0, "heavy": 200, "fma": 0}, threads=128, wgmma=True)
    assert found.clocks["tensor"] == 256
    assert (found.binds, found.clocks["fma"]) == ("fma", 4 * 200 * 32 / 64)


def test_what_has_no_fraction_is_refused() -> None:
    with pytest.raises(ValueError, match="nested=8 of the loop"):
        cost({**LOOP, "nested": 8}, threads=128, wgmma=False)
    with pytest.raises(ValueError, match="flop=0"):
        cost({}, threads=128, wgmma=False)


def test_backward_of_two_kernels() -> None:
    assert together([(0.5, 4), (0.5, 3)], counted=5) == pytest.approx(0.5 * 5 / 7)


def test_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "FlashAttention-2" in lines[-2] and "346" in lines[-2]
