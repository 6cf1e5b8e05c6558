"""Everything that only a device can tell, in one run: are the kernels right there, and how fast are they?

    python gpu/device_check.py --out DIR

It needs a CUDA device, numba-cuda and torch, and ends within --seconds (default 330).  What was found goes to
DIR/device_check.json as it is found, and to DIR/device_check.md at the end; a section that fails is recorded, and
the next one runs.  With NUMBA_ENABLE_CUDASIM=1 it rehearses: tiny sizes in the executor, and no timing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu.on_device import agreement, primitives, speed, versions  # noqa: E402


class Record:
    """What was found so far; written anew after each row."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.rows, self.begun, self.seconds = folder, [], time.perf_counter(), seconds  # type: ignore[var-annotated]
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        return self.seconds - (time.perf_counter() - self.begun)

    def add(self, section: str, row: dict[str, Any]) -> None:
        self.rows.append({"section": section, "at": round(time.perf_counter() - self.begun, 1)} | row)
        print(json.dumps(self.rows[-1]), flush=True)
        (self.folder / "device_check.json").write_text(json.dumps(self.rows, indent=1))

    def run(self, name: str, section: Callable[[], Iterator[dict[str, Any]]]) -> None:
        """The rows of a section until it ends, fails, or the time is up."""
        if self.left <= 0:
            self.add(name, {"skipped": "the time is up"})
            return
        try:
            for row in section():
                self.add(name, row)
                if self.left <= 0:
                    self.add(name, {"stopped": "the time is up"})
                    return
        except Exception:
            self.add(name, {"failed": traceback.format_exc(limit=-4)})

    def table(self) -> str:
        """All rows as Markdown, one table for each section."""
        parts = []
        for section in dict.fromkeys(row["section"] for row in self.rows):
            mine = [row for row in self.rows if row["section"] == section]
            rows = [{k: v for k, v in row.items() if k not in ("section", "at")} for row in mine]
            columns = list(dict.fromkeys(k for row in rows for k in row))
            lines = [f"## {section}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
            for row in rows:
                cells = (str(row.get(c, "")).strip().replace("\n", " / ").replace("|", "\\|") for c in columns)
                lines.append("| " + " | ".join(cells) + " |")
            parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("device_check"), help="folder for what is found")
    parser.add_argument("--seconds", type=float, default=330, help="no row is begun after so many seconds")
    parser.add_argument("--only", default="", help="comma-separated names of sections")
    chosen = parser.parse_args(arguments)
    record = Record(chosen.out, chosen.seconds)
    sections = [
        ("versions", versions.rows),
        ("primitives", primitives.rows),
        ("agreement, small", agreement.small),
        ("speed, forward", speed.forward),
        ("agreement, large", agreement.large),
        ("determinism", agreement.determinism),
        ("speed, backward", speed.backward),
        ("speed, decode", speed.decode),
        ("speed, every shape", speed.every_shape),
    ]
    for name, section in sections:
        if not chosen.only or name in chosen.only.split(","):
            record.run(name, section)
    (chosen.out / "device_check.md").write_text(record.table())
    wrong = [row for row in record.rows if "failed" in row or row.get("ok") is False]
    print(f"{len(record.rows)} rows, {len(wrong)} wrong, {chosen.seconds - record.left:.0f} s; see {chosen.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
