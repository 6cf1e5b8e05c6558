"""Programs in C and JavaScript read the committed vectors by themselves: a right kernel passes, broken ones fail."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from refattn.vectors import judged_folder, opened

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "vectors"
PROGRAMS = ROOT / "tests" / "vectors"

C_BUGS = {
    "scale_of_1": 30, "lse_base_2": 30, "last_key_dropped": 20, "mask_ignored": 15, "key_late": 15, "bias_dropped": 5,
    "maximum_not_subtracted": 3, "sink_dropped": 3, "heads_tiled": 2, "softcap_dropped": 2, "hidden_values_read": 2,
}  # fmt: skip
"""how many cases fail at least"""
JS_BUGS = {
    "scale_twice": 4, "dropout_not_scaled": 3, "slope_of_softcap": 1, "dlse_ignored": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("c") / "check"
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2"]
    subprocess.run([compiler, *options, "-o", program, PROGRAMS / "check.c", "-lm"], check=True)
    return str(program)


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("no node")
    return found


def _run(*command: str) -> tuple[int, dict[str, str]]:
    """The exit status and the verdict of each case."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line.split() for line in ran.stdout.splitlines()]
    verdicts = {words[1]: words[0] for words in lines if words and words[0] in ("passed", "failed", "unsupported")}
    assert len(verdicts) == json.loads((FOLDER / "index.json").read_text())["case_count"], ran.stderr
    return ran.returncode, verdicts


def _count(verdicts: dict[str, str], status: str) -> int:
    return list(verdicts.values()).count(status)


def test_right_kernel_in_c_passes(c_program: str) -> None:
    status, verdicts = _run(c_program, str(FOLDER))
    assert status == 0 and _count(verdicts, "failed") == 0 and _count(verdicts, "passed") >= 40


@pytest.mark.parametrize("bug", C_BUGS)
def test_broken_kernel_in_c_fails(c_program: str, bug: str) -> None:
    status, verdicts = _run(c_program, str(FOLDER), bug)
    assert status == 1 and _count(verdicts, "failed") >= C_BUGS[bug]


def test_c_program_tells_a_file_that_is_cut_off(c_program: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "cut")
    path = tmp_path / "cut" / "cases" / "causal-f16.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    ran = subprocess.run([c_program, tmp_path / "cut"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "lies beyond the end of the file" in ran.stderr


def test_right_kernel_in_javascript_passes_and_its_answers_are_judged(node: str, tmp_path: Path) -> None:
    status, verdicts = _run(node, str(PROGRAMS / "check.js"), str(FOLDER), "--answers", str(tmp_path))
    assert status == 0 and _count(verdicts, "failed") == 0 and _count(verdicts, "passed") >= 55
    ours = {verdict.id: verdict.status for verdict in judged_folder(opened(FOLDER), tmp_path)}
    assert ours == {id: "unanswered" if said == "unsupported" else said for id, said in verdicts.items()}


@pytest.mark.parametrize("bug", JS_BUGS)
def test_broken_kernel_in_javascript_fails(node: str, bug: str) -> None:
    status, verdicts = _run(node, str(PROGRAMS / "check.js"), str(FOLDER), bug)
    assert status == 1 and _count(verdicts, "failed") >= JS_BUGS[bug]


def test_broken_answers_are_judged_as_the_program_judges_them(node: str, tmp_path: Path) -> None:
    _, verdicts = _run(node, str(PROGRAMS / "check.js"), str(FOLDER), "delta_missing", "--answers", str(tmp_path))
    ours = {verdict.id for verdict in judged_folder(opened(FOLDER), tmp_path) if verdict.status == "failed"}
    assert ours == {id for id, said in verdicts.items() if said == "failed"}
