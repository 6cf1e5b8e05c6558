"""The page of the teeth, in Markdown and in HTML: a list of sections, written twice.

A section is a title, a text and a table; both pages are made from the results alone, so that they can be made again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from ..mutants import MUTANTS
from ..page import STYLE
from ..public_rules import RULES
from .power import COLUMNS
from .results import alarms, faults, groups, largest, of, tally

__all__ = ["as_html", "as_markdown"]

Row = Mapping[str, Any]
Results = Mapping[str, Any]


class Section(NamedTuple):
    title: str
    text: tuple[str, ...]
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def sections(results: Results) -> list[Section]:
    found = [_summary(results), _rules()]
    if results["power"]:
        found.append(_power(results["power"]))
    if results["honest"]:
        found.append(_honest(results["honest"]))
    return [*found, _survivors(results["mutants"]), *_matrix(results["mutants"])]


def _summary(results: Results) -> Section:
    mutants, honest, header = results["mutants"], results["honest"], results["header"]
    number, wrong = len(groups(mutants)), faults(results)
    text = [
        ", ".join(f"{name} {value}" for name, value in header.items()) + ".",
        f"{len(mutants)} mutants, {number} that can be killed and are not equal to another in all that follows. "
        "A rule kills a mutant if it rejects its answer and accepts that of the honest kernel to the same problem; a "
        "false alarm is an answer of an honest kernel that it rejects. Own inputs are a handful of problems as "
        "its project has them, and the bounds of this suite on them kill what they can show; our inputs are those by "
        "which this suite kills the mutant.",
        "Made by `refattn teeth --out rows.jsonl --json docs/teeth.json --markdown docs/TEETH.md`, which can be killed "
        "and started again; `--read docs/teeth.json` makes the page alone.",
        f"Faults: {'; '.join(wrong)}." if wrong else "No mutant lives that could be killed; no false alarm of ours.",
    ]
    rows: list[tuple[str, ...]] = [("this suite", "", "", of(tally(mutants, "by")), "", of(alarms(honest, "", False)))]
    for rule in RULES.values():
        cells = [of(tally(mutants, column, rule.name)) for column in ("own", "reach", "ours")]
        rows.append((rule.title, *cells, *(of(alarms(honest, rule.name, own)) for own in (True, False))))
    heads = (
        "rule", "kills, own inputs", "our bounds there", "kills, our inputs", "false alarms, own inputs", "on ours"
    )  # fmt: skip
    return Section("Teeth", tuple(text), heads, rows)


def _rules() -> Section:
    rows = [(r.title, r.who, r.states, " ".join(_ordered(r.compares)), f"{len(r.inputs)}") for r in RULES.values()]
    text = "Written anew from their descriptions: `refattn/public_rules/`."
    return Section("The rules of others", (text,), ("rule", "whose", "what it says", "compares", "own inputs"), rows)


def _ordered(names: frozenset[str]) -> list[str]:
    return ["all outputs"] if len(names) > 8 else sorted(names, key=lambda n: (n != "out", n))


def _power(lines: Sequence[Row]) -> Section:
    text = (
        "Small errors planted into one problem of 256 queries, 4096 keys and a head of 64, drawn from N(0, 1). The "
        "statistics say suspicious, not failed. Always: the rule rejects the honest kernel too. Of dropped keys, how "
        "many are noticed; of scale, the smallest relative error that is noticed with all larger ones, halved from "
        "25 % on."
    )
    heads = ("planted", "dtype", "this suite", "statistics", *(rule.title for rule in RULES.values()))
    rows = [(line["what"], line["dtype"], *(_noticed(line["noticed"][name]) for name in COLUMNS)) for line in lines]
    return Section("Power", (text,), heads, rows)


def _noticed(x: Any) -> str:
    if isinstance(x, str):
        return x
    if isinstance(x, bool):
        return "yes" if x else "no"
    return f"{x}" if isinstance(x, int) else "none" if x is None else f"{100 * x:.2g} %"


def _honest(honest: Sequence[Row]) -> Section:
    rows: list[tuple[str, ...]] = [
        (name, f"{ratio:g}", where, f"{number:,}") for name, (ratio, where, number) in largest(honest).items()
    ]
    text = (
        "The largest ratio of each honest kernel by our bounds; 1 is the limit, and reached where the interval ends at "
        "the next number of the output's format."
    )
    return Section("Honest kernels", (text,), ("kernel", "largest ratio", "on", "problems"), rows)


def _survivors(mutants: Sequence[Row]) -> Section:
    rows: list[tuple[str, ...]] = []
    for row in mutants:
        mutant = MUTANTS.get(row["name"])
        why = "" if mutant is None else mutant.survives or (mutant.equal and f"killed; equal on {mutant.equal}")
        if why or row["suspicious"] or not row["by"]:
            seen = f" The statistics: {row['suspicious']}." if row["suspicious"] else ""
            rows.append((row["name"], row["what"], f"{why}{seen}"))
    text = "Mutants that nothing kills, and why; and those that equal a correct kernel on some observable."
    return Section("Equivalent mutants", (text,), ("mutant", "what is wrong", "why"), rows)


def _matrix(mutants: Sequence[Row]) -> list[Section]:
    heads = ("mutant", "what is wrong", "seen", "killed by", "ratio", *(rule.title for rule in RULES.values()))
    found = []
    for n, family in enumerate(dict.fromkeys(row["family"] for row in mutants)):
        rows = [_line(row) for row in mutants if row["family"] == family]
        text = (
            "Seen: public reports of it, or of its kin; none is known where it is empty. Killed by: the "
            "case or law with us. The rules of others: killed with their own inputs, with ours, with both, or not (-)."
        )
        found.append(Section(f"Mutants: {family}", () if n else (text,), heads, rows))
    return found


def _line(row: Row) -> tuple[str, ...]:
    ratio = f"{row['ratio']:.3g}" if row["ratio"] is not None else row["reason"]
    by = row["by"] or ("suspicious" if row["suspicious"] else "-")
    seen = MUTANTS[row["name"]].seen if row["name"] in MUTANTS else ()
    return (row["name"], row["what"], " ".join(seen), by, ratio, *(_killed(row, name) for name in RULES))


def _killed(row: Row, rule: str) -> str:
    if row["own"] is None:
        return "ours" if row["ours"][rule] else "-"
    own, ours = bool(row["own"][rule]), bool(row["ours"][rule])
    return "both" if own and ours else "own" if own else "ours" if ours else "-"


def as_markdown(results: Results) -> str:
    text = []
    for n, section in enumerate(sections(results)):
        text += [f"{'##' if n else '#'} {section.title}", ""]
        for paragraph in section.text:
            text += [paragraph, ""]
        if section.rows:
            text += [f"| {' | '.join(section.heads)} |", "|" + "---|" * len(section.heads)]
            text += [f"| {' | '.join(map(_cell, row))} |" for row in section.rows]
            text.append("")
    return "\n".join(text)


def _cell(text: str) -> str:
    for sign in "\\|*_<>[]":
        text = text.replace(sign, "\\" + sign)
    return text.replace("\n", " ")


def as_html(results: Results) -> str:
    """A page that needs nothing but itself."""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>refattn: teeth</title><style>{STYLE}</style></head><body>
{"".join(_as_html(n, section) for n, section in enumerate(sections(results)))}</body></html>
"""


def _as_html(n: int, section: Section) -> str:
    level = "h2" if n else "h1"
    text = "".join(f"<p>{_code(escape(paragraph))}</p>\n" for paragraph in section.text)
    head = "".join(f"<th>{escape(name)}</th>" for name in section.heads)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in section.rows)
    table = f"<div style='overflow-x: auto'><table><tr>{head}</tr>\n{rows}</table></div>"
    return f"<{level}>{escape(section.title)}</{level}>\n{text}{table}\n"


def _code(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
