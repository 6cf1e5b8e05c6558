"""One planted bug: a text of a kernel's source, and what takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["KERNELS", "Mutant", "Row", "mutants_of"]

KERNELS = Path(__file__).parent.parent / "kernels"

Row = tuple[str, str, str, str, str]
"""what goes wrong, the problem that kills it, the check that catches it, old text, new text"""


class Mutant(NamedTuple):
    """`old`, which occurs once in gpu/kernels/`file`.py, becomes `new`; `problem` then fails the check `caught`.

    `caught` is "bound" or the name of an error of `gpu.simt`; "Race or UninitialisedRead" where it depends on the
    schedule whether the reader finds other bytes than it should, or none yet.
    """

    what: str
    file: str
    problem: str
    caught: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.what}"

    def allows(self, check: str) -> bool:
        """Whether what has caught it is what the row says."""
        return set(check.split(" or ")) <= set(self.caught.split(" or "))

    def lost(self) -> str | None:
        """Why it cannot be planted: its text has gone, or occurs more than once; else None."""
        count = (KERNELS / f"{self.file}.py").read_text().count(self.old)
        return None if count == 1 else f"{self.name}: {self.old!r} occurs {count} times in {self.file}.py, must be once"

    def applied(self, source: str) -> str:
        """The source with the bug in it."""
        reason = self.lost()
        if reason is not None:
            raise ValueError(reason)
        return source.replace(self.old, self.new)


def mutants_of(files: dict[str, tuple[Row, ...]]) -> tuple[Mutant, ...]:
    """The rows of each file."""
    return tuple(
        Mutant(what, file, problem, caught, old, new)
        for file, rows in files.items()
        for what, problem, caught, old, new in rows
    )
