"""The matrix as data: rows, cells, and what is exported from them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import candidates
import pytest

from refattn.calling import Description
from refattn.case import Case
from refattn.cases import CASES, by_id
from refattn.conform import Report, run
from refattn.judge import Output, Status, Verdict
from refattn.masks import Causal
from refattn.matrix.exports import as_json, as_junit_xml, as_markdown
from refattn.matrix.page import MARKS
from refattn.matrix.table import Column, made
from refattn.matrix.variants import ROWS, joined, rows_of
from refattn.precision import Conventions
from refattn.probes import Convention

ABOUT = Description("made up", "1.0", "numpy", Conventions(masked_nan_v="leaks"), frozenset({"out"}))
ABSENT = Column("mlx", None, "not installed", "mlx is not installed: python -m pip install mlx")
BROKEN = Column("mine:f", None, "cannot be loaded", "RuntimeError: <boom> & | so on")


def verdict(case: Case, status: Status, ratio: float = 0.5, reason: str = "") -> Verdict:
    output = Output("out", status != "failed", ratio, ratio, int(status == "failed"), 8, (0, 0, 0, 0))
    return Verdict(
        case, status, () if status == "unsupported" else (output,), (reason,) if reason else (),
        conventions={"masked_nan_v": "leaks"} if status == "acceptable" else {},
    )  # fmt: skip


def column(verdicts: Sequence[Verdict], spec: str = "made", **known: str) -> Column:
    report = Report(spec, ABOUT, selected=len(verdicts), verdicts=list(verdicts))
    report.expected = {name.replace("_", "-"): why for name, why in known.items()}
    return Column(spec, report)


def has(word: str, case: Case) -> bool:
    return joined(word).has(case, case.features())


def undiagnosed(spec: Any, cases: Sequence[Case], probing: bool = False) -> Report:
    """A run in which the bugs of failing cases are not looked for, which takes seconds."""
    report = run(spec, cases, probing=probing, expected={case.id: "so that they are not" for case in cases})
    return dataclasses.replace(report, expected={})


def some(n: int) -> list[Case]:
    return [Case(f"case-{i}", "made up", mask=Causal("top_left"), Lq=3, Lk=3) for i in range(n)]


def test_every_case_is_in_a_row_and_every_row_has_cases() -> None:
    rows = rows_of(CASES)
    assert frozenset().union(*(ids for _, ids in rows)) == {case.id for case in CASES}
    assert [row.word for row, _ in rows] == [row.word for row in ROWS]
    assert len({row.word for row in ROWS}) == len(ROWS) == len({(row.group, row.title) for row in ROWS})


def test_a_joined_row_has_the_cases_that_all_its_parts_have() -> None:
    ids = {row.word: ids for row, ids in rows_of(CASES, ["gqa+bias"])}
    assert ids["gqa+bias"] == ids["gqa"] & ids["bias"] and ids["gqa+bias"]
    assert ids["gqa+causal-br+softcap"] == ids["gqa"] & ids["causal-br"] & ids["softcap"]
    with pytest.raises(ValueError, match="'gqq' is not one of basics, plain"):
        joined("causal+gqq")


@pytest.mark.parametrize("word, name", [("causal-br", "causal-br-1x2-f32"), ("gqa", "mqa-f32"), ("mqa", "mqa-f32")])
def test_rows_are_about_what_they_say(word: str, name: str) -> None:
    assert has(word, by_id(name)) and not has(word, by_id("full-tiny-f32"))


def test_alignment_tells_rows_apart_only_where_it_matters() -> None:
    for align, other in (("top_left", "tl"), ("bottom_right", "br")):
        square = Case("x", "y", Lq=4, Lk=4, mask=Causal(align))  # type: ignore[arg-type]
        wide = dataclasses.replace(square, Lk=6)
        assert has(f"causal-{other}", wide) and not has(f"causal-{other}", square)
    assert not has("causal-br", Case("x", "y", Lq=4, Lk=6, mask=Causal("top_left")))


@pytest.mark.parametrize("statuses, known, kind, good, judged", [
    (["passed", "passed"], {}, "passed", 2, 2),
    (["passed", "acceptable", "unsupported"], {}, "acceptable", 2, 2),
    (["passed", "failed"], {}, "failed", 1, 2),
    (["passed", "failed"], {"case_1": "why"}, "known", 1, 2),
    (["failed", "failed"], {"case_1": "why"}, "failed", 0, 2),
    (["unsupported", "unsupported"], {}, "unsupported", 0, 0),
    ([], {}, "not run", 0, 0),
])  # fmt: skip
def test_what_a_cell_comes_to(
    statuses: list[Status], known: dict[str, str], kind: str, good: int, judged: int
) -> None:  # fmt: skip
    cases = some(3)
    c = column([verdict(case, s) for case, s in zip(cases, statuses, strict=False)], **known)
    ids = frozenset(case.id for case in cases)
    cell = made([c]).cell(ROWS[0], ids, c)
    assert (cell.kind, cell.good, cell.judged, cell.missing) == (kind, good, judged, 3 - len(statuses))
    assert c.bad() == (kind == "failed" or not judged) and cell.kind in MARKS


def test_what_all_failing_cases_share() -> None:
    wide = [dataclasses.replace(case, Lk=5, softcap=1.0) for case in some(2)]
    c = column([*(verdict(case, "failed", 7.0) for case in wide), verdict(Case("plain", "p", Lk=2), "passed")])
    cell = made([c]).cell(ROWS[0], frozenset(c.by_id), c)
    assert cell.shared() == ["causal", "mask", "softcap"]  # and not Lq!=Lk, which the one that passes has
    assert made([c]).cell(ROWS[0], frozenset({"case-0", "plain"}), c).shared() == []


def test_a_row_about_an_output_counts_only_what_returns_it() -> None:
    case = dataclasses.replace(some(1)[0], want=frozenset({"out", "lse"}))
    c = column([verdict(case, "passed")])  # which has no lse
    ids = frozenset({case.id})
    cell = made([c]).cell(joined("lse"), ids, c)
    assert (cell.kind, cell.reasons()) == ("unsupported", [("returns no lse", [case.id])])
    assert made([c]).cell(joined("causal"), ids, c).kind == "passed"
    assert made([c]).cell(joined("lse+causal"), ids, c).kind == "unsupported"
    raised = column([Verdict(case, "failed", reasons=("raised: x",))])
    assert made([raised]).cell(joined("lse"), ids, raised).kind == "unsupported"  # ABOUT returns out alone
    assert made([raised]).cell(joined("causal"), ids, raised).kind == "failed"


def test_reasons_and_conventions_are_counted() -> None:
    cases = some(4)
    c = column([verdict(cases[0], "unsupported", reason="gqa"), verdict(cases[1], "unsupported", reason="softcap"),
                verdict(cases[2], "unsupported", reason="softcap"), verdict(cases[3], "acceptable")])  # fmt: skip
    cell = made([c]).cell(ROWS[0], frozenset(c.by_id), c)
    assert cell.reasons() == [("softcap", ["case-1", "case-2"]), ("gqa", ["case-0"])]
    assert cell.conventions() == [("masked_nan_v='leaks'", ["case-3"])] and c.not_run == ""


def test_why_a_column_is_empty() -> None:
    gpu = column([verdict(case, "unsupported", reason="needs a GPU") for case in some(3)])
    assert gpu.not_run == "not run: needs a GPU" and not gpu.bad()
    first, second = some(2)
    mixed = column([verdict(first, "unsupported", reason="gqa"), verdict(second, "unsupported", reason="needs a GPU")])
    assert mixed.not_run == "not run: needs a GPU"
    assert ABSENT.not_run == "not installed" and not ABSENT.bad()
    assert BROKEN.not_run == "cannot be loaded" and BROKEN.bad()
    assert column([verdict(some(1)[0], "passed")]).not_run == ""


def test_a_broken_promise_is_bad() -> None:
    c = column([verdict(some(1)[0], "passed")])
    assert c.report is not None and not c.bad()
    c.report.probed = (Convention("NaN in a hidden value", "neither", "leaks", "masked_nan_v", known=True),)
    assert c.bad()


@pytest.fixture(scope="module")
def columns() -> list[Column]:
    cases = [by_id(name) for name in ("causal-br-1x2-f32", "mqa-f32", "full-tiny-f32", "causal-tiny-f32")]
    honest = run(candidates.honest, cases, probing=True)
    rude = undiagnosed(candidates.ignores_masks, cases)
    return [Column("honest", honest), Column("a:b|c", rude), ABSENT, BROKEN]


def test_markdown(columns: list[Column]) -> None:
    text = as_markdown(made(columns), "matrix.html")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {4}  # two that were run, and the names
    assert "| causal | ✓ 2/2 | ✗ 1/2," in text and "[matrix.html](matrix.html)" in text
    assert "- mlx: not installed\n- mine:f: cannot be loaded" in text and "b\\|c" in text


def test_json_has_every_cell_and_no_nan(columns: list[Column]) -> None:
    data = json.loads(json.dumps(as_json(made(columns)), allow_nan=False))
    causal = next(row for row in data["rows"] if row["row"] == "causal")
    assert causal["cells"]["honest"]["kind"] == "passed" and causal["cells"]["honest"]["passed"] == 2
    assert causal["cells"]["a:b|c"]["failed"] and causal["cells"]["mlx"]["kind"] == "not run"
    assert data["implementations"]["mlx"]["not_run"] == "not installed"
    assert data["implementations"]["honest"]["counts"]["passed"] == data["cases"] == 4


def test_junit_has_a_suite_for_each(columns: list[Column]) -> None:
    suites = list(ElementTree.fromstring(as_junit_xml(made(columns))))
    counts = [tuple(int(suite.get(n, "")) for n in ("tests", "failures", "errors", "skipped")) for suite in suites]
    assert counts == [(4, 0, 0, 0), (4, 1, 0, 0), (1, 0, 0, 1), (1, 0, 1, 0)]
    assert suites[3][0][0].text == BROKEN.said
