"""Laws of order and division: keys and queries are sets, and any part of them can be had apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from .. import online
from ..inputs import Problem
from ..judge import Output
from .bench import Bench, Refused, Reply, same
from .law import law
from .measured import Measured, compare
from .problems import altered, remade, rng_of, taken

Array = np.ndarray[Any, Any]
FORWARD = frozenset({"out", "lse"})


@law("bound", "attention(q, k[π], v[π]) = attention(q, k, v), dk and dv permuted", long=True)
def key_permutation(base: Problem, ask: Bench) -> Iterator[Output]:
    """Keys are a set: bias and mask go with them."""
    order = rng_of(base, "key_permutation").permutation(base.case.Lk)
    a, b = ask.ask(base), ask.ask(taken(base, "permuted", keys=order))
    yield from same(b, a.only("out", "lse", "dq", "dsinks"))
    yield from same(b, {name: x[:, :, order] for name, x in a.only("dk", "dv").items()})


@law("bound", "attention(q[π], k, v) = attention(q, k, v)[π], dk and dv as they were")
def query_permutation(base: Problem, ask: Bench) -> Iterator[Output]:
    """A row does not know its place, but for the mask, which goes with it."""
    order = rng_of(base, "query_permutation").permutation(base.case.Lq)
    a, b = ask.ask(base), ask.ask(taken(base, "permuted", rows=order))
    yield from same(b, {name: x[:, :, order] for name, x in a.only("out", "lse", "dq").items()})
    yield from same(b, a.only("dk", "dv", "dsinks"))


@law("bound", "rows of q in chunks, each in a call of its own: out and dq joined, dk and dv added",
     holds=lambda case: case.Lq > 1)  # fmt: skip
def query_chunks(base: Problem, ask: Bench) -> Iterator[Output]:
    """Chunked prefill: a row needs no other row."""
    n = base.case.Lq
    chunks = [c for c in np.array_split(np.arange(n), [1, n // 2]) if len(c)]
    a, parts = ask.ask(base), [ask.ask(taken(base, f"chunk{i}", rows=c)) for i, c in enumerate(chunks)]
    for chunk, part in zip(chunks, parts, strict=True):
        yield from same(part, {name: x[:, :, chunk] for name, x in a.only("out", "lse", "dq").items()})
    for name, image in a.only("dk", "dv", "dsinks").items():
        total = parts[0][name]
        for part in parts[1:]:
            total = total + part[name]
        yield compare(name, total, image)


@law("bound", "attention(q, [k k], [v v]) = attention(q, k, v), lse + ln 2, each half of dk and dv halved",
     holds=lambda case: case.sinks is None, long=True)  # fmt: skip
def duplicate_keys(base: Problem, ask: Bench) -> Iterator[Output]:
    """Each weight is divided between two equal keys."""
    n = base.case.Lk
    twice = np.concatenate([np.arange(n), np.arange(n)])
    a, b = ask.ask(base), ask.ask(taken(base, "twice", keys=twice))
    yield from same(b, a.only("out", "dq"))
    if "lse" in a:
        yield from same(b, {"lse": a["lse"].plus(math.log(2) / ask.nats)})
    for name, image in a.only("dk", "dv").items():
        if name in b:
            yield compare(f"{name} (first half, doubled)", b[name][:, :, :n].times(2.0), image)
            yield compare(f"{name} (second half, doubled)", b[name][:, :, n:].times(2.0), image)


@law("bound", "attention over parts of the keys, merged by their lse = attention over all",
     holds=lambda case: case.Lk > 1, long=True)  # fmt: skip
def split_merge(base: Problem, ask: Bench) -> Iterator[Output]:
    """The split-KV, ring and cascade identity: (out, lse) of the parts is all that is needed.

    Sinks enter once, after the merge.  With errors |ε_s| <= r_s of out and |δ_s| <= d of lse of each part,
    and computed shares w_s, the merged out is off by at most

        sum_s w_s r_s + expm1(2 d) sum_s w_s (|out_s - out| + r_s)

    since the true shares are within a factor e^{±2d} of w_s, and the merged lse by at most d.
    """
    case = base.case
    whole = altered(base, "whole", want=FORWARD)
    cuts = np.array_split(np.arange(case.Lk), [case.Lk // 3, case.Lk // 3 + max(1, case.Lk // 7)])
    a = ask.ask(whole)
    if "lse" not in a:
        raise Refused("returns no lse")
    parts = [ask.ask(_part(whole, i, keys)) for i, keys in enumerate(cuts) if len(keys)]
    sinks = None if case.sinks is None else base.logical["sinks"].astype(np.float64)[:, None]
    out, lse = _merged(parts, sinks, ask)
    yield from same(a, {"out": out, "lse": lse})


def _part(whole: Problem, i: int, keys: Array) -> Problem:
    logical = {name: x for name, x in whole.logical.items() if name != "sinks"}
    case = replace(whole.case, sinks=None)
    first, last = int(keys[0]), int(keys[-1]) + 1
    if whole.case.mask is None and whole.case.bias is None:  # no copies of what may be long
        logical |= {name: logical[name][:, :, first:last] for name in "kv"}
        return remade(case, logical, f"part{i}", {}, {"Lk": last - first})
    return taken(Problem(case, logical), f"part{i}", keys=keys)


def _merged(parts: list[Reply], sinks: Array | None, ask: Bench) -> tuple[Measured, Measured]:
    """out and lse of the whole, from those of the parts."""
    dead = [~part.sees for part in parts]
    outs = [_alive(part["out"], d[..., None], 0.0) for part, d in zip(parts, dead, strict=True)]
    lses = [_alive(part["lse"].times(ask.nats), d, -np.inf) for part, d in zip(parts, dead, strict=True)]
    states = [
        online.State(lse.x, np.where(d, 0.0, 1.0), out.x) for lse, d, out in zip(lses, dead, outs, strict=True)
    ]  # fmt: skip
    merged = reduce(online.merge, states)
    total, with_sinks = online.finish(merged, sinks)
    lse_total = with_sinks if ask.conventions.lse_sinks == "included" else online.finish(merged)[1]
    shares = [online.shifted_exp(state.m, online.shift_of(with_sinks))[..., None] for state in states]
    sink_share = 0.0 if sinks is None else 1.0
    largest = max(float(np.abs(online.shift_of(lse.x)).max(initial=0.0)) for lse in lses)
    own = 2.0**-49 * (1 + largest)  # of the merge, in float64: exponents are off by a few units of lse

    def error(kind: str) -> tuple[Array, Array]:
        d = np.max([getattr(lse, kind) for lse in lses], axis=0)
        around = np.expm1(2 * np.minimum(d, 300.0))[..., None]
        off = sink_share * around * np.abs(total)  # the sink's value is 0
        for share, out in zip(shares, outs, strict=True):
            r = getattr(out, kind)
            off = off + share * (r + around * (np.abs(out.x - total) + r) + own * np.abs(out.x))
        return off, d + own

    (e_out, e_lse), (r_out, r_lse) = error("radius"), error("rigorous")
    free_out, free_lse = (np.any([x.free for x in xs], axis=0) for xs in (outs, lses))
    lse = Measured(lse_total, e_lse, r_lse, free_lse)
    return Measured(total, e_out, r_out, free_out), lse.times(1 / ask.nats)


def _alive(x: Measured, dead: Array, nothing: float) -> Measured:
    """`x`, and exactly `nothing` in rows that see none of the part's keys."""
    radius, rigorous = (np.where(dead, 0.0, r) for r in (x.radius, x.rigorous))
    return Measured(np.where(dead, nothing, x.x), radius, rigorous, x.free & ~dead)
