"""One page of what the proofs found, with their pictures: HTML in one file, or Markdown with a file for each."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from .proofs import Outcome, number, statistic, totals

__all__ = ["as_html", "as_markdown"]

HEADS = ("statistic", "got", "expected", "samples", "decision")
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 0.9em; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { white-space: pre-wrap; background: #f6f6f6; padding: 0.8rem; font-size: 0.85em; }
img { max-width: 100%; }
.holds { color: #176b2c; } .refuted, .failed { color: #b00020; font-weight: bold; } .undecided { color: #8a6100; }
"""


def as_html(outcomes: Sequence[Outcome], settings: str) -> str:
    """A page that needs nothing but itself."""
    body = "\n".join(_section(o) for o in outcomes)
    lines = "".join(
        f'<tr><td><a href="#{escape(o.proof.name)}">{escape(o.proof.claim)}</a></td><td>{escape(statistic(o))}</td>'
        f'{_decision(o.decision)}<td class="n">{o.samples:,}</td><td class="n">{o.seconds:.1f}</td></tr>\n'
        for o in outcomes
    )
    head = "".join(f"<th>{name}</th>" for name in ("claim", "decisive statistic", "decision", "samples", "s"))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>refattn: proofs</title><style>{STYLE}</style></head><body>
<h1>Proofs</h1>
<p>{escape(totals(outcomes))}; {escape(settings)}.</p>
<table><tr>{head}</tr>
{lines}</table>
{body}
</body></html>
"""


def _decision(decision: str) -> str:
    return f'<td class="{escape(decision)}">{escape(decision)}</td>'


def _section(o: Outcome) -> str:
    picture = ""
    if o.picture is not None:
        data = base64.b64encode(o.picture).decode()
        picture = f'<p><img alt="{escape(o.proof.claim)}" src="data:image/png;base64,{data}"></p>'
    message = f'<p class="failed">{escape(o.message)}</p>' if o.message else ""
    lines = "".join(
        "<tr>" + "".join(f'<td class="n">{escape(cell)}</td>' if 0 < i < 4 else f"<td>{escape(cell)}</td>"
                         for i, cell in enumerate(row[:4])) + _decision(row[4]) + "</tr>\n"
        for row in _rows(o)
    )  # fmt: skip
    head = "".join(f"<th>{name}</th>" for name in HEADS)
    return f"""<h2 id="{escape(o.proof.name)}">{escape(o.proof.claim)}</h2>
<p><code>python -m proofs.{escape(o.proof.name)}</code>: <span class="{escape(o.decision)}">{escape(o.decision)}</span>,
{o.seconds:.1f} s</p>
{message}{picture}
<details><summary>What is claimed, and how it is decided</summary><pre>{escape(o.proof.document)}</pre></details>
<details><summary>{len(o.findings)} findings</summary><table><tr>{head}</tr>
{lines}</table></details>"""


def as_markdown(outcomes: Sequence[Outcome], settings: str, path: Path) -> None:
    """Writes the page to `path`, and each picture beside it."""
    text = ["# Proofs", "", f"{totals(outcomes)}; {settings}.", ""]
    text += _markdown_table(("claim", "decisive statistic", "decision", "samples", "s"), (
        (f"[{_cell(o.proof.claim)}](#{o.proof.name})", statistic(o), o.decision, f"{o.samples:,}", f"{o.seconds:.1f}")
        for o in outcomes
    ))  # fmt: skip
    for o in outcomes:
        text += ["", f'## <a id="{o.proof.name}"></a>{o.proof.claim}', ""]
        if o.message:
            text += [f"**{o.decision}**: `{o.message}`", ""]
        if o.picture is not None:
            picture = path.with_name(f"{path.stem}-{o.proof.name}.png")
            picture.write_bytes(o.picture)
            text += [f"![{o.proof.claim}]({picture.name})", ""]
        text += ["<details><summary>What is claimed, and how it is decided</summary>", "", "```text",
                 o.proof.document, "```", "", "</details>", ""]  # fmt: skip
        text += [f"<details><summary>{len(o.findings)} findings</summary>", ""]
        text += [*_markdown_table(HEADS, _rows(o)), "", "</details>"]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")


def _rows(o: Outcome) -> Iterator[tuple[str, str, str, str, str]]:
    for f in o.findings:
        samples = f"{f['samples']:,}" if f["samples"] else ""
        yield f["what"], number(f["got"]), number(f["expected"]), samples, f["decision"]


def _markdown_table(heads: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        first, *rest = row
        yield f"| {' | '.join([first if first.startswith('[') else _cell(first), *map(_cell, rest)])} |"


def _cell(text: str) -> str:
    """The text as a cell: nothing in it ends the cell or is markup."""
    for sign in "\\|*_<>[]`":
        text = text.replace(sign, "\\" + sign)
    return text.replace("\n", " ")
