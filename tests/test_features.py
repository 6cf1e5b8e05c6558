"""docs/FEATURES.md, the table of features: nothing in it is stale, and no cell is empty."""

from __future__ import annotations

import importlib
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from refattn.cases import CASES
from refattn.inputs import BIAS
from refattn.score_mods import SCORE_MODS

ROOT = Path(__file__).parent.parent
HEADER, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "FEATURES.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith("|---")
]
BOUNDS = ("sharp", "rigorous", "exact", "not judged", "bitwise", "by the law")
WORDS = sorted({word for case in CASES for word in case.features()})


def test_the_table_is_whole() -> None:
    assert HEADER == ["feature", "definition", "gradients", "tile by tile", "bound", "cases"]
    assert len(ROWS) >= 35
    for row in ROWS:
        assert len(row) == len(HEADER) and all(row), row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_exists(row: list[str]) -> None:
    feature, *names, bound, cases = row
    for name in re.findall(r"`(refattn\.[\w.]+)`", " ".join(names)):
        parts = name.split(".")
        for n in range(len(parts), 0, -1):  # the longest module of it, then attributes
            try:
                found = importlib.import_module(".".join(parts[:n]))
            except ModuleNotFoundError:
                continue
            for attribute in parts[n:]:
                found = getattr(found, attribute)
            break
    for family in re.findall(r"BIAS`: ([\w, ]+)", names[0]):
        assert set(family.split(", ")) <= set(BIAS)
    for mod in re.findall(r"SCORE_MODS`: (\w+)", " ".join(names)):
        assert mod in SCORE_MODS
    assert bound.startswith(BOUNDS), bound
    assert names[0].startswith("`refattn."), f"{feature} has no definition"
    if cases.startswith("none: "):
        for path in re.findall(r"`(tests/\w+\.py)`", cases):
            assert (ROOT / path).exists()
        assert re.search(r"`tests/|--laws", cases), cases
    else:
        for word in re.findall(r"`([^`]+)`", cases):
            assert any(fnmatchcase(w, word) for w in WORDS), f"no case has the feature {word}"


def test_every_word_of_the_cases_has_a_row() -> None:
    said = {word for row in ROWS for word in re.findall(r"`([^`]+)`", row[-1])}
    lacking = [w for w in WORDS if not any(fnmatchcase(w, word) for word in said)]
    assert set(lacking) <= {"mask", "and", "or", "not"}, lacking
