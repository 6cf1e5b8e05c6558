"""`refattn check`: which cases, which of them are known to fail, and what a run says and leaves as it goes."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
import test_cli
from few_hypotheses import few_hypotheses  # noqa: F401
from test_cli import BASIC, MASKED, Run

from refattn import cli, expected
from refattn.cases import CASES, FULL, by_id, select
from refattn.check_cases import _check_size
from refattn.check_command import progress_lines
from refattn.judge import Verdict
from refattn.laws import rows

folder, refattn = test_cli.folder, test_cli.refattn  # the fixtures


def test_sections_of_expected_failures_and_what_is_shipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = folder / "lists"
    lists.mkdir()
    path = lists / "lib.txt"
    path.write_text(f"{BASIC}  # all\n[lib-a lib]  # these two\n{MASKED}  # some\n[lib-b]\ncausal-f64\n")
    monkeypatch.setattr(expected, "SHIPPED", lists)
    assert [expected.shipped(spec) for spec in ("lib", "lib-c", "other", "lib:f")] == [path, path, None, None]
    some = {BASIC: "all", MASKED: "some"}
    for spec, found in (
        ("lib", some),
        ("lib-a", some),
        ("lib-b", {BASIC: "all", "causal-f64": "no reason given"}),
        ("lib-c", {BASIC: "all"}),
    ):
        assert expected.expected_failures(path, spec, ()) == found
    law = rows()[0].id
    path.write_text(f"{law}  # of laws too\n")
    assert expected.expected_failures(path, "lib", ()) == {law: "of laws too"}


@pytest.mark.parametrize("path", sorted(expected.SHIPPED.glob("*.txt")), ids=lambda path: path.name)
def test_shipped_lists_are_read_and_say_why(path: Path) -> None:
    assert importlib.util.find_spec(f"refattn.adapters.{path.stem}"), "a list without an adapter"
    specs = {path.stem} | {name for line in path.read_text().splitlines() if line.startswith("[")
                           for name in line.strip("[] ").split()}  # fmt: skip
    for spec in specs:
        assert expected.shipped(spec) == path
        assert "no reason given" not in expected.expected_failures(path, spec, ()).values()


def test_what_is_shipped_is_used_for_a_bare_name(refattn: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that passes though it is listed is told, and fails only where the list is the user's own."""
    lists = folder / "known"
    lists.mkdir(exist_ok=True)
    (lists / "refattn.txt").write_text(f"{MASKED}  # lib 1.0 gave NaN\n")
    monkeypatch.setattr(expected, "SHIPPED", lists)
    arguments = ["check", "refattn", "--case", MASKED, "--case", BASIC, "--junit", "shipped.xml"]
    code, out, _ = refattn(*arguments)
    assert code == 0 and f"stale: {MASKED} passes, but is listed as an expected failure: lib 1.0 gave NaN; it" in out
    assert ElementTree.parse(folder / "shipped.xml").getroot()[0].get("failures") == "0"
    code, out, _ = refattn(*arguments, "--expected-failures", lists / "refattn.txt")
    assert code == 1 and out.count("stale: ") == 1
    assert ElementTree.parse(folder / "shipped.xml").getroot()[0].get("failures") == "1"


def test_only_and_skip(refattn: Run) -> None:
    def listed(*words: str) -> set[str]:
        code, out, _ = refattn("list", *words)
        assert code == 0
        return {text.split()[0] for text in out.splitlines()}

    usual = select()
    for word in ("gqa", "masks", "bfloat16", "causal_top_left", "causal-f64", "quant=*", "causal*"):
        has = {c.id for c in usual if any(fnmatch.fnmatchcase(n, word) for n in
                                          (c.id, c.chapter, c.dtype, *c.flags, *c.features()))}  # fmt: skip
        assert has and listed("--only", word) == has
        assert listed("--skip", word) == {c.id for c in usual} - has
        assert listed("--only", word, "--skip", word) == set()
    assert listed("--only", "masks", "--only", "heads") == listed("--chapter", "masks", "--chapter", "heads")
    assert listed("--only", "gqa", "--chapter", "masks") == listed("--only", "gqa") & listed("--chapter", "masks")
    assert listed("--only", "huge") == listed("--chapter", "huge") >= listed("--only", "huge-*")
    assert {by_id(id).chapter for id in listed("--only", "float16")}.isdisjoint(FULL)
    assert "huge" in {by_id(id).chapter for id in listed("--only", "float16", "--full")}


def test_progress_is_told_where_stderr_is_no_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 4.0, 11.0, 15.0, 20.0, 22.0])
    monkeypatch.setattr("refattn.check_command.time.monotonic", lambda: next(clock))
    tell = progress_lines(5)
    for status in ("passed", "failed", "passed", "failed", "passed"):
        tell(Verdict(by_id(BASIC), status))  # type: ignore[arg-type]
    assert capfd.readouterr() == ("", "2 of 5, 1 failed, 11 s\n5 of 5, 2 failed, 22 s\n")


def test_record_goes_on_and_refuses(refattn: Run, folder: Path) -> None:
    base = ["check", "my_kernel:ignores_masks", "--record", "run.jsonl", "--case", MASKED, "--case", "causal-f64"]
    code, first, _ = refattn(*base, "-x")
    assert code == 1 and "1 not run" in first
    code, second, _ = refattn(*base)
    assert code == 1 and "going on: 1 of 2 cases were judged before; 1 that failed are run again" in second
    code, third, _ = refattn(*base, "--json", "third.json")
    assert code == 1 and "going on: 2 of 2 cases were judged before\n" in third
    plain = refattn(*base[:2], *base[4:])[1]
    assert [line for line in third.splitlines() if not line.startswith("going on")] == plain.splitlines()
    assert json.loads((folder / "third.json").read_text())["diagnosis"]
    code, out, err = refattn(*base, "--seed", 1)
    assert (code, out) == (2, "") and "--record: run.jsonl was made with seed 0, and this is 1; name another" in err
    code, _, err = refattn("check", "--case", BASIC, "--record", "my_kernel.py")
    assert code == 2 and "my_kernel.py is no record of a run" in err


def test_what_is_unsupported_is_told_by_reason(refattn: Run, folder: Path) -> None:
    (folder / "flagged.py").write_text("def attention(q, k, v, softcap=None, is_causal=False, block=64): return q\n")
    base = ["check", "flagged:attention", "--chapter", "modifiers", "--chapter", "transforms", "--dtype", "float32"]
    few, every = ([x for x in refattn(*base, *more)[1].splitlines() if "FAIL" not in x] for more in ([], ["-v"]))
    told, all_told = ([x for x in lines if x.startswith("unsupported: ")] for lines in (few, every))
    outputs = "unsupported: declares none of the outputs; see @implementation(outputs=...): "
    assert told[0].startswith(outputs) and sum(x.startswith(outputs) for x in all_told) == 1
    assert len(told) == 8 < len(all_told) and told[-1].endswith(" cases; -v shows all")
    hidden = sum(len(x.rpartition(": ")[2].split()) for x in all_told[7:])
    assert told[-1] == f"unsupported: {len(all_told) - 7} other reasons: {hidden} cases; -v shows all"
    refused = {c.id for c in select((), ["modifiers", "transforms"], ["float32"])}
    listed = [id for x in all_told for id in x.rpartition(": ")[2].split()]
    assert len(listed) == len(set(listed)) and refused.issuperset(listed) and "more" not in listed
    assert "never given: is_causal block: no case has an option so named; " in "\n".join(few)
    text = " ".join("\n".join(few).split())
    assert "found: default scale: neither; unsupported: scale, causal top_left, causal bottom_right, window" in text


def test_the_smallest_is_one_that_fails_as_most_do(refattn: Run, folder: Path) -> None:
    text = "def attention(q, k, v):\n    if k.shape[2] == 1:\n        raise ValueError('one key')\n    return 0 * q\n"
    (folder / "zero.py").write_text(text)
    cases = [x for case in ("one-token-f32", "full-f32", "full-f16") for x in ("--case", case)]
    out = refattn("check", "zero:attention", *cases)[1]
    assert "one key" in out and "'What is left of full-" in out


def test_arrays_of_another_library_are_spoken_of(refattn: Run, folder: Path) -> None:
    (folder / "wants.py").write_text("def attention(q, k, v):\n    return q.contiguous()\n")
    hint = '@implementation(arrays="torch") hands over others'
    assert hint in refattn("check", "wants:attention", "--case", "full-f32")[1]
    assert hint not in refattn("check", "my_kernel:ignores_masks", "--case", "causal-f64")[1]


def test_jobs_and_memory(refattn: Run) -> None:
    pytest.importorskip("psutil", reason="psutil is not installed")
    base = ["check", "my_kernel:ignores_masks", "--case", MASKED, "--case", BASIC, "--case", "causal-f64"]
    assert refattn(*base, "--jobs", 2, "--memory", 4) == refattn(*base)


@pytest.mark.parametrize("sizes, message", [
    ({"Lk": 10**12}, "Lk=1000000000000 must be <= 268,435,456"),
    ({"Lk": 10**8}, "numbers in q, k, v, out must be <= 268,435,456; make B, H, Lq, Lk or D smaller"),
    ({"Lq": 10**6, "Lk": 10**6}, "1,000,000,000,000 scores must be <= 1,073,741,824"),
])  # fmt: skip
def test_a_case_beyond_memory_is_refused(refattn: Run, sizes: dict[str, int], message: str) -> None:
    code, out, err = refattn("check", "--case-json", json.dumps({"id": "a", "why": "b", **sizes}))
    assert (code, out) == (2, "") and message in err


def test_the_limit_is_beyond_the_suite() -> None:
    for case in CASES:
        _check_size(case)


@pytest.mark.skipif(os.name != "posix", reason="needs /dev/null")
def test_a_record_is_a_regular_file(refattn: Run) -> None:
    code, out, err = refattn("check", "--case", BASIC, "--record", "/dev/null")
    assert code == 2 and "/dev/null is no regular file" in err and "Traceback" not in err


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", interrupted)
    assert cli.main(["check"]) == 130 and capsys.readouterr().err == "refattn: interrupted\n"
