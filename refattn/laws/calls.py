"""Laws of calls: the same call again, and rows against the oracle at any size."""

from __future__ import annotations

from collections.abc import Iterator

from ..inputs import Problem
from ..judge import Output
from .bench import SMALL, Bench, Refused, same, size
from .law import law
from .measured import compare
from .problems import altered

REPEATS = 3


@law("bitwise", "the same call gives the same bits, also after another of the same shape", long=True)
def repeatability(base: Problem, ask: Bench) -> Iterator[Output]:
    """Nothing is left over from the call before, nothing is summed as it comes; where deterministic is declared."""
    if not ask.conventions.deterministic:
        raise Refused("declares deterministic=False")
    other = altered(base, "other", {name: -base.logical[name][:, :, ::-1] for name in "qkv"})
    a = ask.ask(base)
    names = ("out", "lse", "dq", "dk", "dv", "dsinks")
    for i in range(REPEATS):
        if i == 1:
            ask.ask(other)
        yield from same(ask.ask(base), {name: x for name, x in a.only(*names).items()}, bitwise=True)


@law("bound", "rows of a problem of any size = the oracle's, of those rows alone",
     holds=lambda case: size(case) > SMALL, alone="another scale for rows from 65,536 on", long=True)  # fmt: skip
def sampled_rows(base: Problem, ask: Bench) -> Iterator[Output]:
    """out, lse and dq of a row need no other row: its truth costs O(Lk D).

    The ends, the rows around 2^15, 2^15.5 and 2^16 where an index overflows, and others at random.
    """
    a = ask.ask(base)
    for name in ("out", "lse", "dq"):
        if name in a:
            yield compare(name, a[name], a.true(name))


