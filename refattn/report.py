"""What a run has found, for people (text) and for machines (JSON, JUnit).

A failure reads

    FAIL gqa-causal-br  out[0, 5, 2, 17] = 0.4713, should be 0.4391 in [0.4388, 0.4394]   ratio 103.9 (limit 1; ...
         replay: refattn check my_kernel:attention --case gqa-causal-br

and the same text is the message of a failing pytest item and of a JUnit testcase.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from .case import NAMES
from .conform import Report
from .judge import Output, Verdict
from .laws import law_of
from .report_json import as_finite, convention_as_json, implementation_as_json, suite_version, verdict_as_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "as_fields", "as_finite", "as_json", "as_junit", "as_numbers", "as_ratio", "failure", "header", "print_failure",
    "print_summary", "suite_version", "totals",
]  # fmt: skip

_INDENT = "     "
_REASONS = 8
"""so many lines say what is unsupported"""
_STALE = "is listed as an expected failure"


def header(report: Report) -> list[str]:
    """What was run: suite, implementation, what it declares, seed."""
    about = report.description
    declared = as_fields(about.conventions.declared())
    outputs = f"outputs {' '.join(n for n in NAMES if n in about.outputs)}; conventions {declared or 'the defaults'}"
    earlier = []
    if report.recorded:
        again = f"; {report.again} that failed are run again, for the diagnosis" if report.again else ""
        earlier = [f"going on: {report.recorded} of {report.selected} cases were judged before{again}"]
    probed = [f"found: {'; '.join(_found(report))}"] if report.probed else []
    return [
        f"refattn {suite_version()}, seed {report.seed}, {report.selected} cases",
        f"{report.spec}: {' '.join(x for x in (about.name, about.version) if x)}, {about.arrays} arrays",
        *earlier,
        *textwrap.wrap(outputs, 80, subsequent_indent="  ", break_long_words=False),
        *(line for text in probed for line in textwrap.wrap(text, 80, subsequent_indent="  ", break_long_words=False)),
        "tolerance: derived for each element from the preset contract of its dtype; what",
        "is looser is listed; the sharp bound decides: 1e-6 false alarms over the suite",
    ]


def _found(report: Report) -> list[str]:
    """What the probes found; those that the implementation refused in one."""
    refused = [row.name for row in report.probed if row.found == "unsupported"]
    found = [f"{row.name}: {row.found}" for row in report.probed if row.found != "unsupported"]
    return found + ([f"unsupported: {', '.join(refused)}"] if refused else [])


def _replay(spec: str, verdict: Verdict, seed: int = 0) -> str:
    """The command that runs this case, or its law, again; a case that is not in the suite is written out."""
    from .cases import CASES
    from .laws import rows

    case, law = verdict.case, law_of(verdict.case)
    known = CASES if law is None else rows([law])
    if any(dataclasses.replace(c, seed=c.seed + seed) == case for c in known if c.id == case.id):
        which = f"--case {case.id}" if law is None else f"--laws --law {law.name}"
        return f"refattn check {shlex.quote(spec)} {which}" + (f" --seed {seed}" if seed else "")
    return f"refattn check {shlex.quote(spec)} --case-json {shlex.quote(json.dumps(case.to_json()))}"


def failure(verdict: Verdict, spec: str | None, seed: int = 0) -> str:
    """The text of a failed case: each fault, what it looks like, and, if `spec` names it, how to see it again."""
    faults = [_out_of_bounds(o) for o in verdict.outputs if not o.passed] + list(verdict.reasons)
    lines = [f"FAIL {verdict.case.id}  {faults[0] if faults else ''}", *faults[1:], *verdict.notes]
    if verdict.loosened and verdict.contract is not None:
        lines.append(f"contract loosened: {as_fields(verdict.loosened)} ({verdict.contract.source})")
    if spec is not None:
        lines.append(f"replay: {_replay(spec, verdict, seed)}")
    return "\n".join([lines[0], *(_indented(line) for line in lines[1:])])


def _indented(text: str) -> str:
    return "\n".join(_INDENT + line for line in text.split("\n"))


def _out_of_bounds(o: Output) -> str:
    got, value, lo, hi = as_numbers(o.got, o.value, o.lo, o.hi)
    where = f"{o.name}[{', '.join(map(str, o.index))}]"
    limits = f"limit 1; rigorous {as_ratio(o.rigorous_ratio)}"
    return (
        f"{where} = {got}, should be {value} in [{lo}, {hi}]   "
        f"ratio {as_ratio(o.ratio)} ({limits}), {o.failing:,} of {o.elements:,} elements"
    )


def as_numbers(*values: float) -> list[str]:
    """The numbers with as few digits, 4 or more, as keep different ones apart."""
    for digits in range(4, 18):
        texts = [f"{x:.{digits}g}" for x in values]
        if len(set(texts)) == len({repr(x) for x in values}):
            break
    return texts


def as_ratio(x: float) -> str:
    return f"{x:,.1f}" if 100 <= x < 1e6 else f"{x:.4g}" if x != 1 + 2**-52 else "just over 1"


def as_fields(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def print_failure(console: Console, verdict: Verdict, spec: str, seed: int = 0, expected: str = "") -> None:
    """Print it unwrapped, so that its replay line can be copied."""
    from rich.text import Text

    text = Text(failure(verdict, spec, seed))
    if expected:
        text.append(f"\n{_INDENT}expected: {expected}")
    text.stylize("yellow" if expected else "bold red", 0, 4)
    console.print(text, soft_wrap=True)


def print_summary(console: Console, report: Report, verbose: bool = False) -> None:
    """Tables by chapter and by dtype, the conventions and contracts that were needed, and the totals.

    Of what is unsupported the most frequent reasons, or, if `verbose`, all reasons with all cases.
    """
    for title, key in (("chapter", lambda v: v.case.chapter), ("dtype", lambda v: v.case.dtype)):
        console.print(_table(title, report.verdicts, key))
    acceptable = [v for v in report.verdicts if v.status == "acceptable"]
    for why, members in _groups(acceptable, lambda v: as_fields(v.conventions) or " ".join(v.reasons)).items():
        console.print(f"acceptable, as declared: {why}: {_some([v.case.id for v in members])}", soft_wrap=True)
    for line in _unsupported(report, verbose):
        console.print(line, soft_wrap=True)
    for v in (v for v in report.verdicts if v.suspicions):
        console.print(f"suspicious: {v.case.id}: {'; '.join(v.suspicions)}", soft_wrap=True)
    loosened = [v for v in report.verdicts if v.loosened and v.contract is not None]
    for why, members in _groups(loosened, lambda v: f"{as_fields(v.loosened)} ({v.contract.source})").items():  # type: ignore[union-attr]
        console.print(f"loosened: {why}: {len(members)} cases", soft_wrap=True)
    if any(note.startswith("undeclared") for v in report.verdicts for note in v.notes):
        console.print("if a convention is meant, declare it: @implementation(conventions=Conventions(...))")
    for row in (row for row in report.probed if not row.fits):
        label = "BROKEN PROMISE" if row in report.broken_promises() else "mismatch"
        console.print(f"{label}: {row}", soft_wrap=True)
    for n, line in enumerate(report.diagnosis):
        console.print(f"{'diagnosis: ' if n == 0 else '           '}{line}", soft_wrap=True, highlight=False)
    if report.smallest:
        console.print("the smallest that fails, as a test:")
        console.print(report.smallest, soft_wrap=True)
    for v in report.stale():
        mend = "" if report.stale_fails else "; it is listed for another version, or machine, and is no failure"
        console.print(f"stale: {v.case.id} passes, but {_STALE}: {report.expected[v.case.id]}{mend}", soft_wrap=True)
    console.print(totals(report), soft_wrap=True)


def _unsupported(report: Report, verbose: bool) -> list[str]:
    """A line for each reason, the most frequent first; and what a plain function takes in vain."""
    refused = [v for v in report.verdicts if v.status == "unsupported"]
    groups = sorted(_groups(refused, _refusal).items(), key=lambda group: -len(group[1]))
    shown = len(groups) if verbose or len(groups) <= _REASONS else _REASONS - 1
    lines = [
        f"unsupported: {why}: {_some([v.case.id for v in members], len(members) if verbose else 3)}"
        for why, members in groups[:shown]
    ]
    if groups[shown:]:
        rest = sum(len(members) for _, members in groups[shown:])
        lines.append(f"unsupported: {len(groups) - shown} other reasons: {rest} cases; -v shows all")
    if report.description.never_given:
        names = " ".join(report.description.never_given)
        lines.append(f"never given: {names}: no case has an option so named; docs/HOWTO.md wraps it")
    called = [v for v in report.verdicts if v.status != "unsupported"]
    if report.description.arrays == "numpy" and called and all("".join(v.reasons).startswith("raised") for v in called):
        lines.append('every call raised: it is handed NumPy arrays; @implementation(arrays="torch") hands over others')
    return lines


def _refusal(verdict: Verdict) -> str:
    """Its reason; that of outputs which are not declared is one, whatever they are."""
    return re.sub(r"^declares no [a-z_ ]+;", "declares none of the outputs;", " ".join(verdict.reasons))


def _some(names: list[str], most: int = 6) -> str:
    return " ".join(names) if len(names) <= most else f"{' '.join(names[:most])} and {len(names) - most} more"


def totals(report: Report) -> str:
    """Passed of selected and the other results; the largest ratio that still passed."""
    counts = report.counts()
    loosened = sum(1 for v in report.verdicts if v.loosened and v.status in ("passed", "acceptable"))
    words = [
        f"{counts['passed']} of {report.selected} passed" + (f" ({loosened} loosened)" if loosened else ""),
        *(f"{counts[status]} {status}" for status in ("acceptable", "unsupported", "failed")),
    ]
    missing = report.selected - len(report.verdicts)
    if report.expected:
        words.append(f"{counts['failed'] - len(report.failures())} failures expected, {len(report.stale())} stale")
    if missing:
        words.append(f"{missing} not run")
    line = ", ".join(words) + (" (interrupted)" if report.interrupted else "")
    good = [v for v in report.verdicts if v.status in ("passed", "acceptable")]
    if good:
        largest = max(good, key=lambda v: v.ratio)
        line = f"largest ratio that passed: {as_ratio(largest.ratio)} in {largest.case.id}\n{line}"
    return line


def _groups(verdicts: Iterable[Verdict], key: Callable[[Verdict], str]) -> dict[str, list[Verdict]]:
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(key(verdict), []).append(verdict)
    return groups


def _table(title: str, verdicts: list[Verdict], key: Callable[[Verdict], str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title, box=box.SIMPLE_HEAD, pad_edge=False)
    statuses = ("passed", "acceptable", "unsupported", "failed")
    for name in (*statuses, "largest ratio"):
        table.add_column(name, justify="right")
    for name, members in _groups(verdicts, key).items():
        counts = [sum(v.status == status for v in members) for status in statuses]
        judged = [v.ratio for v in members if v.outputs]
        style = "red" if counts[-1] else ""
        table.add_row(name, *map(str, counts), as_ratio(max(judged)) if judged else "-", style=style)
    return table


def as_json(report: Report) -> dict[str, Any]:
    """The whole report as a JSON object; numbers that are not finite are the strings nan, inf, -inf."""
    return {
        "suite": suite_version(),
        "seed": report.seed,
        "selected": report.selected,
        "interrupted": report.interrupted,
        "implementation": implementation_as_json(report),
        "counts": report.counts(),
        "probed": [convention_as_json(row) for row in report.probed],
        "diagnosis": list(report.diagnosis),
        "smallest": report.smallest,
        "verdicts": [verdict_as_json(v, report.expected) for v in report.verdicts],
    }


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: Report) -> str:
    """JUnit XML: a testcase for each case, its chapter as the class name."""
    expected = {v.case.id for v in report.verdicts if v.status == "failed"} - {v.case.id for v in report.failures()}
    stale = {v.case.id for v in report.stale()} if report.stale_fails else set()
    suite = ElementTree.Element(
        "testsuite",
        name=_xml(f"refattn {report.spec}"),
        tests=str(len(report.verdicts)),
        failures=str(len(report.failures()) + len(stale)),
        errors="0",
        skipped=str(report.counts()["unsupported"] + len(expected)),
        time=f"{sum(v.seconds for v in report.verdicts):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    about = report.description
    for name, value in (
        ("suite", suite_version()),
        ("implementation", f"{about.name} {about.version}".strip()),
        ("conventions", as_fields(about.conventions.declared())),
        ("outputs", " ".join(sorted(about.outputs))),
        ("seed", str(report.seed)),
    ):
        ElementTree.SubElement(properties, "property", name=name, value=_xml(value))
    for v in report.verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"refattn.{v.case.chapter}", name=v.case.id, time=f"{v.seconds:.3f}"
        )
        if v.case.id in expected:
            ElementTree.SubElement(case, "skipped", message=_xml(f"expected failure: {report.expected[v.case.id]}"))
        elif v.case.id in stale:
            ElementTree.SubElement(case, "failure", message=_xml(f"passes, but {_STALE}: {report.expected[v.case.id]}"))
        elif v.status == "failed":
            text = _xml(failure(v, report.spec, report.seed))
            ElementTree.SubElement(case, "failure", message=text.split("\n")[0]).text = text
        elif v.status == "unsupported":
            ElementTree.SubElement(case, "skipped", message=_xml(" ".join(v.reasons)))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold, such as the escape of a coloured traceback."""
    return _NOT_XML.sub("�", text)
