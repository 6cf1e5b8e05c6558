"""The pages of docs/ are run as they stand, and none of them is stale."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest
import reference
from documents import ROOT, WrongPage, blocks, matches, run

from refattn.cases import CASES, FLAGS
from refattn.laws import LAWS
from refattn.precision import Conventions

DOCS = ROOT / "docs"

pytest.importorskip("hypothesis", reason="hypothesis is not installed, which the pages use")


def test_the_tutorial(tmp_path: Path) -> None:
    assert run(DOCS / "TUTORIAL.md", tmp_path) >= 10


def test_how_to(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed, of which the page captures inputs")
    assert run(DOCS / "HOWTO.md", tmp_path) >= 8


def test_the_page_of_the_tolerance(tmp_path: Path) -> None:
    assert run(DOCS / "TOLERANCE.md", tmp_path) == 1
    assert json.loads((DOCS / "honest.json").read_text())["alarms"] == 0, "as the page says"


def test_what_is_said_of_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that a tolerance of other numbers would be seen."""
    monkeypatch.setattr("sys.argv", ["tolerance.py"])
    script = runpy.run_path(str(DOCS / "tolerance.py"))
    script["main"].__globals__["ORDERS"] = 30
    script["main"]()
    expected = script["truth"](script["make"](script["CASE"]), script["preset"]("float32"))["out"]
    orders, out, dropped = script["answers"](script["make"](script["CASE"]))
    for wrong, what in (((orders, out + 1e-5, dropped), "honest kernels"), ((orders, out, out), "hardly a number")):
        with pytest.raises(SystemExit, match=f"not so: {what}"):
            script["check"](expected, *wrong)


def test_the_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed, which draws the picture")
    monkeypatch.setattr("sys.argv", ["tolerance.py", str(tmp_path / "picture.png")])
    script = runpy.run_path(str(DOCS / "tolerance.py"))
    script["main"].__globals__["ORDERS"] = 30
    script["main"]()
    assert (tmp_path / "picture.png").stat().st_size > 20_000


def test_the_reference_is_not_stale() -> None:
    """After a change of cases, flags, laws, options: python tests/reference.py > docs/REFERENCE.md"""
    text = (DOCS / "REFERENCE.md").read_text()
    made = reference.page()
    assert text == made
    assert text != made.replace(CASES[0].why, "another reason"), "a change would be seen"


def test_the_reference_has_everything() -> None:
    text = (DOCS / "REFERENCE.md").read_text()
    for name in (*(case.id for case in CASES), *FLAGS, *LAWS, *(f.name for f in fields(Conventions))):
        assert f"| `{name}` |" in text, name
    assert not re.search(r"^\| `\w+` \|.*\| +\|$", text.partition("## Contract")[0], re.MULTILINE), "all is described"


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        ("a 0.25 b\n", "a 0.31 b\n", True),
        ("6 of 6 passed\n", "5 of 6 passed\n", False),
        ("a[1, 2] = 3\n", "a[4, 0] = 3\n", True),
        ("one\n...\nlast\n", "one\ntwo\nthree\nlast\n", True),
        ("one\n...\n", "two\n", False),
        ("2 passed in ...\n", "2 passed in 3 s\n", True),
        ("1,024 of\n", "2,048 of\n", True),
    ],
)
def test_what_counts_as_the_same(expected: str, got: str, right: bool) -> None:
    assert matches(expected, got) is right


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```console\n$ echo two\none\n```\n", "printed\ntwo\n\nand not\none"),
        ("```console\n$ false\n```\n", "'false' ended with 1"),
        ("```console\n$ true # fails\n```\n", "ended with 0"),
        ("```python\nassert 1 == 2, 'no'\n```\n", "AssertionError: no"),
    ],
)
def test_a_page_that_is_wrong_is_seen(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(WrongPage, match=re.escape(message)):
        run(tmp_path / "page.md", tmp_path)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_a_block_is_found_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("one\n\n```python\nx = 1\n```\n")
    assert [(b.kind, b.text, b.line) for b in blocks(tmp_path / "page.md")] == [("python", "x = 1\n", 3)]
