"""The proofs of a checkout: found, and run in parallel.

A proof is a script with a `refattn.montecarlo.main`; each runs in a process of its own, with one
thread for its linear algebra, so that as many run at a time as there are cores.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "Outcome",
    "Proof",
    "discover",
    "exit_code",
    "missing",
    "number",
    "prove",
    "statistic",
    "totals",
]

DECISIONS = ("holds", "refuted", "undecided", "failed")
"""what a proof says of its claim; failed: it broke down, and says nothing"""
CODES = {"holds": 0, "refuted": 1, "undecided": 3}
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Proof:
    """A script, its docstring, whose first line is the claim, and whether it has a picture."""

    name: str
    path: Path
    document: str
    pictured: bool

    @property
    def claim(self) -> str:
        return self.document.split("\n")[0]


@dataclass(frozen=True)
class Outcome:
    """What came of a proof; `message` says why it failed."""

    proof: Proof
    decision: str
    seconds: float = 0.0
    findings: tuple[dict[str, Any], ...] = ()
    picture: bytes | None = field(default=None, repr=False)
    message: str = ""

    @property
    def samples(self) -> int:
        return sum(int(f["samples"]) for f in self.findings)

    @property
    def decisive(self) -> dict[str, Any] | None:
        """The first finding that says what the whole says."""
        return next((f for f in self.findings if f["decision"] == self.decision), None)


def discover(folder: Path, only: Sequence[str] = ()) -> list[Proof]:
    """The scripts of a folder, by name, those that match `only` (names or globs); all of them without.

    Raises ValueError for a folder without proofs, a script that is not Python, and a pattern in vain.
    """
    paths = {path.stem: path for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")}
    if not paths:
        raise ValueError(f"{folder} holds no proofs; run it in a checkout, or pass --proofs DIR")
    chosen = set(paths) if not only else set()
    for pattern in only:
        matching = fnmatch.filter(paths, pattern)
        if not matching:
            raise ValueError(f"{pattern!r} matches no proof; there are {', '.join(paths)}")
        chosen.update(matching)
    return [_proof(path) for name, path in paths.items() if name in chosen]


def _proof(path: Path) -> Proof:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not Python: {error}") from None
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return Proof(path.stem, path.resolve(), ast.get_docstring(tree) or path.stem, "picture" in functions)


def missing(proofs: Sequence[Proof]) -> dict[str, list[str]]:
    """The packages that are imported but not there, each with the proofs that need it."""
    found: dict[str, list[str]] = {}
    for proof in proofs:
        for package in sorted(_imports(ast.parse(proof.path.read_text(encoding="utf-8")))):
            # what lies beside the script is the script's own affair
            if not (proof.path.parent / f"{package}.py").exists() and importlib.util.find_spec(package) is None:
                found.setdefault(package, []).append(proof.name)
    return found


def _imports(tree: ast.AST) -> set[str]:
    """The top-level packages that are imported, but for those that are tried."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
        elif not isinstance(node, ast.Try):
            names |= _imports(node)
    return names


def prove(
    proofs: Sequence[Proof], *,
    quick: bool = False, seed: int = 0, jobs: int = 1, pictures: bool = False,
    on_outcome: Callable[[Outcome], Any] = lambda outcome: None,
) -> list[Outcome]:  # fmt: skip
    """Run the proofs, `jobs` at a time; the outcomes in the order of the proofs.

    `on_outcome` is called as they come.  An interrupt ends the processes.
    """
    options = ["--seed", str(seed), *(["--quick"] if quick else [])]
    running = _Running()
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="refattn-prove-") as place, ThreadPoolExecutor(jobs) as pool:
        try:
            futures = [pool.submit(_run, running, p, options, Path(place), pictures) for p in proofs]
            for future in as_completed(futures):
                outcome = future.result()
                outcomes[outcome.proof.name] = outcome
                on_outcome(outcome)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            running.kill()
            raise
    return [outcomes[proof.name] for proof in proofs]


class _Running:
    """The processes that are under way, to be ended together."""

    def __init__(self) -> None:
        self.lock, self.over = threading.Lock(), False
        self.processes: set[subprocess.Popen[str]] = set()

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        with self.lock:
            if self.over:
                raise RuntimeError("the run is over")
            process: subprocess.Popen[str] = subprocess.Popen(command, **options)
            self.processes.add(process)
            return process

    def kill(self) -> None:
        with self.lock:
            self.over = True
            for process in self.processes:
                process.kill()


def _run(running: _Running, proof: Proof, options: list[str], place: Path, pictures: bool) -> Outcome:
    result, drawn = place / f"{proof.name}.json", place / f"{proof.name}.png"
    command = [sys.executable, str(proof.path), *options, "--json", str(result)]
    if pictures and proof.pictured:
        command += ["--plot", str(drawn)]
    # the package in use here, wherever it lies
    here = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    environment = {**dict.fromkeys(THREADS, "1"), **os.environ, "PYTHONPATH": here, "PYTHONIOENCODING": "utf-8"}
    process = running.start(
        command, cwd=proof.path.parent.parent, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
    )  # fmt: skip
    _, errors = process.communicate()
    try:
        data = json.loads(result.read_text(encoding="utf-8"))
        if CODES[data["decision"]] != process.returncode:
            raise ValueError(data["decision"])
    except (OSError, ValueError, KeyError):
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "no word")
        return Outcome(proof, "failed", message=f"exit status {process.returncode}: {last.strip()}")
    picture = drawn.read_bytes() if drawn.exists() else None
    return Outcome(proof, data["decision"], data["seconds"], tuple(data["findings"]), picture)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if all hold, 1 if any is refuted or failed, else 3."""
    found = {outcome.decision for outcome in outcomes}
    return 1 if found & {"refuted", "failed"} else 3 if "undecided" in found else 0


def totals(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.decision for outcome in outcomes)
    parts = [f"{counts['holds']} of {len(outcomes)} hold"]
    return ", ".join(parts + [f"{counts[name]} {name}" for name in DECISIONS[1:]])


def statistic(outcome: Outcome) -> str:
    """The decisive finding in words."""
    f = outcome.decisive
    return outcome.message if f is None else f"{f['what']}: {number(f['got'])}, expected {number(f['expected'])}"


def number(x: Any) -> str:
    return f"{x:.6g}" if isinstance(x, (int, float)) and not isinstance(x, bool) else str(x)
