"""How right a kernel is, as a number, for a loop that writes kernels and would rather cheat.

    from refattn.cases import by_id
    from refattn.reward import reward
    found = reward("candidate:attention", [by_id("gqa-causal-br-ragged-bf16")])
    found.score                                # the share of its problems that it solved, each with other inputs too
    found.verdicts                             # one for each: what failed, and where

What it does, and against what:

- the candidate runs in a process of its own, killed with its process group at the time limit (sleeps, forks,
  crashes, exit code 0), and what it prints goes nowhere; the truth is computed here, and only plain arrays come back
  (`refattn.replies`);
- shapes and inputs are drawn anew for each call, from a seed of the operating system that the candidate cannot know
  (answers that were stored), and each shape is asked with two inputs, in an order that is drawn; only both of
  them count (caches by shape, right for the first calls alone), and the second lies where the first did (caches by
  address);
- inputs that were changed and outputs that are views of them fail, and so do other bits in a second call;
- only what passes within the preset contract of its dtype counts: a contract that was declared looser, a convention
  that was declared, and a case that is refused count as wrong.

What it cannot do: tell a kernel that computes from one that calls `refattn.attention` or another library, or say
that the candidate leaves the machine alone.  Look at its source, or let it run where neither is there: make problems of
`drawn` by `refattn.inputs.make`, hand over the arrays of `problem.fresh()` alone, and judge the arrays that come back
by `refattn.judge.judge`.  And whether inputs were changed is found in the candidate's process, which may lie about it;
about its numbers it cannot.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .case import Case
from .examine import examine
from .judge import Verdict
from .said import cleaned
from .worker import Worker

__all__ = ["Reward", "drawn", "reward"]


@dataclass(frozen=True)
class Reward:
    """The share of problems that were solved, the verdict on each, and the seed that draws the same ones again.

    Solved is a problem if it passed, and so did those that differ in their inputs alone.
    """

    score: float
    verdicts: tuple[Verdict, ...]
    seed: int


def reward(
    spec: str, cases: Sequence[Case], *, shapes: int = 2, seed: int | None = None, timeout: float = 10.0,
    memory: float | None = None,
) -> Reward:  # fmt: skip
    """What `module:callable` is worth on problems like these cases, each drawn in so many `shapes`, two inputs each.

    `timeout` in seconds and `memory` in GB limit each call.  Raises `CannotLoad` where it cannot be imported.
    """
    if not cases or shapes < 1:
        raise ValueError(f"{len(cases)} cases in shapes={shapes} are nothing to ask; pass at least one of each")
    seed = secrets.randbits(64) if seed is None else seed
    asked = drawn(cases, shapes, seed)
    with Worker(spec, timeout, memory, quiet=True) as candidate:
        verdicts = tuple(cleaned(examine(candidate, case)) for case in asked)
    wrong = {_form(verdict.case) for verdict in verdicts if not _passed(verdict)}
    return Reward(sum(_form(case) not in wrong for case in asked) / len(asked), verdicts, seed)


def _passed(verdict: Verdict) -> bool:
    return verdict.status == "passed" and not verdict.loosened and not verdict.conventions


def _form(case: Case) -> Case:
    """All but the inputs."""
    return replace(case, id="problem", seed=0)


def drawn(cases: Sequence[Case], shapes: int, seed: int) -> list[Case]:
    """The problems, in the order in which they are asked; of the `basics`, which are called twice."""
    rng = np.random.default_rng(seed)
    asked = []
    for case in cases:
        for _ in range(shapes):
            other = _resized(case, rng)
            asked += [replace(other, seed=int(rng.integers(1 << 31)), chapter="basics") for _ in range(2)]
    order = rng.permutation(len(asked))
    return [replace(asked[n], id=f"problem-{i}", why="drawn", flags=()) for i, n in enumerate(order)]


def _resized(case: Case, rng: np.random.Generator) -> Case:
    """The case with other numbers of queries and keys, 2/3 to 4/3 of its own; as it is where they would not fit."""
    if case.family.startswith("captured:"):
        return case

    def about(n: int) -> int:
        return int(rng.integers(min(n, max(1, 2 * n // 3)), 4 * n // 3 + 2))

    try:
        return replace(case, Lq=about(case.Lq), Lk=about(case.Lk))
    except ValueError:  # lengths of its entries, or a mask of its own size
        return case
