"""A run as a file: what is written is read back, and a run that was killed goes on as if it had not been."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import candidates
import pytest
from few_hypotheses import few_hypotheses  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import record
from refattn.case import Case
from refattn.cases import CASES, by_id
from refattn.conform import Report, run
from refattn.implementation import Implementation, implementation
from refattn.judge import Output, Verdict
from refattn.laws import rows
from refattn.precision import preset
from refattn.record import BadRecord, Record, read, recorded_run
from refattn.report import as_json
from refattn.report_json import verdict_as_json, verdict_of

IDS = ("full-tiny-f32", "causal-tiny-f32", "causal-br-1x2-f32", "causal-f64", "softcap-1-f32")
SUITE = tuple(map(by_id, IDS))
FAILING = {"causal-tiny-f32", "causal-f64"}
posix = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL and fcntl")


class Counted:
    """Wrong where there is a mask, and without softcaps; says of which cases it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def made(self, version: str = "1") -> Implementation:
        def attention(case: Case, given: Mapping[str, Any]) -> Any:
            self.calls.append(case.id)
            return candidates.ignores_masks.function(case, given)

        supports: Callable[[Case], str | None] = lambda case: "softcap" if case.softcap else None  # noqa: E731
        return implementation("counted", version=version, supports=supports)(attention)

    @property
    def judged(self) -> set[str]:
        return set(self.calls) & {case.id for case in SUITE}


def told(report: Report) -> dict[str, Any]:
    """All of a report but the time it took."""
    found = as_json(report)
    for verdict in found["verdicts"]:
        verdict["seconds"] = 0
    return found


def through_json(verdict: Verdict) -> Verdict:
    return verdict_of(json.loads(json.dumps(verdict_as_json(verdict, {}), allow_nan=False)))


numbers = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[numbers] * 6), st.text(), st.floats(min_value=1, allow_nan=False))
def test_a_verdict_survives(values: tuple[float, ...], text: str, ulp: float) -> None:
    ratio, rigorous, *rest = values
    contract = dataclasses.replace(preset("float32"), exp_ulp=ulp, source=text)
    verdict = Verdict(
        SUITE[0], "failed", (Output("out", False, ratio, rigorous, 1, 2, (0, 1, 2, 3), *rest),), (text, "\udc80\n"),
        ("note",), {"empty_lse": "-inf"}, contract.looser_than(preset("float32")), contract, 0.25, ("rms",),
        picture={"map": ["01."], "at": {"head": 3}},
    )  # fmt: skip
    assert repr(through_json(verdict)) == repr(verdict), "nan is not equal to itself, and says so"


def test_cases_and_verdicts_without_a_contract_survive() -> None:
    for case in (*CASES, *rows()):
        refused = Verdict(case, "unsupported", reasons=("no",))
        assert through_json(refused) == refused


def test_what_is_read_is_what_was_run(tmp_path: Path) -> None:
    path, counted = tmp_path / "run.jsonl", Counted()
    expected = {"causal-f64": "known"}
    options: dict[str, Any] = {"seed": 3, "expected": expected, "probing": True, "shrinking": True}
    report = recorded_run(counted.made(), SUITE, path, **options)
    plain = run(Counted().made(), SUITE, **options)
    assert plain.diagnosis and plain.smallest and plain.probed and len(plain.failures()) == 1
    assert told(report) == told(plain) == told(read(path))
    assert [v.picture for v in read(path).verdicts] == [v.picture for v in plain.verdicts] != [None] * 5

    again = Counted()
    assert told(recorded_run(again.made(), SUITE, path, **options)) == told(plain) and not again.calls


def test_after_a_kill_at_any_byte_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    whole = told(recorded_run(Counted().made(), SUITE, path, shrinking=True))
    data = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(data) if byte == ord("\n")]
    for cut in sorted({*ends, *random.Random(0).sample(range(len(data)), 12), 0, 1, 40, len(data) - 1}):
        path.write_bytes(data[:cut])
        there = {line["case"]["id"]: line["status"] for line in map(json.loads, data[:cut].split(b"\n")[1:-1])
                 if "case" in line}  # fmt: skip
        if cut >= ends[0]:
            assert read(path).interrupted == (cut < len(data))
        counted = Counted()
        report = recorded_run(counted.made(), SUITE, path, shrinking=True)
        assert told(report) == whole and path.read_bytes().endswith(b"\n")
        assert told(read(path)) == whole
        assert report.recorded == len(there)
        kept = {id for id, status in there.items() if status != "failed"}
        assert not counted.judged & kept, "run twice"
        assert report.again == (0 if cut == len(data) else list(there.values()).count("failed"))



def test_a_run_that_stops_at_a_failure_goes_on_to_that(tmp_path: Path) -> None:
    path, counted = tmp_path / "run.jsonl", Counted()
    first = recorded_run(counted.made(), SUITE, path, on_verdict=lambda v: v.status == "failed")
    assert len(first.verdicts) == 2 and read(path).interrupted
    second = recorded_run(counted.made(), SUITE, path, on_verdict=lambda v: v.status == "failed")
    assert told(second) == told(first)
    third = recorded_run(counted.made(), SUITE, path)
    assert told(third) == told(run(Counted().made(), SUITE))


def test_other_expectations_are_taken_at_once_and_written(tmp_path: Path) -> None:
    path, counted = tmp_path / "run.jsonl", Counted()
    recorded_run(counted.made(), SUITE, path)
    before = Counter(counted.calls)
    expected = {"causal-tiny-f32": "known", "full-tiny-f32": "it passes"}
    report = recorded_run(counted.made(), SUITE, path, expected=expected)
    plain = run(Counted().made(), SUITE, expected=expected)
    assert told(report) == told(read(path))
    for found in (report, plain):  # what it looks like is not asked of one that is expected, and is kept if known
        found.verdicts = [dataclasses.replace(v, notes=()) if v.case.id in expected else v for v in found.verdicts]
    assert told(report) == told(plain)
    assert [v.case.id for v in report.failures()] == ["causal-f64"] and [v.case.id for v in report.stale()]
    assert set(Counter(counted.calls) - before) == {"causal-f64"}, "only the failure that is left is needed again"


CHANGES: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("made with spec counted, and this is honest", lambda path: recorded_run(candidates.honest, SUITE, path)),
    ("made with seed 0, and this is 7", lambda path: recorded_run(Counted().made(), SUITE, path, seed=7)),
    ("made with implementation.version 1, and this is 2", lambda path: recorded_run(Counted().made("2"), SUITE, path)),
    ("made with cases.number 5, and this is 4", lambda path: recorded_run(Counted().made(), SUITE[:4], path)),
    ("made with cases.digest", lambda path: recorded_run(Counted().made(), (*SUITE[:4], SUITE[3]), path)),
)  # fmt: skip


@pytest.mark.parametrize(("message", "change"), CHANGES, ids=[message for message, _ in CHANGES])
def test_another_run_is_refused_by_name_and_leaves_the_file(tmp_path: Path, message: str, change: Any) -> None:
    path = tmp_path / "run.jsonl"
    recorded_run(Counted().made(), SUITE, path)
    before = path.read_bytes()
    with pytest.raises(BadRecord, match=f"{message}.*; name another file, or remove it") as error:
        change(path)
    assert str(path) in str(error.value) and path.read_bytes() == before


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.replace(b'"refattn": "', b'"refattn": "0.', 1), "made with refattn 0."),
        (lambda data: data.replace(b'"format": 1', b'"format": 2', 1), "format 2 must be 1"),
        (lambda data: data.replace(b'"case": ', b'"case"', 1), r"run.jsonl:2: .*; name another file"),
        (lambda data: data.replace(b'"status": ', b'"state": ', 1), "KeyError.*'status'"),
        (lambda data: b"# my notes", "is no record of a run; name another file"),
        (lambda data: b"# my notes\n" + data, "is no record of a run; name another file"),
    ],
    ids=["suite", "format", "no JSON", "no field", "notes", "notes before"],
)
def test_a_file_that_is_something_else_is_refused_and_left(tmp_path: Path, edit: Any, message: str) -> None:
    path = tmp_path / "run.jsonl"
    recorded_run(Counted().made(), SUITE, path)
    path.write_bytes(edit(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(BadRecord, match=message):
        recorded_run(Counted().made(), SUITE, path)
    assert path.read_bytes() == before


@posix
def test_two_runs_on_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Record(path), pytest.raises(BadRecord, match="another run writes it; wait for that, or name another file"):
        recorded_run(Counted().made(), SUITE, path)
    assert len(recorded_run(Counted().made(), SUITE, path).verdicts) == 5


def test_a_file_of_nothing_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"refattn": "0.1')
    with pytest.raises(BadRecord, match="no line is complete"):
        read(path)


KILLED = """
import os, time
from my_kernel import ignores_masks
from refattn.implementation import implementation

@implementation(name="killed", outputs=("out",))
def attention(case, given):
    with open("calls.log", "a") as log:
        log.write(case.id + "\\n")
    time.sleep(0.03)
    return ignores_masks.function(case, given)
"""


def command(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    line = [sys.executable, "-m", "refattn", "check", "killed:attention", "--case-json", "cases.json", *arguments]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment, cwd=folder)


@posix
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_anywhere_it_ends_as_if_it_had_not_been(tmp_path: Path, jobs: int) -> None:
    candidates.install(tmp_path)
    (tmp_path / "killed.py").write_text(KILLED)
    tiny = [case for case in CASES if case.chapter in ("basics", "shapes") and case.Lk < 20 and case.mask is None]
    cases = [SUITE[1], *tiny[:15], SUITE[3], *tiny[15:20]]
    (tmp_path / "cases.json").write_text(json.dumps([case.to_json() for case in cases]))
    record, log, chance = tmp_path / "run.jsonl", tmp_path / "calls.log", random.Random(jobs)
    options = ("--record", record.name, "--json", "killed.json", "--jobs", str(jobs))
    for _ in range(2):
        before = {v.case.id: v.status for v in read(record).verdicts} if record.exists() else {}
        lines = 2 + len(before) + chance.randrange(2, 7)
        log.write_text("")
        with command(tmp_path, *options) as process:
            limit = time.monotonic() + 60
            while not record.exists() or record.read_bytes().count(b"\n") < lines:
                assert process.poll() is None and time.monotonic() < limit
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.05))
            process.kill()
        calls = set(log.read_text().split())
        assert calls and not {id for id, status in before.items() if status != "failed"} & calls, "run twice"
        assert len(cases) > len(read(record).verdicts) > len(before)
    with command(tmp_path, *options) as process:
        assert process.wait(60) == 1
    with command(tmp_path, "--json", "whole.json") as process:
        assert process.wait(60) == 1
    killed, whole = (json.loads((tmp_path / file).read_text()) for file in ("killed.json", "whole.json"))
    for verdict in (*killed["verdicts"], *whole["verdicts"]):
        verdict["seconds"] = 0
    assert killed == whole == json.loads(json.dumps(told(read(record))))
    assert {v["case"]["id"] for v in whole["verdicts"] if v["status"] == "failed"} == FAILING
    assert whole["diagnosis"] and whole["smallest"]


def test_several_judges_say_what_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates.install(tmp_path)
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []
    one = run("my_kernel:ignores_masks", SUITE, seed=1)
    two = recorded_run(
        "my_kernel:ignores_masks", SUITE, tmp_path / "run.jsonl", jobs=2, seed=1,
        on_verdict=lambda v: seen.append(v.case.id),
    )  # fmt: skip
    assert told(one) == told(two) == told(read(tmp_path / "run.jsonl"))
    assert seen == [case.id for case in SUITE]


KERNEL = (
    "from refattn import attention as true\n"
    "def attention(q, k, v):\n"
    "    return true(q, k, v).out.astype(q.dtype)\n"
)


@pytest.mark.parametrize("file, edited", [
    ("solo.py", "solo:attention"), ("packed/__init__.py", "packed.kernel:attention"),
    ("packed/inner.cu", "packed.kernel:attention"), ("packed/kernel.py", "packed.kernel:attention"),
])  # fmt: skip
def test_a_record_does_not_outlive_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, edited: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "packed").mkdir()
    for name in ("solo.py", "packed/kernel.py"):
        (tmp_path / name).write_text(KERNEL)
    for name in ("packed/__init__.py", "packed/inner.cu", "packed/notes.txt"):
        (tmp_path / name).write_text("")
    path = tmp_path / "run.jsonl"
    recorded_run(edited, SUITE[:1], path)
    (tmp_path / "packed/notes.txt").write_text("not a source")
    assert recorded_run(edited, SUITE[:1], path).recorded == 1 and read(path).remarks == ()
    with (tmp_path / file).open("a") as source:
        source.write("# another\n")
    with pytest.raises(BadRecord, match="the kernel has changed since; name another file, or remove it"):
        recorded_run(edited, SUITE[:1], path)
    assert read(path).remarks == ("the kernel has changed since",)
    monkeypatch.chdir("/")
    assert "not found here" in read(path).remarks[0]


def test_a_record_does_not_outlive_refattn_or_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    recorded_run(Counted().made(), SUITE, path, timeout=5.0)
    with pytest.raises(BadRecord, match=r"made with limits.timeout 5.0, and this is 60.0"):
        recorded_run(Counted().made(), SUITE, path)
    real = record.sources
    monkeypatch.setattr(record, "sources", lambda spec: real(spec) | {"refattn": "0"})
    with pytest.raises(BadRecord, match="refattn has changed since"):
        recorded_run(Counted().made(), SUITE, path, timeout=5.0)
    assert read(path).remarks == ("refattn has changed since",)


def test_a_record_without_sources_is_read_and_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorded_run(Counted().made(), SUITE, path)
    header, *rest = path.read_bytes().splitlines(keepends=True)
    old = json.loads(header)
    del old["sources"], old["limits"]
    path.write_bytes(json.dumps(old).encode() + b"\n" + b"".join(rest[:-2]))
    assert read(path).remarks == ("4 of 5 cases, not complete", "it does not say of which sources it was made")
    with pytest.raises(BadRecord, match="does not say of which sources"):
        recorded_run(Counted().made(), SUITE, path)


@posix
def test_only_a_regular_file_is_a_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null"), Path("/dev/full")):
        with pytest.raises(BadRecord, match="is no regular file; name a file"):
            Record(path)
    with pytest.raises(BadRecord, match="is no file"):
        read(tmp_path)


@posix
def test_a_full_disk_leaves_a_record_that_goes_on(tmp_path: Path) -> None:
    import resource

    whole, path = tmp_path / "whole.jsonl", tmp_path / "run.jsonl"
    wanted = told(recorded_run(Counted().made(), SUITE, whole))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole.stat().st_size * 2 // 3, before[1]))
    try:
        with pytest.raises(BadRecord, match="File too large; what was written before is kept"):
            recorded_run(Counted().made(), SUITE, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes().endswith(b"\n") and read(path).verdicts
    assert told(recorded_run(Counted().made(), SUITE, path)) == wanted


@pytest.mark.parametrize("edit, message", [
    (lambda data: data.replace(b'"status": "passed"', b'"status": "fine"', 1), "status 'fine' must be one of"),
    (lambda data: data.replace(b'"reasons": []', b'"reasons": [1]', 1), "must be text"),
    (lambda data: data.replace(b'"format": 1', b'"format": true', 1), "format True must be 1"),
    (lambda data: data + b"[1]\n", "must be a JSON object"),
    (lambda data: data + b"[" * 100_000 + b"\n", "recursion"),
])  # fmt: skip
def test_a_corrupt_record_is_refused(tmp_path: Path, edit: Any, message: str) -> None:
    path = tmp_path / "run.jsonl"
    recorded_run(Counted().made(), SUITE, path)
    path.write_bytes(edit(path.read_bytes()))
    with pytest.raises(BadRecord, match=message):
        read(path)
    with pytest.raises(BadRecord, match=message):
        recorded_run(Counted().made(), SUITE, path)


@pytest.mark.parametrize("said, kept", [
    ("red \x1b[31m \x00 \ud800", r"ValueError: red \\x1b\[31m \\x00 \\ud800$"),
    ("begin" + "z" * 200_000 + "end", r"(?s)begin.*characters are left out.*zend$"),
])  # fmt: skip
def test_what_a_kernel_says_is_plain_and_short(tmp_path: Path, said: str, kept: str) -> None:
    def attention(case: Case, given: Mapping[str, Any]) -> Any:
        raise ValueError(said)

    path = tmp_path / "run.jsonl"
    report = recorded_run(implementation("raises")(attention), SUITE[:1], path)
    (reason,) = report.verdicts[0].reasons
    assert re.search(kept, reason) and len(reason) < 4200 and reason.isprintable() == ("\n" not in reason)
    assert reason.encode() and read(path).verdicts[0].reasons == (reason,)
