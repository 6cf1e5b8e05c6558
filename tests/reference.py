"""Makes docs/REFERENCE.md out of the code: `python tests/reference.py > docs/REFERENCE.md`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

sys.path.insert(0, str(Path(__file__).parent.parent))

from refattn import asserting, cases, strategies  # noqa: E402
from refattn.cases import CASES, CHAPTERS, FLAGS, FULL  # noqa: E402
from refattn.dtypes import FORMATS  # noqa: E402
from refattn.inputs import BIAS, FAMILIES, SINKS  # noqa: E402
from refattn.judging import INPUTS, JUDGED, judge_arrays, question  # noqa: E402
from refattn.laws import LAWS  # noqa: E402
from refattn.precision import Conventions, Precision, preset  # noqa: E402
from refattn.score_mods import SCORE_MODS  # noqa: E402

TOP = """# Reference

Made out of the code by `python tests/reference.py > docs/REFERENCE.md`; a test holds that it is not stale. What each
feature means, and what an implementation is handed: [FEATURES.md](FEATURES.md). How to use it: [HOWTO.md](HOWTO.md).

- [Conventions](#conventions), [contract](#contract), [dtypes](#dtypes)
- [assert_attention](#assert_attention), [pytest](#pytest)
- [Features](#features), [input families](#input-families)
- [Cases by chapter](#cases), [flags](#flags), [laws](#laws)
"""


def page() -> str:
    parts = [TOP, *conventions(), *contract(), *dtypes(), *asserted(), *plugin(), *features(), *families(), *chapters()]
    return "\n".join([*parts, *flags(), *laws()])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)] + [""]


def said(kind: type) -> dict[str, str]:
    """What is written below each field of a class."""
    body = next(node for node in ast.walk(ast.parse(inspect.getsource(kind))) if isinstance(node, ast.ClassDef)).body
    found = {}
    for field, below in zip(body, body[1:], strict=False):
        text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            found[field.target.id] = " ".join(str(text).split())
    return found


def first_line(x: Any) -> str:
    """The first sentence of a docstring; nothing of a lambda or a dataclass without one."""
    return " ".join((inspect.getdoc(x) or "").split("\n\n")[0].split())


def conventions() -> list[str]:
    kinds, below = get_type_hints(Conventions), said(Conventions)
    rows = []
    for f in dataclasses.fields(Conventions):
        values = getattr(kinds[f.name], "__args__", (True, False))
        rows.append([f"`{f.name}`", " ".join(f"`{v!r}`" for v in values), f"`{f.default!r}`", below.get(f.name, "")])
    return [
        "## Conventions\n",
        "The points in which libraries legitimately differ. `@implementation(conventions=Conventions(...))` declares\n"
        "them, and is judged by what it declares. Which keys a row sees is never one of them.\n",
        *table(["field", "values", "default", "what it is"], rows),
    ]


def contract() -> list[str]:
    below = said(Precision)
    rows = [
        [f"`{f.name}`", "" if f.default is dataclasses.MISSING else f"`{f.default!r}`", below.get(f.name, "")]
        for f in dataclasses.fields(Precision)
    ]
    usual = [
        [f"`{name}`", f"`{p.accumulate}`", f"`{p.weights}`", f"`{p.lse}`", f"`{p.out}`"]
        for name in FORMATS for p in [preset(name, "bfloat16" if "float8" in name else None)]
    ]  # fmt: skip
    return [
        "## Contract\n",
        "The arithmetic that an implementation promises to be no worse than, `refattn.precision.Precision`. Nothing\n"
        "declared is the preset of the dtype:\n",
        *table(["inputs", "accumulate", "weights", "lse", "out"], usual),
        "What is looser than that needs a `source`:\n",
        *table(["field", "default", "what it is"], rows),
    ]


def dtypes() -> list[str]:
    rows = [
        [f"`{f.name}`", str(f.bits), f"2^-{f.bits}", f"{f.max:.4g}", f"{f.smallest_normal:.3g}", f.overflow]
        for f in FORMATS.values()
    ]
    header = ["dtype", "significand bits", "unit roundoff", "largest", "smallest normal", "beyond the range"]
    return ["## Dtypes\n", *table(header, rows)]


def asserted() -> list[str]:
    named = [n for n in inspect.signature(question).parameters if n not in ("arrays", "name")]
    more = [n for n in ("rows", "seed") if n in inspect.signature(judge_arrays).parameters]
    rows = [
        ["outputs, at least one", " ".join(f"`{n}`" for n in JUDGED)],
        ["inputs", " ".join(f"`{n}`" for n in INPUTS)],
        ["options", " ".join(f"`{n}`" for n in (*named, *more))],
    ]
    return [
        "## assert_attention\n",
        f"`refattn.assert_attention(out, q, k, v, ...)`: {first_line(asserting.assert_attention)}\n",
        *table(["", "by name"], rows),
        "`refattn.judging.judge_arrays(q, k, v, out=out, ...)` takes the same and returns what was found.\n",
        f"`refattn.strategies.{_call(strategies.cases)}` and `problems(...)` of the same filters draw random ones.\n",
    ]


def _call(function: Any) -> str:
    return f"{function.__name__}({', '.join(inspect.signature(function).parameters)})"


def plugin() -> list[str]:
    """The options and keys of the ini file, as pytest is told them."""
    options, keys = [], []

    class Parser:
        def getgroup(self, *names: str) -> Parser:
            return self

        def addoption(self, name: str, metavar: str = "", help: str = "", default: Any = None, **rest: Any) -> None:
            options.append([f"`{f'{name} {metavar}'.strip()}`", help.replace("%(default)s", str(default))])

        def addini(self, name: str, help: str, default: str) -> None:
            keys.append([f"`{name}`", help])

    from refattn.plugin import pytest_addoption

    pytest_addoption(Parser())  # type: ignore[arg-type]
    marks = "`-m \"attention(chapter='masks', backward=False)\"` selects among the items, and `-k ID`.\n"
    return ["## pytest\n", *table(["option", ""], options), *table(["key of the ini file", ""], keys), marks]


def features() -> list[str]:
    counts: dict[str, int] = {}
    for case in CASES:
        for word in case.features():
            counts[word] = counts.get(word, 0) + 1
    asked = {part for word in strategies.WORDS for part in (word, word.partition("=")[0])}
    rows = [[f"`{word}`", str(n), "yes" if word in asked else ""] for word, n in sorted(counts.items())]
    return [
        "## Features\n",
        "Words of `refattn check --feature` and `refattn list`; of `refattn.strategies` too, where it says so.\n",
        *table(["word", "cases", "strategies"], rows),
    ]


def families() -> list[str]:
    rows = [[f"`{name}`", first_line(f)] for name, f in FAMILIES.items()]
    rows += [["`captured:FILE#ENTRY`", first_line(inspect.getmodule(cases.captured))]]
    names = " ".join(f"`{name}`" for name in BIAS)
    return [
        "## Input families\n",
        *table(["family", "q, k and v"], rows),
        f"Of the bias: {names}. Of the sinks: {' '.join(f'`{name}`' for name in SINKS)}. Score modifiers: "
        f"{' '.join(f'`{name}`' for name in SCORE_MODS)}.\n",
    ]


def chapters() -> list[str]:
    lines = ["## Cases\n", f"{len(CASES)} cases. `refattn show ID` has everything about one.\n"]
    for chapter in CHAPTERS:
        module = getattr(cases, chapter)
        its = [case for case in CASES if case.chapter == chapter]
        left_out = "; left out unless `--full`" if chapter in FULL else ""
        about = first_line(module).partition(": ")[2]
        lines += [f"### {chapter}\n", f"{about[0].upper()}{about[1:]} {len(its)} cases{left_out}.\n"]
        lines += table(["id", "why", "flags"], ([f"`{c.id}`", c.why, " ".join(c.flags)] for c in its))
    return lines


def flags() -> list[str]:
    counts = {flag: sum(flag in case.flags for case in CASES) for flag in FLAGS}
    rows = [[f"`{flag}`", text, str(counts[flag])] for flag, text in FLAGS.items()]
    return ["## Flags\n", "The public bugs that the cases are for.\n", *table(["flag", "bug (source)", "cases"], rows)]


def laws() -> list[str]:
    rows = [[f"`{law.name}`", law.kind, law.statement] for law in LAWS.values()]
    about = "Relations that need no oracle: `refattn check --laws`.\n"
    return ["## Laws\n", about, *table(["law", "kind", "statement"], rows)]


if __name__ == "__main__":
    sys.stdout.write(page())
