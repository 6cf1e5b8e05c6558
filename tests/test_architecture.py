"""The floors of the house, what an import costs, and what must not be in the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "refattn"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("dropout", "dtypes", "montecarlo", "nearest", "pipes", "resident", "rotary", "score_mods", "sources",
     "visibility"),  # fmt: skip
    ("alibi", "drawn", "layouts", "oracle", "online", "patterns", "quantise", "storage"),
    ("masks", "precision"),
    ("case", "exchange", "tensors"),
    ("memory",),
    ("inputs", "nonfinite", "streaming", "tolerance"),
    ("draw", "flash"),
    ("implementation", "cases", "truth", "adapters", "strategies"),
    ("aggregate", "calling", "elements", "mutants"),
    ("undeclared", "widened"),
    ("judge", "replies", "selection"),
    ("vectors", "worker"),
    ("laws", "public_rules", "said", "sampling"),
    ("examine", "localise", "probes", "shrink"),
    ("diagnose", "judges", "picture"),
    ("conform", "honest", "judgement", "proofs"),
    ("report_json",),
    ("record", "report", "dump", "expected", "judging", "show", "page"),
    ("asserting", "check_cases", "fuzz", "reward", "judge_file", "session", "prove", "teeth"),
    ("plugin", "conformance", "check_command", "judge_command", "vectors_command"),
    ("matrix",),
    ("cli",),
    ("__main__", "__init__"),
)
"""A module imports only modules of floors before its own; a package counts as one module."""

EXCEPTIONS: set[tuple[str, str]] = set()
FLOOR = {name: i for i, names in enumerate(FLOORS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> Iterator[str]:
    """The modules of refattn that a file imports, at the top or inside a function."""
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["refattn", *inside][: 1 + len(inside) - (node.level - 1)] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [stem] if node.module else [f"{stem}.{alias.name}" for alias in node.names]
            if stem == "refattn":
                names = [f"refattn.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "refattn" and len(parts) > 1:
                yield parts[1]


def test_every_module_has_a_floor() -> None:
    assert {module_of(path) for path in FILES} == set(FLOOR)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    own = module_of(path)
    for other in imported(path):
        assert other == own or (own, other) in EXCEPTIONS or FLOOR[other] < FLOOR[own], f"{own} imports {other}"


def test_imports_are_read() -> None:
    assert {"case", "calling", "implementation", "inputs"} <= set(imported(PACKAGE / "worker.py"))
    assert "case" in set(imported(PACKAGE / "conformance" / "test_attention.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_assert_and_no_catch_all_names(path: Path) -> None:
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text()))), "raise an error"
    assert path.stem not in ("utils", "util", "helpers", "helper", "common", "misc")


def loaded_by(statement: str) -> set[str]:
    """The top-level packages beyond the standard library that a statement brings into a fresh process."""
    code = f"import sys; {statement}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return {m for m in ran.stdout.split() if m not in sys.stdlib_module_names and not m.startswith("_")}


def test_import_brings_numpy_alone() -> None:
    base = loaded_by("pass")  # what the environment loads at the start of every process
    assert loaded_by("import refattn") - base == {"refattn", "numpy", "ml_dtypes"}


def test_plugin_brings_pytest_alone() -> None:
    base = loaded_by("import pytest, numpy, ml_dtypes")
    assert loaded_by("import refattn.plugin") - base == {"refattn"}


def test_command_starts_without_rich_or_a_framework() -> None:
    loaded = loaded_by("import refattn.cli")
    assert not loaded & {"rich", "torch", "numba", "scipy", "matplotlib", "hypothesis", "safetensors", "pytest"}
