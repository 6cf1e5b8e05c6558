"""Laws of storage: where numbers lie in memory is not what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import Cache, Case, Dense, Packed, Paged
from ..inputs import Problem
from ..judge import Output
from ..masks import Causal, Window
from .bench import Bench, Refused, Reply, same
from .law import law
from .measured import compare
from .problems import altered, taken

FORWARD = frozenset({"out", "lse"})


def _forward(case: Case) -> bool:
    return not case.want.isdisjoint(FORWARD)


@law("bound", "k and v in pages = k and v in a row; another order of the same pages: the same bits", holds=_forward)
def paged(base: Problem, ask: Bench) -> Iterator[Output]:
    """Pages of 1, 16 and 24 keys, of which the last is partly filled, and what is not in use is NaN.

    Bit for bit only between two orders of the pages, and where the implementation declares that it is
    deterministic: the size of a page may be that of a tile.
    """
    plain = altered(base, "plain", want=base.case.want & FORWARD)
    a = _if_able(plain, ask)
    for size in (1, 16, 24):
        one, other = (
            ask.ask(altered(plain, f"paged{size}-{n}", storage=Paged(size), seed=base.case.seed + n)) for n in (0, 1)
        )
        a = a or one  # a kernel of pages alone: one size is compared with another
        yield from same(one, a.only("out", "lse"))
        yield from same(other, one.only("out", "lse"), bitwise=ask.conventions.deterministic)


@law("bound", "sequences packed = padded to one length = a call for each",
     holds=lambda case: case.mask is None or isinstance(case.mask, (Causal, Window)))  # fmt: skip
def packed(base: Problem, ask: Bench) -> Iterator[Output]:
    """cu_seqlens alone, and with gaps of NaN between the sequences and seqused; each has its own diagonal."""
    case = base.case
    q_lens = tuple(case.Lq - (2 * b + 1) * (case.Lq - 1) // (2 * case.B) for b in range(case.B))
    k_lens = tuple(case.Lk - (2 * b + 1) * case.Lk // (3 * case.B) for b in range(case.B))
    arrays = {}
    if "dlse" in base.logical:  # no gradient arrives at what does not exist
        exists = np.arange(case.Lq) < np.array(q_lens)[:, None, None]
        arrays["dlse"] = np.where(exists, base.logical["dlse"].astype(np.float64), 0.0)
    a = _if_able(altered(base, "padded", arrays, q_lens=q_lens, k_lens=k_lens), ask)
    alone: Dense | Packed = Packed() if a is None else Dense()
    for gap in (0, 2):
        b = _if_able(altered(base, f"packed{gap}", arrays, q_lens=q_lens, k_lens=k_lens, storage=Packed(gap)), ask)
        if b is None:
            if gap == 0:
                raise Refused("takes no packed sequences")
            continue  # it takes no seqused
        a = a or b
        yield from same(b, a.only("out", "lse", "dq", "dk", "dv", "dsinks"))
    for entry, (lq, lk) in enumerate(zip(q_lens, k_lens, strict=True)):
        rows, keys = np.arange(lq), np.arange(lk)
        of: dict[str, Any] = {"entries": [entry], "rows": rows, "keys": keys, "mask": case.mask, "storage": alone}
        one = ask.ask(taken(base, f"single{entry}", **of))
        for names, n in ((("out", "lse", "dq"), lq), (("dk", "dv"), lk)):
            for name, image in one.only(*names).items():
                if a is not None and name in a:
                    yield compare(f"{name} (sequence {entry})", a[name][entry : entry + 1, :, :n], image)


def _if_able(problem: Problem, ask: Bench) -> Reply | None:
    """The answer; None where the implementation takes no plain arrays."""
    try:
        return ask.ask(problem)
    except Refused:
        return None


def _decodes(case: Case) -> bool:
    """Causal, so that each query is the last one that some prefix of the keys has."""
    square = case.mask == Causal("top_left") and case.Lq == case.Lk
    return _forward(case) and (square or case.mask == Causal("bottom_right") and case.Lq <= case.Lk)


@law("bound", "prefill = decode: the last rows of a causal problem, each appended to a cache", holds=_decodes)
def prefill_decode(base: Problem, ask: Bench) -> Iterator[Output]:
    """A token at a time, its key and value put into the cache by the implementation."""
    case = base.case
    whole = altered(base, "prefill", want=case.want & FORWARD)
    a = ask.ask(whole)
    for i in sorted({case.Lq - 1, case.Lq // 2, max(0, case.Lq - 17)}):
        keys = np.arange(i + 1 + case.Lk - case.Lq)
        step = taken(whole, f"token{i}", rows=[i], keys=keys, mask=None, storage=Cache())
        yield from same(ask.ask(step), {name: x[:, :, i : i + 1] for name, x in a.only("out", "lse").items()})


@law("bound", "any order of the axes in memory, the same numbers")
def strides(base: Problem, ask: Bench) -> Iterator[Output]:
    """Axes B, heads, L, D in the order of BLHD, LBHD and BHDL; that of size 1 may have any stride."""
    a = ask.ask(base)
    refusals = 0
    for layout in ("BLHD", "LBHD", "BHDL"):
        try:
            b = ask.ask(altered(base, layout, storage=Dense(layout)))
        except Refused:
            refusals += 1
            continue
        yield from same(b, a.only("out", "lse", "dq", "dk", "dv", "dsinks"))
    if refusals == 3:
        raise Refused("takes arrays of one order of axes only")
