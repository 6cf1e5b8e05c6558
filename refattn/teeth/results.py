"""What rows amount to: mutants with equal kill vectors count once, and so does what they are killed by.

Results are plain data: {"header": versions and date, "mutants": rows of `matrix`, "honest": rows of `honest`,
"power": lines of `power`}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..mutants import MUTANTS
from ..public_rules import RULES

__all__ = ["Count", "alarms", "faults", "groups", "largest", "of", "summary_table", "tally"]

Row = Mapping[str, Any]
Results = Mapping[str, Any]
Count = tuple[int, int]
"""so many of so many"""


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The mutants that can be killed, those of equal kill vectors together.

    Equal: the same killers fail it by our bounds, and the same inputs of the others each of their rules.  What has not
    been asked of all killers stays alone, and so does what a law alone kills.
    """
    found: dict[Any, list[Row]] = {}
    for row in rows:
        if _survives(row["name"]):
            continue
        alone = row["vector"] in (None, "0")
        kills = None if row["own"] is None else tuple(row["own"].items())
        key = row["name"] if alone else (row["vector"], kills, tuple(row["ours"].items()))
        found.setdefault(key, []).append(row)
    return list(found.values())


def _survives(name: str) -> bool:
    return name in MUTANTS and bool(MUTANTS[name].survives)


def tally(rows: Sequence[Row], column: str, rule: str = "") -> Count | None:
    """Of how many groups a column kills how many: "by" (ours), "suspicious", or "own", "reach" or "ours" of a rule.

    None if that was not asked of all.
    """
    all_groups = groups(rows)
    if rule and any(row[column] is None for row in rows):
        return None
    killed = [g for g in all_groups if (g[0][column][rule] if rule else g[0][column])]
    return len(killed), len(all_groups)


def alarms(honest: Sequence[Row], rule: str, own: bool) -> Count:
    """How many answers of honest kernels the rule rejects; "" is ours."""
    rejected = asked = 0
    for row in honest:
        if (row["owner"] == rule) if own else (not row["owner"] or rule == ""):
            asked += len(row["kernels"])
            for found in row["kernels"].values():
                rejected += (not found["ratio"] <= 1) if rule == "" else rule in found["alarms"]
    return rejected, asked


def largest(honest: Sequence[Row]) -> dict[str, tuple[float, str, int]]:
    """Of each honest kernel the largest ratio by our bounds, where, and how many cases it was asked."""
    found: dict[str, tuple[float, str, int]] = {}
    for row in honest:
        for name, one in row["kernels"].items():
            ratio, where, number = found.get(name, (0.0, "", 0))
            worse = not one["ratio"] <= ratio
            found[name] = (one["ratio"] if worse else ratio, row["name"] if worse else where, number + 1)
    return found


def faults(results: Results) -> list[str]:
    """What must not be: mutants that live, and honest answers that we reject."""
    found = [
        f"{row['name']} lives: it passes {MUTANTS[row['name']].caught or 'everything'}"
        for row in results["mutants"]
        if not row["by"] and row["name"] in MUTANTS and not _survives(row["name"])
    ]
    for row in results["honest"]:
        for name, one in row["kernels"].items():
            if not one["ratio"] <= 1:
                found.append(f"false alarm: the honest kernel {name!r} has ratio {one['ratio']:g} on {row['name']}")
    return found


def summary_table(results: Results) -> str:
    """Ten lines of Markdown: what each rule kills, with its own inputs and with ours, and how often it cries wolf."""
    lines = [
        "| rule | kills, own inputs | our bounds there | kills, our inputs | false alarms, own inputs | on ours |",
        "|---|---|---|---|---|---|",
        f"| this suite | | | {of(tally(results['mutants'], 'by'))} | | {of(alarms(results['honest'], '', False))} |",
    ]
    for rule in RULES.values():
        cells = [of(tally(results["mutants"], column, rule.name)) for column in ("own", "reach", "ours")]
        cells += [of(alarms(results["honest"], rule.name, own)) for own in (True, False)]
        lines.append(f"| {rule.title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def of(count: Count | None) -> str:
    return "" if count is None or not count[1] else f"{count[0]:,} of {count[1]:,}"
