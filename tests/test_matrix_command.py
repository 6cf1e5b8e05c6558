"""The command `refattn matrix`: runs that go on, files, exit codes."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import candidates
import pytest

from refattn import cli
from refattn.cases import by_id
from refattn.matrix.columns import _file, columns
from refattn.matrix.exports import as_json, as_junit_xml
from refattn.matrix.page import as_html
from refattn.matrix.table import made
from refattn.record import recorded_run

Run = Callable[..., tuple[int, str, str]]
CASES = ("--case", "full-tiny-f32", "--case", "causal-tiny-f32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("user")
    candidates.install(path)
    (path / "broken.py").write_text("raise RuntimeError('boom')\n")
    (path / "lost.py").write_text(
        "import os\n"
        "def crashes(q, k, v):\n"
        "    os.abort()\n"
        "def raises(q, k, v):\n"
        "    raise OSError(f'cannot read {os.getcwd()}/weights.bin')\n"
    )
    (path / "counting.py").write_text(
        "import time\n"
        "from refattn import attention as true\n"
        "def attention(q, k, v, mask=None, scale=None):\n"
        "    with open('calls', 'a') as file:\n"
        "        file.write('x')\n"
        "    return true(q, k, v, mask=mask, scale=scale).out.astype(q.dtype)\n"
        "def slow(q, k, v, mask=None, scale=None):\n"
        "    time.sleep(0.4)\n"
        "    return true(q, k, v, mask=mask, scale=scale).out.astype(q.dtype)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


@pytest.fixture
def refattn(folder: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        try:
            code = cli.main(["matrix", *map(str, arguments)])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return (code, *capfd.readouterr())

    return command


def test_runs_are_kept_and_not_run_again(refattn: Run, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    files = {name: tmp_path / f"matrix.{name}" for name in ("html", "markdown", "json", "junit")}
    options = [x for name, path in files.items() for x in (f"--{name}", path)]
    runs = tmp_path / "runs"
    code, out, err = refattn("counting:attention", *CASES, "--runs", runs, *options)
    assert code == 0, out + err
    assert "counting:attention: counting:attention: 2 passed" in out and "counting:attention: 2 passed" in err
    calls = (folder / "calls").read_text()
    assert calls and "counting:attention" in files["html"].read_text(encoding="utf-8")
    assert json.loads(files["json"].read_text())["cases"] == 2
    assert ElementTree.parse(files["junit"]).getroot()[0].get("tests") == "2"
    assert "✓ 2/2" in files["markdown"].read_text(encoding="utf-8")
    assert "[matrix.html]" in files["markdown"].read_text(encoding="utf-8")

    assert refattn("counting:attention", *CASES, "--runs", runs)[0] == 0
    code, out, _ = refattn("--runs", runs)
    assert code == 0 and "2 passed" in out and (folder / "calls").read_text() == calls

    code, _, err = refattn("counting:attention", "--case", "mqa-f32", "--runs", runs)
    assert code == 2 and "counting.attention.jsonl was made with" in err  # other cases


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_run_that_is_killed_ends_wholly_and_goes_on(refattn: Run, folder: Path, tmp_path: Path) -> None:
    arguments = ["counting:slow", "--chapter", "basics", "--dtype", "float32", "--runs", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-m", "refattn", "matrix", *arguments], cwd=folder, env=environment)
    record = tmp_path / "counting.slow.jsonl"
    end = time.monotonic() + 60
    while not (record.is_file() and record.read_bytes().count(b"\n") > 3) and time.monotonic() < end:
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = columns(tmp_path)[0].report
    assert before is not None and before.interrupted and 0 < len(before.verdicts) < before.selected
    while True:  # the process that wrote it notices that it has no parent
        code, out, err = refattn(*arguments)
        if "another run writes it" not in err or time.monotonic() > end:
            break
    assert code == 0 and f"{before.selected} passed" in out, err


def test_failures_and_what_cannot_be_loaded(refattn: Run, tmp_path: Path) -> None:
    specs = ("my_kernel:ignores_masks", "my_kernel:honest", "broken:attention", "nosuchmodule:attention")
    runs = tmp_path / "runs"
    code, out, err = refattn(*specs, *CASES, "--runs", runs, "--jobs", 2)
    assert code == 1, out + err
    lines = out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == list(specs)
    assert "1 passed, 0 acceptable, 0 unsupported, 1 failed" in lines[0] and "2 passed" in lines[1]
    assert lines[2].endswith("cannot be loaded") and lines[3].endswith("cannot be loaded")
    found = {c.spec: c for c in columns(runs)}
    assert "RuntimeError: boom" in found["broken:attention"].said and set(found) == set(specs)
    picture = found["my_kernel:ignores_masks"].failures()[0].picture
    assert picture is not None and picture["output"] == "out"
    assert refattn("my_kernel:honest", *CASES, "--runs", runs)[0] == 0


def test_pages_do_not_say_where_on_the_machine_something_failed(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    for name in ("crashes", "raises"):
        recorded_run(f"lost:{name}", [by_id("full-tiny-f32")], tmp_path / f"lost.{name}.jsonl")
    told = {"spec": "lost", "why": "cannot be loaded", "said": f'  File "{folder}/lost.py", line 9 in load'}
    (tmp_path / "lost.unloaded.json").write_text(json.dumps(told))
    table = made(columns(tmp_path))
    page, junit, data = html.unescape(as_html(table)), html.unescape(as_junit_xml(table)), str(as_json(table))
    for text in (page, junit, data):
        assert not any(str(where) in text for where in (folder, sys.prefix, Path(cli.__file__).parent))
    for said in ('File "lost.py", line 3 in crashes', "cannot read weights.bin", 'File "lost.py", line 9 in load'):
        assert said in page and said in junit, said
    assert str(folder) in (tmp_path / "lost.crashes.jsonl").read_text(), "that is for who ran it"


def test_a_library_that_is_missing_is_no_failure(
    refattn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    blocked = tmp_path / "blocked" / "sitecustomize.py"  # in the candidate's process torch is as good as missing
    blocked.parent.mkdir()
    blocked.write_text(
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'torch':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{blocked.parent}:{Path(cli.__file__).parents[1]}")
    code, out, _ = refattn("torch", *CASES, "--runs", tmp_path / "runs")
    assert (code, out) == (0, "torch: torch: not installed\n")
    assert "torch is not installed: python -m pip install torch" in columns(tmp_path / "runs")[0].said


@pytest.mark.parametrize("arguments, text", [
    ((), "name implementations"),
    (("--runs", "empty"), "--runs empty: no run is there"),
    (("my_kernel:honest", "--row", "gqa+nonsense"), "row 'gqa+nonsense': 'nonsense' is not one of"),
    (("my_kernel:honest", "--case", "nonsense"), "matches no case"),
    (("my_kernel:honest", "--html", "no/such/folder.html"), "--html: no/such/folder.html cannot be written"),
])  # fmt: skip
def test_mistakes_of_the_caller(refattn: Run, arguments: tuple[str, ...], text: str) -> None:
    code, out, err = refattn(*arguments)
    assert code == 2 and out == "" and err.startswith("refattn: error: ") and text in err


def test_a_kernel_that_cannot_be_loaded_any_more_is_not_shown_as_passed(
    refattn: Run, folder: Path, tmp_path: Path
) -> None:
    (folder / "fading.py").write_text((folder / "counting.py").read_text())
    assert refattn("fading:attention", *CASES, "--runs", tmp_path)[0] == 0
    (folder / "fading.py").write_text("raise RuntimeError('gone')\n")
    for arguments in (("fading:attention", *CASES, "--runs", tmp_path), ("--runs", tmp_path)):
        code, out, _ = refattn(*arguments)
        assert code == 1 and "cannot be loaded" in out and "passed" not in out
    (folder / "fading.py").write_text((folder / "counting.py").read_text() + "# new\n")
    code, _, err = refattn("fading:attention", *CASES, "--runs", tmp_path)
    assert code == 2 and "the kernel has changed since" in err
    (tmp_path / "fading.attention.unloaded.json").unlink()
    code, out, _ = refattn("--runs", tmp_path)
    assert code == 0 and "2 passed" in out and "the kernel has changed since" in out


def test_refusing_all_is_no_success(refattn: Run, folder: Path, tmp_path: Path) -> None:
    for name, reason in (("refuses", "I do nothing"), ("lacks", "needs a GPU")):
        (folder / f"{name}.py").write_text(
            f"from refattn.precision import Unsupported\ndef attention(q, k, v):\n    raise Unsupported({reason!r})\n"
        )
    code, out, _ = refattn("refuses:attention", "--case", "full-tiny-f32", "--runs", tmp_path / "a")
    assert code == 1 and "no success: no case was judged" in out
    code, out, _ = refattn("lacks:attention", "--case", "full-tiny-f32", "--runs", tmp_path / "b")
    assert code == 0 and "not run: needs a GPU" in out and "no success" not in out


def test_an_incomplete_run_is_called_so(refattn: Run, tmp_path: Path) -> None:
    files = {name: tmp_path / f"matrix.{name}" for name in ("html", "markdown", "json")}
    assert refattn("my_kernel:honest", *CASES, "--runs", tmp_path)[0] == 0
    path = tmp_path / "my_kernel.honest.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    _, out, _ = refattn("--runs", tmp_path, *(x for name, file in files.items() for x in (f"--{name}", file)))
    assert all("1 of 2 cases, not complete" in text for text in (out, *(f.read_text("utf-8") for f in files.values())))


def test_what_is_no_run_is_refused_by_name(refattn: Run, tmp_path: Path) -> None:
    for text in ("[", "[1]", "{}", '{"spec": 1, "why": "", "said": ""}'):
        bad = tmp_path / "bad.unloaded.json"
        bad.write_text(text)
        code, _, err = refattn("--runs", tmp_path)
        assert code == 2 and "bad.unloaded.json is not what" in err, text
    bad.unlink()
    (tmp_path / "d.jsonl").mkdir()
    code, _, err = refattn("--runs", tmp_path)
    assert code == 2 and "d.jsonl is no file" in err
    (tmp_path / "file").write_text("")
    for arguments in (("--runs", tmp_path / "file"), ("my_kernel:honest", *CASES, "--runs", tmp_path / "file")):
        code, _, err = refattn(*arguments)
        assert code == 2 and "is a file; it must be a folder" in err


def test_each_spec_has_a_file_of_its_own() -> None:
    specs = ("cands:right", "cands/right", "cands right", "cands.right", "a:b.c", "a.b:c", "é", "ü", "torch")
    assert len({_file(Path(), spec) for spec in specs}) == len(specs)
    assert _file(Path(), "cands:right").name == "cands.right.jsonl" and _file(Path(), "torch").name == "torch.jsonl"
