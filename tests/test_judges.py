"""Several judges at once, and a candidate that has its next case before the last is judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import candidates
import pytest
from test_worker import ends, posix

from refattn.calling import Local
from refattn.case import Case
from refattn.conform import BadContract, run
from refattn.judges import Judges
from refattn.record import read, recorded_run
from refattn.worker import CannotLoad

WANT = frozenset({"out"})
KERNEL = """
import ctypes, dataclasses, os, time
from pathlib import Path
from my_kernel import solve
from refattn.implementation import implementation
from refattn.precision import preset

Path(f"pid.{os.getpid()}").write_text("")
if Path("once.mark").exists() and len(list(Path().glob("pid.*"))) > 1:
    raise RuntimeError("the device is gone")

def precision(case):
    contract = preset(case.dtype)
    return dataclasses.replace(contract, exp_ulp=64.0) if case.id == "sourceless" else contract

@implementation(name="mine", precision=precision)
def attention(case, given):
    if case.id.startswith("slow"):
        Path("slow.began").write_text("")
        if case.id == "slow-stuck":
            ctypes.PyDLL(None).sleep(60)  # with the lock of the interpreter: no thread there can end it
        time.sleep(1.0 if case.id == "slow" else 60)
    if case.id == "kills-the-judge":
        os.kill(os.getppid(), 9)
        time.sleep(60)
    return solve(case, given)
"""


def cases(*ids: str) -> list[Case]:
    return [Case(id, "what the candidate does", want=WANT, B=2, Lq=3, Lk=4) for id in ids]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    candidates.install(tmp_path)
    (tmp_path / "mine.py").write_text(KERNEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        yield tmp_path


def pids(folder: Path) -> list[int]:
    return [int(path.suffix[1:]) for path in folder.glob("pid.*")]


def test_a_slow_case_holds_nobody_up_and_the_order_is_that_of_the_cases(folder: Path) -> None:
    told: list[str] = []
    suite = cases("slow", "b", "c", "d")
    report = recorded_run(
        "mine:attention", suite, folder / "run.jsonl", jobs=2, on_verdict=lambda v: told.append(v.case.id)
    )
    assert told == [v.case.id for v in report.verdicts] == [c.id for c in suite]
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    assert [line["case"]["id"] for line in lines if "case" in line] == ["b", "c", "d", "slow"], "as they came"
    assert [v.case.id for v in read(folder / "run.jsonl").verdicts] == told
    assert all(v.status == "passed" for v in report.verdicts)


@posix
def test_closing_ends_them_and_their_candidates(folder: Path) -> None:
    begin = time.monotonic()
    with Judges(2, "mine:attention", 60.0, None) as judges:
        verdicts = judges.verdicts(enumerate(cases("a", "slow-stuck", "c")))
        assert {next(verdicts)[0], next(verdicts)[0]} == {0, 2}
        while not (folder / "slow.began").exists() and time.monotonic() < begin + 20:
            time.sleep(0.02)
    assert time.monotonic() - begin < 30
    found = pids(folder)
    assert len(found) == 2 and all(ends(pid) for pid in found)


def test_what_a_judge_cannot_do_is_said(folder: Path) -> None:
    with pytest.raises(BadContract, match=r"precision\(sourceless\) is looser than"):
        run("mine:attention", cases("a", "b", "sourceless", "d"), jobs=2)
    for path in folder.glob("pid.*"):
        path.unlink()
    (folder / "once.mark").write_text("")
    with pytest.raises(CannotLoad, match="the device is gone"):
        run("mine:attention", cases("a", "b"), jobs=2)


@posix
def test_a_judge_that_ends_ends_the_run_with_its_case(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="judged kills-the-judge ended with exit code -9; .* use fewer jobs"):
        run("mine:attention", cases("a", "kills-the-judge", "c"), jobs=2)
    assert all(ends(pid) for pid in pids(folder))


@posix
def test_interrupt_of_many_leaves_no_child(folder: Path) -> None:
    (folder / "cases.json").write_text(json.dumps([case.to_json() for case in cases("a", "slow-very", "c", "d")]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    line = [sys.executable, "-m", "refattn", "check", "mine:attention", "--case-json", "cases.json", "--jobs", "2"]
    with subprocess.Popen(
        [*line, "--record", "run.jsonl"], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    ) as process:  # fmt: skip
        limit = time.monotonic() + 60
        while not ((folder / "run.jsonl").exists() and len(read_ids(folder / "run.jsonl")) == 3):
            assert time.monotonic() < limit and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "(interrupted)" in out and "1 of 4 passed" in out
    assert all(ends(pid) for pid in pids(folder))
    assert read(folder / "run.jsonl").interrupted and sorted(read_ids(folder / "run.jsonl")) == ["a", "c", "d"]


def read_ids(path: Path) -> list[str]:
    text = path.read_text()
    return [] if "\n" not in text else [v.case.id for v in read(path).verdicts]


def test_an_implementation_in_this_process_has_one_judge() -> None:
    for jobs in (0, 2):
        with pytest.raises(ValueError, match=f"jobs={jobs} must be >= 1, and 1 for an implementation in this process"):
            run(candidates.honest, cases("a"), jobs=jobs)


def test_the_next_case_is_handed_over_before_an_answer_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Told(Local):
        def start(self, problem: Any) -> None:
            events.append(f"start {problem.case.id}")
            super().start(problem)

    def judged(problem: Any, *rest: Any, **options: Any) -> Any:
        events.append(f"judge {problem.case.id}")
        return judge(problem, *rest, **options)

    module = sys.modules["refattn.examine"]
    judge = module.judge
    monkeypatch.setattr(module, "judge", judged)
    found = list(module.examined(Told(candidates.honest), enumerate(cases("a", "b", "c"))))
    assert events == ["start a", "start b", "judge a", "start c", "judge b", "judge c"]
    assert [(n, v.case.id, v.status) for n, v in found] == [(n, id, "passed") for n, id in enumerate("abc")]


def test_a_bad_contract_loses_no_verdict(folder: Path) -> None:
    told: list[str] = []
    with pytest.raises(BadContract):
        run("mine:attention", cases("a", "sourceless"), on_verdict=lambda v: told.append(v.case.id))
    assert told == ["a"]
