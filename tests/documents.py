"""The code in a Markdown page, run from top to bottom as a reader would run it.

A block is one of

    ```python               a script; all of a page share their names
    # my_kernel.py          ... or, where the first line is a file's name, that file
    ```console              commands after $, run by bash, and what they print
    $ python -m pytest

In what is printed a line of ... stands for any lines, and ... within a line for anything; numbers with a point, an
exponent or a comma, and indices in brackets, may be others on another machine.  `$ ... # fails` must fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FILE = re.compile(r"(?:#|//|;) ([\w./-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int


class WrongPage(AssertionError):
    """What a page says is not so."""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text[: m.start()].count("\n") + 1) for m in found]


def run(page: Path, folder: Path) -> int:
    """Run all blocks in the folder; how many commands and scripts were run."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    environment |= {"PATH": f"{_tools(folder)}:{os.environ['PATH']}"}
    environment |= {"PYTEST_ADDOPTS": "-p refattn.plugin -p no:cacheprovider -p no:xdist"}
    names: dict[str, Any] = {"__name__": "page"}
    count = 0
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        named = FILE.match(block.text)
        if block.kind == "console":
            for command, expected in _commands(block.text):
                count += 1
                _console(where, command, expected, folder, environment)
        elif named and block.kind != "sh":
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.kind == "python":
            count += 1
            _script(where, block.text, names, folder)
    return count


def _tools(folder: Path) -> Path:
    """A folder with the command refattn, which need not be installed, and with python as this one is."""
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    for name, what in (("refattn", "-m refattn"), ("python", ""), ("pytest", "-m pytest")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what} "$@"\n')
        (tools / name).chmod(0o755)
    return tools


def _commands(text: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def _console(where: str, command: str, expected: str, folder: Path, environment: dict[str, str]) -> None:
    bash = ["bash", "-c", command]
    ran = subprocess.run(bash, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    if (ran.returncode != 0) != command.endswith("# fails"):
        raise WrongPage(f"{where}: {command!r} ended with {ran.returncode}\n{ran.stdout}{ran.stderr}")
    if not matches(expected, ran.stdout):
        raise WrongPage(f"{where}: {command!r} printed\n{ran.stdout}\nand not\n{expected}")


def _script(where: str, text: str, names: dict[str, Any], folder: Path) -> None:
    before = os.getcwd()
    os.chdir(folder)
    try:
        exec(compile(text, where, "exec"), names)
    except Exception as error:
        raise WrongPage(f"{where}: {type(error).__name__}: {error}") from error
    finally:
        os.chdir(before)


def matches(expected: str, got: str) -> bool:
    """Whether it was printed, all of it, but for what ... leaves out and for numbers that machines may change."""
    lines = _plain(expected).splitlines()
    some = (".*".join(map(re.escape, line.split("..."))) + "\n" if line != "..." else "(?:.*\n)*?" for line in lines)
    return re.fullmatch("".join(some), _plain(got)) is not None


def _plain(text: str) -> str:
    text = re.sub(r"\[[\d, ]+\]", "[i]", text)
    text = re.sub(r"-?\d[\d,]*\.\d+(?:e[+-]?\d+)?|\d+e[+-]\d+|\d{1,3}(?:,\d{3})+", "#", text)
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines())
