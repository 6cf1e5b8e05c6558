"""The benchmark of the CPU: its arguments, formulas, rows and fits; no timing is judged."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.benchmarks.cpu import __main__ as command
from tests.benchmarks.cpu import rows, scaling, show, timing
from tests.benchmarks.cpu.ceilings import Ceiling
from tests.benchmarks.cpu.peers import PEERS, NotOffered
from tests.benchmarks.cpu.timing import QUICK, Plan, Timing
from tests.benchmarks.cpu.work import Work, agree, inputs

SCHEMA = {
    "implementation": str, "version": str, "dtype": str, "direction": str, "causal": bool,
    "B": int, "H": int, "Hkv": int, "Lq": int, "N": int, "D": int, "gflops": float, "seconds": float, "repeats": int,
}  # fmt: skip
SMALL = Work("forward", "float64", True, 48, 8, H=4, Hkv=4)
WORKS = [
    SMALL, replace(SMALL, direction="backward"), replace(SMALL, direction="both"),
    replace(SMALL, causal=False, Hkv=2, Lq=1), replace(SMALL, dtype="float32"), replace(SMALL, dtype="bfloat16"),
]  # fmt: skip
DIRECTIONS = ("forward", "backward", "both")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "float23"], "--only float23 is in no name; one is 'decode float32"),
        (["--plot", "picture.jpg"], "must end in .png or .svg"),
        (["--json", "no/such/folder/x.json"], "must be a file in a folder that exists"),
        (["--quick", "--only", "truth"], "is in no name"),
        (["--resume"], "must be the file of the run to go on from"),
        (["--resume", "--json", "no.json"], "must be the file of the run to go on from"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.options_of(arguments)
    assert message in capsys.readouterr().err


def test_only_selects_by_name() -> None:
    chosen = command.options_of(["--only", "backward float64"])
    assert {(w.direction, w.dtype) for w in chosen.works} == {("backward", "float64")}
    assert not chosen.scaling and not chosen.truth
    assert {w.Lq for w in command.options_of(["--only", "decode"]).works} == {1}
    alone = command.options_of(["--only", "scaling"])
    assert not alone.works and alone.scaling and not alone.truth
    everything = command.options_of([])
    assert everything.scaling and everything.truth


def test_problems() -> None:
    quick, full = list(rows.works(True)), list(rows.works(False))
    assert {w.N for w in quick} == {512, 2048}
    assert {512, 16384} <= {w.N for w in full} and {w.D for w in full} == {64, 128}
    for works in (quick, full):
        assert {w.direction for w in works} == set(DIRECTIONS)
        assert {w.dtype for w in works} == {"float32", "float64", "bfloat16"}
        assert len(set(map(str, works))) == len(works)
        square = [w.N for w in works if w.rows == w.N]
        assert square == sorted(square)  # the patience of later sizes rests on it


def test_flops() -> None:
    forward = 4 * 3 * 8 * 100 * 100 * 64
    assert Work("forward", "float32", False, 100, 64, B=3).flops == forward
    assert Work("forward", "float32", True, 100, 64, B=3).flops == forward / 2
    assert Work("backward", "float32", False, 100, 64, B=3).flops == 2.5 * forward
    assert Work("both", "float32", True, 100, 64, B=3).flops == 3.5 * forward / 2
    assert Work("forward", "float32", False, 100, 64, B=3, Hkv=2, Lq=1).flops == forward / 100
    assert Ceiling("matmul", "float32").flops == 2 * 1024**3


def test_rows() -> None:
    found = {"refattn.flash": Timing(0.5, 9, 0.5), "torch": Timing(1.0, 7, 1.0), "jax": Timing(4.0, 3, 4.0)}
    matmul = Timing(Ceiling("matmul", "float64").flops / 1e9, 5, 7.0)  # 1 GFLOP/s
    work = Work("forward", "float64", False, 5000, 50, H=1, Hkv=1)  # 5 GFLOP
    made = rows.rows_of(work, found, dict.fromkeys(found, "1.0"), matmul)
    assert [row["gflops"] for row in made] == [10, 5, 1.25]
    assert [row["of_best_peer"] for row in made] == [2, 1, 0.25]
    assert [row["of_matmul"] for row in made] == pytest.approx([10, 5, 1.25])
    assert [row["repeats"] for row in made] == [9, 7, 3]
    for row in made:
        assert all(type(row[key]) is kind for key, kind in SCHEMA.items())
    alone = rows.rows_of(work, {"refattn.flash": Timing(0.5, 9, 0.5)}, {"refattn.flash": "1.0"}, None)
    assert alone[0]["of_best_peer"] is alone[0]["of_matmul"] is None


def test_slope_of_known_data() -> None:
    N = np.array([1, 2, 4, 8, 16, 32, 64]) * 1024
    assert scaling.slope(N, 3e-9 * N**2.0) == pytest.approx(2)
    assert scaling.slope(N, 7.0 * N) == pytest.approx(1)
    assert scaling.slope(N, np.full(7, 5.0)) == pytest.approx(0)
    rough = 3e-9 * N**2.0 * np.exp([0.1, -0.1, -0.1, 0.2, -0.1, -0.1, 0.1])  # errors without a trend
    assert scaling.slope(N, rough) == pytest.approx(2)


def test_memory_is_that_of_the_call() -> None:
    assert scaling.grown(lambda: np.ones(5_000_000).sum())[1] == pytest.approx(40e6, rel=0.05)
    many = [np.ones(5000) for _ in range(1000)]
    del many[:-1]  # free, and not given back: the heap cannot shrink below the last
    assert scaling.grown(lambda: [np.ones(5000) for _ in range(1000)])[1] == pytest.approx(40e6, rel=0.1)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("work", WORKS, ids=str)
def test_peers_compute_attention(name: str, work: Work) -> None:
    for module in PEERS[name].needs:
        pytest.importorskip(module)
    x = inputs(work)
    try:
        call, read = PEERS[name].call(work, x)
    except NotOffered as error:
        pytest.skip(str(error))
    agree(work, x, read(call()))
    agree(work, x, read(call()))  # nothing is used up


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_not_attention_is_refused(direction: Any) -> None:
    work = replace(SMALL, direction=direction)
    x = inputs(work)
    call, read = PEERS["numpy naive"].call(replace(work, causal=False), x)
    with pytest.raises(ValueError, match="is off by"):
        agree(work, x, read(call()))
    with pytest.raises(ValueError, match="has shape"):
        agree(work, x, x.q[..., 1:])
    with pytest.raises(ValueError, match="is off by nan"):
        agree(work, x, np.full_like(x.q, np.nan))


class Pool:
    """Answers at once: the answer to `prepare`, or raises it; then the seconds of each turn."""

    def __init__(self, first: float | Exception, *turns: float | Exception) -> None:
        self.first, self.turns = first, list(turns)

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        answer: Any = self.first if function is timing.prepare else self.turns.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer if function is timing.prepare else (answer, 2))
        return future


def test_turns() -> None:
    pools: Any = {
        "a": Pool(1.0, 3.0, 1.0, 2.0), "b": Pool(2.0, 5.0, 5.0, 7.0), "dies": Pool(1.0, 1.0, BrokenProcessPool()),
        "has not": Pool(NotOffered("no float64")), "is wrong": Pool(ValueError("row 0 is off")),
        "was dead": Pool(BrokenProcessPool()),
    }  # fmt: skip
    reasons: dict[str, str] = {}

    def left_out(job: timing.Job, reason: str) -> None:
        reasons[job[0]] = reason

    found = timing.interleaved(pools, [(name, SMALL) for name in pools], Plan(0.0, 1.0, 3, 9, 1.0), left_out)
    assert found == {("a", SMALL): Timing(2.0, 6, 1.0), ("b", SMALL): Timing(5.0, 6, 5.0)}
    assert reasons == {
        "has not": "no float64", "is wrong": "ValueError: row 0 is off",
        "dies": "its process died", "was dead": "its process died",
    }  # fmt: skip


def test_a_turn_ends_when_its_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "REST", 0.1)
    monkeypatch.setattr(timing, "RESTS", 10**6)
    stop = threading.Event()

    def spin() -> None:
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            pass
        stop.set()

    threading.Thread(target=spin).start()
    timing.settle()
    assert stop.is_set()


def test_slow_ones_are_left_out() -> None:
    bench = rows.Bench(QUICK)
    small, large = (Work("forward", "float32", False, N, 64) for N in (512, 2048))
    bench.versions = {"torch": "1", "jax": "1"}
    pools: Any = {"torch": Pool(0.01, *[0.01] * 20), "jax": Pool(0.2, *[0.2] * 20)}
    assert len(bench.measure(pools, small)) == 2
    assert [row["implementation"] for row in bench.measure(pools, large)] == ["torch"]
    assert bench.left_out == {("jax", "too slow"): [str(large)]}


def test_a_run_goes_on_where_it_stopped() -> None:
    bench, later, other = rows.Bench(QUICK), rows.Bench(QUICK), rows.Bench(QUICK)
    small, large = (Work("forward", "float32", False, N, 64) for N in (512, 2048))
    bench.versions, later.versions, other.versions = {"jax": "1"}, {"jax": "1"}, {"jax": "2"}
    bench.measure({"jax": Pool(0.2, *[0.2] * 20)}, small)  # type: ignore[dict-item]
    written = json.loads(json.dumps(bench.state))
    later.resume(written)
    assert later.done == [str(small)] and later.rows == bench.rows
    assert later.measure({"jax": Pool(0.2)}, large) == []  # type: ignore[dict-item]
    assert later.left_out == {("jax", "too slow"): [str(large)]}  # the rate is known from the first run
    with pytest.raises(ValueError, match="must be those of today"):
        other.resume(written)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Processes, table and JSON, with NumPy alone and a small problem."""
    there = importlib.util.find_spec

    def find(name: str) -> Any:
        return None if name in ("numba", "torch", "onnx", "onnxruntime", "openvino", "jax") else there(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(command, "works", lambda quick: iter([SMALL]))
    path = tmp_path / "found.json"
    command.main(["--quick", "--only", "N=48", "--json", str(path)])
    printed = capsys.readouterr().out
    assert "not installed: refattn.flash (pip install 'refattn[cpu]')" in printed
    assert "not installed: onnxruntime (pip install onnxruntime onnx)" in printed
    assert "forward causal" in printed and "GFLOP/s, float64" in printed
    found = json.loads(path.read_text())
    assert {row["implementation"] for row in found["rows"]} == {"numpy naive", "refattn.attention", "refattn.streaming"}
    for row in found["rows"]:
        assert all(type(row[key]) is kind for key, kind in SCHEMA.items())
    assert found["missing"]["openvino"] == ["openvino"]
    assert {c["dtype"] for c in found["ceilings"]} == {"float32", "float64"}
    assert found["machine"]["cores"] >= 1 and found["machine"]["cpu"] and found["date"]
    assert found["versions"]["numpy naive"] == np.__version__
    assert found["done"] == [str(SMALL)]
    monkeypatch.setattr(command, "works", lambda quick: iter([SMALL, replace(SMALL, causal=False)]))
    arguments = ["--quick", "--only", "N=48", "--json", str(path), "--resume"]
    command.main([*arguments, "--minutes", "0"])
    assert "1 problems not begun" in capsys.readouterr().out
    assert json.loads(path.read_text())["rows"] == found["rows"]
    command.main(arguments)
    more = json.loads(path.read_text())
    assert len(more["done"]) == 2 and more["rows"][: len(found["rows"])] == found["rows"] != more["rows"]


def some_rows() -> list[dict[str, Any]]:
    made, matmul = [], Timing(Ceiling("matmul", "float32").flops / 145e9, 3, 0.01)
    for N, seconds in ((512, 0.01), (2048, 0.1)):
        for causal in (False, True):
            found = {"refattn.flash": Timing(seconds, 3, seconds), "torch": Timing(2 * seconds, 3, 2 * seconds)}
            work = Work("forward", "float32", causal, N, 64)
            made += rows.rows_of(work, found, dict.fromkeys(found, "1"), matmul)
    return made


def test_table() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    for table in show.tables(some_rows()):
        console.print(table)
    lines = [line.split() for line in console.export_text().splitlines() if "N=2048" in line]
    assert lines[0] == ["forward", "N=2048", "D=64", "86", "43", "2.00", "59%"]


def test_picture(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    show.draw(figure, some_rows(), [{"ceiling": "matmul", "dtype": "float32", "rate": 200.0}])
    figure.savefig(tmp_path / "picture.svg")
    assert [len(axes.lines) for axes in figure.axes] == [3, 3]
    labels = [label.get_text() for label in figure.legends[0].get_texts()]
    assert labels == ["refattn.flash", "torch", "matrix product"]


def test_picture_without_matplotlib_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "works", lambda quick: iter([SMALL]))
    monkeypatch.setattr(command, "processes", lambda names: contextlib.nullcontext({}))
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else there(name))
    with pytest.raises(SystemExit, match="matplotlib is not installed"):
        command.main(["--only", "N=48", "--plot", str(tmp_path / "x.png")])
