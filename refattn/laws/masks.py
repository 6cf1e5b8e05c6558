"""Laws of visibility: what a row does not see does not reach it, and masks that come to the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import Case
from ..inputs import Problem
from ..judge import Output
from ..masks import Causal, Documents, Window
from .bench import Bench, Reply, same
from .law import law
from .measured import compare, exact
from .problems import altered, junk, rng_of, taken

Array = np.ndarray[Any, Any]
EXTRA = 7
FAR = 2**31 - 1


def _from_middle(case: Case) -> tuple[Array, Array]:
    """Keys that no row of a band in the middle sees, and the rows that see none of those keys."""
    half = max(1, case.Lq // 8)
    band = slice(max(0, case.Lq // 2 - half), case.Lq // 2 + half)
    seen = _by_any(case)
    hidden = ~np.asarray(seen[band].any(0))
    return hidden, ~np.asarray(seen[:, hidden].any(1))


def _by_any(case: Case) -> Array:
    """(Lq, Lk): whether any head of any batch entry lets the row see the key."""
    return np.asarray(case.visibility.tile().any((0, 1)))


@law("bound", "keys and values that a row does not see may be anything finite",
     holds=lambda case: case.mask is not None and bool(_from_middle(case)[0].any()))  # fmt: skip
def hidden_keys(base: Problem, ask: Bench) -> Iterator[Output]:
    """Other rows see them, but have dout = 0 here, so that dk and dv must not change either."""
    hidden, unaware = _from_middle(base.case)
    rng = rng_of(base, "hidden_keys")
    quiet = {n: _where(unaware, base.logical[n], 2) for n in ("dout", "dlse") if n in base.logical}
    other = {n: _where(~hidden, base.logical[n], 2) for n in "kv"}
    for x in other.values():
        x[:, :, hidden] = junk(rng, x[:, :, hidden])
    a, b = ask.ask(altered(base, "quiet", quiet)), ask.ask(altered(base, "junk", {**quiet, **other}))
    for name, image in a.only("out", "lse").items():
        if name in b:
            yield compare(name, b[name][:, :, unaware], image[:, :, unaware])
    yield from same(b, a.only("dq", "dk", "dv", "dsinks"))


def _where(kept: Array, x: Array, axis: int) -> Array:
    """`x` in float64, 0 where not kept along the axis."""
    return np.where(kept.reshape((1,) * axis + (-1,) + (1,) * (x.ndim - axis - 1)), x.astype(np.float64), 0.0)


@law("bound", "keys beyond k_lens may be anything, NaN too unless it is declared to leak")
def unused_keys(base: Problem, ask: Bench) -> Iterator[Output]:
    """Memory that does not exist: alignment and all else go by the length, not by the array."""
    case, rng = base.case, rng_of(base, "unused_keys")
    n = case.Lk
    plain = case.mask is None or isinstance(case.mask, (Causal, Window))
    longer = taken(base, "longer", keys=np.minimum(np.arange(n + EXTRA), n - 1), k_lens=(n,) * case.B)
    arrays = {}
    for name, leaks in (("k", ask.conventions.masked_nan_k), ("v", ask.conventions.masked_nan_v)):
        x = longer.logical[name].astype(np.float64)
        x[:, :, n:] = junk(rng, x[:, :, n:]) if leaks == "leaks" else np.nan
        arrays[name] = x
    fields = {"mask": case.mask} if plain else {}
    a, b = ask.ask(base), ask.ask(altered(longer, "unused", arrays, **fields))
    yield from same(b, a.only("out", "lse", "dq", "dsinks"))
    for name, image in a.only("dk", "dv").items():
        if name in b:
            yield compare(name, b[name][:, :, :n], image)


@law("bound", "a row of q, dout and dlse reaches no other row, and dk and dv of no key that it does not see",
     holds=lambda case: case.Lq > 2)  # fmt: skip
def other_rows(base: Problem, ask: Bench) -> Iterator[Output]:
    """The first third of the rows is NaN, or finite junk where hidden NaN is declared to leak."""
    case, rng = base.case, rng_of(base, "other_rows")
    spoilt = np.arange(case.Lq) < case.Lq // 3
    leaks = "leaks" in (ask.conventions.masked_nan_k, ask.conventions.masked_nan_v)
    arrays = {}
    for name in ("q", "dout"):
        if name in base.logical:
            x = base.logical[name].astype(np.float64)
            x[:, :, spoilt] = junk(rng, x[:, :, spoilt]) if leaks else np.nan
            arrays[name] = x
    a, b = ask.ask(base), ask.ask(altered(base, "spoilt", arrays))
    unread = ~np.asarray(_by_any(case)[spoilt].any(0))
    for names, kept in ((("out", "lse", "dq"), ~spoilt), (("dk", "dv"), unread)):
        for name, image in a.only(*names).items():
            if name in b and kept.any():
                yield compare(name, b[name][:, :, kept], image[:, :, kept])


@law("bound", "window(∞) = causal, and window(∞, ∞) = no mask",
     holds=lambda case: case.mask is None or isinstance(case.mask, Causal),
     alone="i + right in 32 bits")  # fmt: skip
def infinite_window(base: Problem, ask: Bench) -> Iterator[Output]:
    """A window that is wider than all there is: 2^31 - 1, to which 32 bits cannot add a position."""
    mask = base.case.mask
    wide = Window(FAR, 0, mask.align) if isinstance(mask, Causal) else Window(FAR, FAR, "bottom_right")
    a, b = ask.ask(base), ask.ask(altered(base, "window", mask=wide))
    yield from same(b, a.only("out", "lse", "dq", "dk", "dv", "dsinks"))


def _self_attention(case: Case) -> bool:
    return isinstance(case.mask, Causal) and case.Lq == case.Lk


@law("bound", "documents packed into one sequence = a call for each",
     holds=lambda case: min(case.Lq, case.Lk) >= 4 and (case.mask is None or _self_attention(case)))  # fmt: skip
def documents(base: Problem, ask: Bench) -> Iterator[Output]:
    """Three documents of unequal length; causal only where queries and keys are the same tokens."""
    case = base.case
    rows, keys = (np.array_split(np.arange(n), [1, n // 2]) for n in (case.Lq, case.Lk))
    ids = [tuple(i for i, part in enumerate(parts) for _ in part) for parts in (rows, keys)]
    mask = Documents(ids[0], ids[1]) if case.mask is None else Documents(ids[0], ids[1]) & Causal("top_left")
    b = ask.ask(altered(base, "packed", mask=mask))
    for i, (r, k) in enumerate(zip(rows, keys, strict=True)):
        a = ask.ask(taken(base, f"document{i}", rows=r, keys=k, mask=case.mask))
        yield from _part(b, a, r, k, f" (document {i})")


def _part(b: Reply, a: Reply, rows: Any, keys: Any, label: str = "") -> Iterator[Output]:
    """The rows and keys of b (None: not judged), which should be a."""
    for names, index in ((("out", "lse", "dq"), rows), (("dk", "dv"), keys)):
        for name, image in a.only(*names).items():
            if name in b and index is not None:
                yield compare(name + label, b[name][:, :, index], image)


def _looks_back(case: Case) -> bool:
    """Causal, or a window without a right side, of which a prefix sees something."""
    causal = isinstance(case.mask, Causal) or (isinstance(case.mask, Window) and case.mask.right == 0)
    return causal and case.Lq > 2 and _prefix(case)[1] > 0


def _prefix(case: Case) -> tuple[int, int]:
    rows = 2 * case.Lq // 3
    align = getattr(case.mask, "align", "top_left")
    return rows, min(rows, case.Lk) if align == "top_left" else rows + case.Lk - case.Lq


@law("bound", "the first rows of a causal problem = the problem of the prefix", holds=_looks_back)
def causal_prefix(base: Problem, ask: Bench) -> Iterator[Output]:
    """What was computed stays true when tokens are appended; dout of the later rows is 0."""
    case = base.case
    n, m = _prefix(case)
    early = np.arange(case.Lq) < n
    quiet = {name: _where(early, base.logical[name], 2) for name in ("dout", "dlse") if name in base.logical}
    b = ask.ask(altered(base, "quiet", quiet))
    a = ask.ask(taken(base, "prefix", rows=np.arange(n), keys=np.arange(m), mask=case.mask))
    yield from _part(b, a, slice(n), slice(m))
    yield from same(b, a.only("dsinks"))


@law("bound", "the last row of a causal problem = that row without a mask",
     holds=lambda case: case.mask == Causal("bottom_right") or _self_attention(case))  # fmt: skip
def causal_last_row(base: Problem, ask: Bench) -> Iterator[Output]:
    """Decoding: the last token sees everything."""
    last = np.array([base.case.Lq - 1])
    b = ask.ask(base)
    a = ask.ask(taken(base, "last", rows=last, mask=None))
    yield from _part(b, a, last, None)


@law("exact", "dk_j = dv_j = 0 where no row with a gradient sees key j, dq_i = 0 where row i has none or sees no key",
     holds=lambda case: not case.want.isdisjoint(("dq", "dk", "dv")))  # fmt: skip
def zero_gradient(base: Problem, ask: Bench) -> Iterator[Output]:
    """By definition, to the last bit: with all of dout, then with that of one row in the middle."""
    case = base.case
    seen = case.visibility.tile()
    one = np.arange(case.Lq) == case.Lq // 2
    quiet = {n: _where(one, base.logical[n], 2) for n in ("dout", "dlse") if n in base.logical}
    for problem, active in ((base, np.ones(case.Lq, dtype=bool)), (altered(base, "one-row", quiet), one)):
        reply = ask.ask(problem)
        pairs = seen & active[:, None]
        idle_rows = ~pairs.any(-1)
        idle_keys = ~pairs.reshape(case.B, case.Hkv, -1, case.Lk).any(2)
        for name, idle in (("dq", idle_rows), ("dk", idle_keys), ("dv", idle_keys)):
            if name in reply and idle.any():
                part = reply[name][idle]
                yield compare(f"{name}, where 0,", part, exact(np.zeros(part.x.shape)), bitwise=True)

