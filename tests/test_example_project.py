"""A stranger's project: refattn's wheel and theirs installed in a fresh environment, and their tests run there.

Nothing is downloaded: what refattn requires is taken from this environment by a .pth file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = Path(__file__).parent / "example_project"
BRIEFLY = ("-m", "not attention or attention(chapter='basics') or attention(chapter='degenerate', dtype='float32')")
MORE_BRIEFLY = ("-m", "not attention or attention(chapter='basics', dtype='float32')")

pytest.importorskip("hypothesis", reason="hypothesis is not installed, which the project's tests use")
pytest.importorskip("setuptools", reason="setuptools is not installed, which builds the wheels")
pytest.importorskip("pip", reason="pip is not installed, which builds the wheels")


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )


def wheel(source: Path, folder: Path) -> Path:
    """The wheel of a project, built of a copy, so that no build folder is left in it."""
    copy = folder / "source" / source.name
    for name in ("pyproject.toml", "setup.cfg", "README.md", "refattn", "src"):
        if (source / name).is_dir():
            shutil.copytree(source / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (source / name).is_file():
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, copy / name)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    built = run(sys.executable, "-m", "pip", "wheel", *options, "-w", folder / "wheels", copy, folder=folder)
    assert built.returncode == 0, built.stderr
    return max((folder / "wheels").glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Python of an environment with both wheels, and a folder with the project's tests."""
    folder = tmp_path_factory.mktemp("stranger")
    wheels = [wheel(source, folder) for source in (ROOT, PROJECT)]
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", code, folder=folder).stdout.strip())
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(site)
    (site / "of_this_environment.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    project = folder / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("src", "__pycache__", ".*", "*.egg-info"))
    return python, project


def test_the_wheels_are_what_is_imported(installed: tuple[Path, Path]) -> None:
    python, project = installed
    code = "import refattn, tiny_attention; print(refattn.__file__, tiny_attention.__file__)"
    found = run(python, "-c", code, folder=project)
    assert found.stdout.count(str(python.parent.parent)) == 2, found.stdout + found.stderr
    code = "from refattn.inputs.captured import FOLDER, cases_of; print(len(cases_of(FOLDER / 'minilm.safetensors')))"
    assert run(python, "-c", code, folder=project).stdout == "4\n", "the wheel has the captured inputs"


def test_their_tests_pass(installed: tuple[Path, Path]) -> None:
    python, project = installed
    found = run(python, "-m", "pytest", "-p", "no:cacheprovider", "-rx", *BRIEFLY, folder=project)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "XFAIL tests/test_conformance.py::test_attention[d0-f32] - heads of size 0" in found.stdout
    assert "tests/test_kernel.py" in found.stdout and "tests/half/test_half_conformance.py" in found.stdout
    assert " failed" not in found.stdout and "= attention =" not in found.stdout


def test_a_broken_kernel_is_seen_by_all_of_them(installed: tuple[Path, Path]) -> None:
    python, project = installed
    kernel = next(python.parent.parent.rglob("tiny_attention/kernel.py"))
    whole = kernel.read_text()
    broken = whole.replace("out = old * out +", "out = out +")
    assert broken != whole
    try:
        kernel.write_text(broken)
        found = run(python, "-m", "pytest", "-p", "no:cacheprovider", *MORE_BRIEFLY, folder=project)
    finally:
        kernel.write_text(whole)
    text = found.stdout
    assert found.returncode == 1, text + found.stderr
    assert "FAILED tests/test_kernel.py::test_causal[5-40]" in text
    assert "FAILED tests/test_kernel.py::test_random" in text
    assert "FAILED tests/test_conformance.py::test_attention[" in text
    assert "FAILED tests/half/test_half_conformance.py::test_attention[" in text
    assert "AttentionError: out[" in text and "= attention =" in text
    diagnosis = [line for line in text.splitlines() if line.startswith("diagnosis: ")]
    assert len(diagnosis) == 2 and all("rescale" in line for line in diagnosis), diagnosis
