"""The page: well formed, complete in itself, safe against what a candidate says, and small."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

import candidates
import pytest
from test_matrix import ABOUT, ABSENT, BROKEN, column, undiagnosed, verdict

from refattn.case import Case
from refattn.cases import CASES, FULL, by_id
from refattn.conform import Report, run
from refattn.implementation import implementation
from refattn.judge import Output, Verdict
from refattn.matrix.page import NeedsJinja, as_html
from refattn.matrix.table import Column, made

EVIL = "<script>alert('&')</script><img src=x onerror=y>\" ' </pre></details>"
VOID = {"meta", "br", "img", "path", "use"}
MAY_STAY_OPEN = {"p", "li", "td", "th", "tr", "tbody", "thead"}
"""elements whose end tag HTML lets one leave out"""
SOME = ("causal-br-1x2-f32", "causal-tiny-f32", "full-tiny-f32", "gqa-6-bf16", "gqa-causal-br-ragged-bf16", "mqa-f32")


@implementation("raises")
def rude(q, k, v):  # type: ignore[no-untyped-def]
    raise ValueError(EVIL)


class Reader(HTMLParser):
    """Elements in their order, whether they are nested well, ids, links, and all that would load something."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        self._close_to("")

    def _close_to(self, tag: str) -> None:
        while self.open and self.open[-1] != tag:
            assert self.open[-1] in MAY_STAY_OPEN, f"<{self.open[-1]}> is not closed before </{tag}>"
            self.open.pop()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self._close_to(tag)
            assert self.open, f"</{tag}> closes nothing"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def html() -> str:
    pytest.importorskip("jinja2")
    cases = [by_id(name) for name in SOME]
    wrong = undiagnosed("refattn.mutants:causal_top_left", cases, probing=True)
    known = dataclasses.replace(wrong, spec="known", expected={v.case.id: f"known {EVIL}" for v in wrong.verdicts})
    evil = dataclasses.replace(undiagnosed(rude, cases[2:3]), spec=f"evil:{EVIL}")
    gpu = column([verdict(case, "unsupported", reason="needs a GPU") for case in cases], "flash-attn")
    honest = Column("honest", run(candidates.honest, cases, probing=True))
    columns = [honest, Column(wrong.spec, wrong), Column("known", known), Column(evil.spec, evil), gpu, ABSENT, BROKEN]
    return as_html(made(columns, ["gqa+causal"]))


@pytest.fixture(scope="module")
def read(html: str) -> Reader:
    return Reader(html)


def test_it_is_well_formed_and_has_every_id_once(read: Reader) -> None:
    assert {"html", "head", "body", "table", "details", "svg"} <= read.tags and len(read.ids) == len(set(read.ids))


@pytest.mark.parametrize("text", ["<p><b>x</p>", "<div>", "</div>", "<details><summary></details>"])
def test_the_reader_notices_what_is_not_well_formed(text: str) -> None:
    with pytest.raises(AssertionError):
        Reader(text)


def test_every_link_leads_somewhere_in_the_page(read: Reader) -> None:
    assert len(read.links) > 100 and all(link[:1] == "#" and link[1:] in read.ids for link in read.links)


def test_it_loads_nothing_and_runs_nothing(html: str, read: Reader) -> None:
    assert not read.tags & {"script", "link", "iframe", "object", "embed", "img", "base", "form"}
    names = {name for _, name, _ in read.attributes}
    assert not {n for n in names if n.startswith("on")}
    assert not names & {"src", "srcset", "data", "action", "xlink:href"}
    assert not re.search(r"https?://|@import|url\(", html)


def test_what_a_candidate_says_is_text(html: str, read: Reader) -> None:
    assert "<script" not in html and "<img" not in html
    said = "".join(read.text)
    assert f"ValueError: {EVIL}" in said and f"known {EVIL}" in said and f"evil:{EVIL}" in said
    assert "RuntimeError: <boom>" in said and __file__ not in said  # no frames


def test_a_failing_cell_opens_to_the_element_the_map_and_the_histogram(html: str) -> None:
    cell = html[html.index('<section class="drawer" id="refattn-mutants-causal_top_left.gqa">') :]
    cell = cell[: cell.index("</section>")]
    name = "refattn-mutants-causal_top_left.gqa-causal-br-ragged-bf16"
    assert "FAIL gqa-causal-br-ragged-bf16  out[" in cell and "should be" in cell
    assert "replay: refattn check refattn.mutants:causal_top_left --case gqa-causal-br-ragged-bf16" in cell
    for what in ("map", "bars"):
        assert f'<use href="#{what}.{name}"/>' in cell and f'<g id="{what}.{name}"' in html
    assert "2 of 3 judged cases pass" in cell
    assert re.search(r'class="failed few"[^>]*id="at.refattn-mutants-causal_top_left.gqa"[^>]*>.*✗', html)


def test_columns_say_version_conventions_and_why_they_are_empty(read: Reader) -> None:
    said = " ".join("".join(read.text).split())
    assert "not run: needs a GPU" in said and "not installed" in said and "cannot be loaded" in said
    assert "top left asked: bottom right" in said
    assert "masked_nan_v='leaks'" in said


def test_what_is_known_looks_known(html: str) -> None:
    assert re.search(r'<td class="known[^"]*"[^>]*id="at.known.gqa"[^>]*>.*!', html)


def _large() -> Iterator[Column]:
    """15 columns of all cases; each has 60 failures with pictures, which nothing can be said shortly of."""
    drawn = {
        "output": "out", "at": {"entry": 0, "head": 1}, "down": ["row", 24], "across": ["column", 32], "of": "ratio",
        "map": ["00011110003333000111122222000000", "0" * 32] * 12, "histogram": [5] * 32,
    }  # fmt: skip
    out = Output("out", False, 57.3, 50.0, 12, 4000, (0, 1, 2, 3), 0.4713, 0.4391, 0.4388, 0.4394)
    cases = [case for case in CASES if case.chapter not in FULL]
    for n in range(15):
        verdicts = [verdict(c, "passed" if i % 3 else "unsupported", reason="softcap") for i, c in enumerate(cases)]
        for i in range(n, len(cases), len(cases) // 60):
            notes = ("looks like (its output is within bound of yours): Alignment at the bottom right is done left",)
            verdicts[i] = Verdict(cases[i], "failed", (out,), notes=notes, picture=drawn)
        yield column(verdicts, f"library-{n}")


def test_it_stays_below_3_megabytes() -> None:
    pytest.importorskip("jinja2")
    columns = list(_large())
    assert all(len(c.failures()) >= 60 for c in columns)
    assert len(as_html(made(columns)).encode()) < 3e6


def test_without_jinja_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(NeedsJinja, match="python -m pip install jinja2"):
        as_html(made([ABSENT]))


def test_an_empty_matrix_is_a_page_too() -> None:
    pytest.importorskip("jinja2")
    assert "not installed" in as_html(made([ABSENT]))
    none: Sequence[Case] = ()
    assert "<table" in as_html(made([Column("nothing", Report("nothing", ABOUT, selected=len(none)))]))
