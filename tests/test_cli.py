"""The command: exit codes, texts, files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import candidates
import numpy as np
import pytest
from few_hypotheses import few_hypotheses  # noqa: F401
from test_worker import ends

from refattn import cli
from refattn.case import Case
from refattn.cases import CASES, FLAGS, by_id, select
from refattn.conform import run
from refattn.dump import dump
from refattn.judge import judge
from refattn.masks import Causal
from refattn.precision import Conventions, preset
from refattn.report import as_json, as_junit, suite_version
from refattn.show import line, page

Run = Callable[..., tuple[int, str, str]]
BASIC = "full-tiny-f32"
MASKED = "causal-tiny-f32"
EMPTY = next(case.id for case in CASES if case.id == "causal-br-tall-f32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("user")
    candidates.install(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


@pytest.fixture
def refattn(folder: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command here and return its exit code and what it wrote."""

    def command(*arguments: object) -> tuple[int, str, str]:
        try:
            code = cli.main(list(map(str, arguments)))
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return (code, *capfd.readouterr())

    return command


def test_version(refattn: Run) -> None:
    assert refattn("--version") == (0, f"refattn {suite_version()}\n", "")


def test_check_of_our_own_kernel(refattn: Run) -> None:
    code, out, err = refattn("check", "--case", BASIC, "--case", MASKED)
    assert (code, err) == (0, "")
    assert "refattn.streaming" in out and "seed 0, 2 cases" in out
    assert "2 of 2 passed, 0 acceptable, 0 unsupported, 0 failed" in out
    assert max(map(len, out.splitlines())) <= 80


def test_header_names_what_was_declared(refattn: Run) -> None:
    code, out, _ = refattn("check", "my_kernel:nan_rows", "--case", EMPTY)
    assert code == 0
    assert "my_kernel:nan_rows: nan rows, numpy arrays" in out
    assert "outputs out; conventions empty_rows='nan'" in out
    assert f"acceptable, as declared: empty_rows='nan': {EMPTY}" in out
    assert "0 of 1 passed, 1 acceptable" in out


def test_failure_is_told_as_the_design_has_it(refattn: Run) -> None:
    code, out, _ = refattn("check", "my_kernel:ignores_masks", "--case", BASIC, "--case", MASKED)
    assert code == 1
    number = r"-?\d+(\.\d+)?(e[-+]\d+)?"
    assert re.search(
        rf"^FAIL {MASKED}  out\[\d+, \d+, \d+, \d+\] = {number}, should be {number} in \[{number}, {number}\]   "
        rf"ratio [\d,.e+]+ \(limit 1; rigorous [\d,.e+]+\), \d+ of 64 elements\n"
        rf"     looks like [^\n]*\n"
        rf"     replay: refattn check my_kernel:ignores_masks --case {MASKED}$",
        out,
        re.MULTILINE,
    ), out
    assert "1 of 2 passed, 0 acceptable, 0 unsupported, 1 failed" in out


def test_undeclared_convention_is_named(refattn: Run) -> None:
    code, out, _ = refattn("check", "my_kernel:undeclared_nan_rows", "--case", EMPTY)
    assert code == 1 and "\n     undeclared convention: empty_rows='nan'\n" in out


def test_loosened_contract_is_told_and_needs_a_source(refattn: Run) -> None:
    code, out, _ = refattn("check", "my_kernel:loose", "--case", BASIC)
    assert code == 0
    assert "loosened: exp_ulp=64.0 (the manual, page 7): 1 cases" in out and "1 of 1 passed (1 loosened)" in out
    code, out, err = refattn("check", "my_kernel:sourceless", "--case", BASIC)
    assert code == 2 and err.startswith("refattn: error: sourceless: precision(full-tiny-f32) is looser than")
    assert err.count("\n") == 1


def test_refusing_is_no_success(refattn: Run) -> None:
    code, out, _ = refattn("check", "my_kernel:refuses_all", "--case", BASIC)
    assert code == 1 and "unsupported: not today" in out and f"no success: basics refused: {BASIC}" in out
    assert "never given" not in out
    other = next(c.id for c in CASES if c.chapter == "masks" and c.mask is not None)
    code, out, _ = refattn("check", "my_kernel:refuses_all", "--case", other)
    assert code == 1 and "no success: no case was judged" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--case", "no-such-case"], "'no-such-case' matches no case"),
        (["check", "--only", "causal_topleft"], "'causal_topleft' is no id, chapter, dtype, feature or flag; do you"),
        (["check", "--skip", "poetry"], "'poetry' is no id"),
        (["check", "--laws", "--only", "gqa"], "--laws and --only exclude each other"),
        (["check", "--jobs", "0"], "0 must be an int >= 1"),
        (["check", "--memory", "0"], "0 must be a number > 0"),
        (["check", "--record", "no/such/run.jsonl"], "--record: no/such/run.jsonl cannot be written"),
        (["check", "--chapter", "poetry"], "'poetry' is not one of basics"),
        (["check", "--dtype", "float12"], "'float12' is not one of"),
        (["check", "nowhere_to_be_found:f"], "No module named 'nowhere_to_be_found'"),
        (["check", "no_such_name"], "'no_such_name' is no implementation"),
        (["check", "my_kernel:absent"], "my_kernel has no absent"),
        (["check", "--timeout", "0"], "0 must be a number > 0"),
        (["check", "--seed", "-1"], "-1 must be an int >= 0"),
        (["check", "--json", "no/such/folder.json"], "--json: no/such/folder.json cannot be written"),
        (["check", "--junit", "."], "--junit: . cannot be written"),
        (["check", "--dump", "my_kernel.py"], "--dump: "),
        (["check", "--expected-failures", "absent.txt"], "--expected-failures: "),
        (["check", "--case-json", "{}"], "--case-json: ValueError: a case needs id and why"),
        (["check", "--case-json", "{"], "--case-json: JSONDecodeError"),
        (["check", "--case-json", "absent.json"], "--case-json: FileNotFoundError"),
        (["check", "--case-json", '{"id": "a", "why": "b", "colour": 3}'], "a case has no field colour"),
        (["check", "--case-json", '{"id": "a", "why": "b", "family": "f"}'], "family='f' is not one of"),
        (["check", "--case-json", "{}", "--case", "x"], "exclude each other"),
        (["show", "no-such-case"], "'no-such-case' is no case"),
        (["fuzz", "my_kernel:absent"], "my_kernel has no absent"),
        (["sing"], "invalid choice: 'sing'"),
        ([], "required: COMMAND"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_usage_errors_are_one_clear_line(refattn: Run, arguments: list[str], message: str) -> None:
    code, out, err = refattn(*arguments)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err
    assert err.splitlines()[-1].startswith("refattn")


def test_selection_seed_and_replay(refattn: Run) -> None:
    code, out, _ = refattn("check", "my_kernel:ignores_masks", "--chapter", "basics", "--dtype", "float64", "--seed", 3)
    count = sum(c.chapter == "basics" and c.dtype == "float64" for c in CASES)
    assert f"seed 3, {count} cases" in out and "--case causal-f64 --seed 3\n" in out
    code, again, _ = refattn("check", "my_kernel:ignores_masks", "--case", "causal-f64", "--seed", 3)
    fail = [text for text in out.splitlines() if text.startswith("FAIL")]
    assert fail and fail[0] in again.splitlines()
    _, other, _ = refattn("check", "my_kernel:ignores_masks", "--case", "causal-f64")
    assert fail[0] not in other


def test_exit_first(refattn: Run) -> None:
    code, out, _ = refattn("check", "my_kernel:ignores_masks", "--case", "causal-*f32", "-x")
    assert code == 1 and out.count("FAIL") == 1 and " not run" in out


def test_expected_failures(refattn: Run, folder: Path) -> None:
    known = folder / "known.txt"
    known.write_text(f"# what is known\n\n{MASKED}  # the mask is ignored\ncausal-br-tall-*\n")
    base = ["check", "my_kernel:ignores_masks", "--expected-failures", known]
    code, out, _ = refattn(*base, "--case", MASKED, "--case", BASIC, "--junit", folder / "known.xml", "-x")
    assert code == 0 and "expected: the mask is ignored" in out and "1 failures expected, 0 stale" in out
    (skipped,) = ElementTree.parse(folder / "known.xml").iter("skipped")
    assert skipped.get("message") == "expected failure: the mask is ignored"

    code, out, _ = refattn(*base, "--case", "causal-f64", "--case", MASKED)
    assert code == 1, "another failure is not excused"

    code, out, _ = refattn("check", "my_kernel:honest", "--expected-failures", known, "--case", MASKED)
    assert code == 1 and f"stale: {MASKED} passes, but is listed as an expected failure: the mask is ignored" in out

    known.write_text("no-such-*  # typo\n")
    code, _, err = refattn(*base, "--case", MASKED)
    assert code == 2 and f"{known}:1: 'no-such-*' matches no case" in err


def test_case_json(refattn: Run, folder: Path) -> None:
    mine = Case("mine", "my own", H=2, Hkv=2, Lq=3, Lk=3, mask=Causal("top_left"), dtype="bfloat16")
    text = json.dumps(mine.to_json())
    code, out, _ = refattn("check", "my_kernel:honest", "--case-json", text)
    assert code == 0 and "1 of 1 passed" in out
    (folder / "two.json").write_text(f"[{text}, {text.replace('mine', 'other')}]")
    code, out, _ = refattn("check", "my_kernel:ignores_masks", "--case-json", "two.json")
    assert code == 1 and "0 of 2 passed" in out
    replay = next(text for text in out.splitlines() if "replay:" in text)
    assert json.loads(replay.split("'")[1]) == mine.to_json()


def strict(text: str) -> dict:  # type: ignore[type-arg]
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)  # type: ignore[no-any-return]


def test_files(refattn: Run, folder: Path) -> None:
    code, _, _ = refattn(
        "check", "my_kernel:undeclared_nan_rows", "--case", EMPTY, "--case", BASIC, "--case", "softcap-1-f32",
        "--json", "r.json", "--junit", "r.xml",
    )  # fmt: skip
    assert code == 1
    report = strict((folder / "r.json").read_text())
    assert report["counts"] == {"passed": 2, "acceptable": 0, "unsupported": 0, "failed": 1}
    assert report["implementation"]["name"] == "coy nan rows" and report["suite"] == suite_version()
    by_status = {v["case"]["id"]: v for v in report["verdicts"]}
    assert by_status[EMPTY]["outputs"][0]["got"] == "nan" and by_status[EMPTY]["ratio"] == "inf"
    assert by_status[EMPTY]["notes"] == ["undeclared convention: empty_rows='nan'"]
    assert all(Case.from_json(v["case"]) == by_id(v["case"]["id"]) for v in report["verdicts"])
    suite = ElementTree.parse(folder / "r.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "0")
    (failure,) = suite.iter("failure")
    assert failure.text is not None and "replay: refattn check" in failure.text
    assert {case.get("classname") for case in suite.iter("testcase")} >= {"refattn.basics"}


def test_junit_survives_control_characters_in_a_message() -> None:
    def colourful(q: object, k: object, v: object, *, mask: object = None) -> object:
        raise RuntimeError("\x1b[31mred\x1b[0m \x00 & <b>")

    report = run(candidates.implementation(name="\x07 bell")(colourful), [by_id(BASIC)])
    (failure,) = ElementTree.fromstring(as_junit(report)).iter("failure")
    assert failure.text is not None and "red" in failure.text and "& <b>" in failure.text
    strict(json.dumps(as_json(report)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_dump(dtype: str, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import load_file

    case = Case("dumped", "x", Lq=2, Lk=3, dtype=dtype, want=frozenset({"out"}))
    from refattn.inputs import make

    problem = make(case)
    got = np.zeros((1, 1, 2, 8), problem.logical["q"].dtype if dtype != "float8_e4m3fn" else preset_out(case))
    verdict = judge(problem, {"out": got}, preset(dtype, case.out_dtype), Conventions())
    assert verdict.evidence is not None
    path = dump(verdict.evidence, tmp_path, "a:b")
    arrays = load_file(path)
    assert set(arrays) == {"q", "k", "v", "got.out", "value.out", "lo.out", "hi.out"}
    assert arrays["q"].tobytes() == problem.logical["q"].tobytes() and arrays["lo.out"].dtype == np.float64
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    assert Case.from_json(json.loads(metadata["case"])) == case
    assert json.loads(metadata["dtypes"]) == ({n: dtype for n in "qkv"} if "8" in dtype.split("_")[0] else {})


def preset_out(case: Case) -> np.dtype:  # type: ignore[type-arg]
    from refattn.dtypes import FORMATS

    return FORMATS[case.out_dtype].dtype


def test_dump_of_a_run(refattn: Run, folder: Path) -> None:
    code, out, _ = refattn(
        "check", "my_kernel:ignores_masks", "--case", MASKED, "--case", BASIC, "--dump", "new/dumps"
    )
    assert code == 1 and f"tensors: new/dumps/{MASKED}.safetensors" in out
    assert [path.name for path in (folder / "new" / "dumps").iterdir()] == [f"{MASKED}.safetensors"]


def test_list_has_a_line_for_each_case(refattn: Run) -> None:
    code, out, _ = refattn("list")
    assert code == 0 and [text.split()[0] for text in out.splitlines()] == [case.id for case in select()]
    code, out, _ = refattn("list", "--full")
    assert code == 0 and [text.split()[0] for text in out.splitlines()] == [case.id for case in CASES]
    code, out, _ = refattn("list", "--feature", "quant=q*")
    assert out and all("quant=q" in text for text in out.splitlines())
    code, out, _ = refattn("list", "--chapter", "basics", "--dtype", "float64")
    assert 0 < len(out.splitlines()) < 12 and all("float64" in text for text in out.splitlines())


def test_show(refattn: Run) -> None:
    code, out, _ = refattn("show", MASKED)
    assert code == 0
    case = by_id(MASKED)
    assert case.why in out and "B=1 H=2 Hkv=2 Lq=4 Lk=4 D=8 Dv=8" in out
    assert all(f"{flag}: {FLAGS[flag]}" in out for flag in case.flags)
    assert out.endswith("every b and h\nx...\nxx..\nxxx.\nxxxx\n")


def test_show_of_all_cases_fits_and_ends() -> None:
    for case in CASES:
        text = page(case, FLAGS)
        assert len(text.splitlines()) < 200 and case.id in text
        assert line(case).startswith(case.id)


def test_show_draws_large_masks_coarsely_and_distinct_ones_apart() -> None:
    large = Case("large", "x", Lq=128, Lk=128, mask=Causal("top_left"))
    drawn = page(large, {}).splitlines()
    assert any("one character is 4 x 2, + where only some may" in text for text in drawn)
    assert drawn[-1] == "x" * 62 + "++" and drawn[-32] == "++" + "." * 62
    lens = Case("lens", "x", B=2, Lq=1, Lk=3, k_lens=(1, 3))
    assert page(lens, {}).splitlines()[-5:] == ["b=0 h=0", "x..", "", "b=1 h=0", "xxx"]


def spawn(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-m", "refattn", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )  # fmt: skip


def test_printing_candidate_leaves_stdout_alone(folder: Path) -> None:
    text = json.dumps(Case("chatter", "prints").to_json())
    with spawn(folder, "check", "my_kernel:deeds", "--case-json", text) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "chatter" not in out.replace("in chatter", "") and "from below" in err
    assert out.splitlines()[-1].startswith("1 of 1 passed")


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_interrupt_writes_the_report_and_leaves_no_child(folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import os, pathlib, time\nfrom my_kernel import solve\nfrom refattn.implementation import implementation\n"
        "@implementation(name='slow')\ndef attention(case, given):\n"
        "    if case.id == 'second':\n"
        "        pathlib.Path('slow.pid').write_text(str(os.getpid()))\n        time.sleep(60)\n"
        "    return solve(case, given)\n"
    )
    cases = [Case(name, "x", want=frozenset({"out"})).to_json() for name in ("first", "second", "third")]
    (folder / "three.json").write_text(json.dumps(cases))
    with spawn(folder, "check", "slow:attention", "--case-json", "three.json", "--json", "slow.json") as process:
        limit = time.monotonic() + 30
        while not ((folder / "slow.pid").exists() and (folder / "slow.pid").read_text()):
            assert time.monotonic() < limit and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "1 of 3 passed" in out and "2 not run" in out and "(interrupted)" in out and "Traceback" not in err
    report = strict((folder / "slow.json").read_text())
    assert report["interrupted"] and [v["case"]["id"] for v in report["verdicts"]] == ["first"]
    assert ends(int((folder / "slow.pid").read_text()))


def test_listing_into_a_closed_pipe(folder: Path) -> None:
    with spawn(folder, "list") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0 and process.stderr.read() == ""
