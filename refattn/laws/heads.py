"""Laws of heads and batch entries: each is a problem of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..inputs import Problem
from ..judge import Output
from .bench import Bench, Reply, same
from .law import law
from .measured import compare
from .problems import altered, taken

Array = np.ndarray[Any, Any]


@law("bound", "grouped heads = key heads repeated; dk and dv summed over the group",
     holds=lambda case: case.H != case.Hkv)  # fmt: skip
def expanded_heads(base: Problem, ask: Bench) -> Iterator[Output]:
    """Query head h reads key head h // (H // Hkv)."""
    case = base.case
    arrays = {name: np.repeat(base.logical[name], case.H // case.Hkv, axis=1) for name in "kv"}
    a, b = ask.ask(base), ask.ask(altered(base, "expanded", arrays, Hkv=case.H))
    yield from same(b, a.only("out", "lse", "dq", "dsinks"))
    for name, image in a.only("dk", "dv").items():
        if name in b:
            groups = b[name].each(lambda x: x.reshape(case.B, case.Hkv, -1, *x.shape[2:]))
            yield compare(name, groups.sum(2), image)


@law("bound", "nothing of a head reaches another: q and dout, and k and v, of one are NaN",
     holds=lambda case: case.H > 1)  # fmt: skip
def head_isolation(base: Problem, ask: Bench) -> Iterator[Output]:
    """Query heads of a group share k and v, and nothing else; groups share nothing."""
    case = base.case
    group = case.H // case.Hkv
    a = ask.ask(base)
    heads, key_heads = np.arange(case.H), np.arange(case.Hkv)
    b = ask.ask(altered(base, "q-spoilt", _spoilt(base, ("q", "dout"), 1, 0)))
    yield from _others(b, a, heads > 0, key_heads > 0, "q of head 0 is NaN")
    if case.Hkv > 1:
        b = ask.ask(altered(base, "k-spoilt", _spoilt(base, ("k", "v"), 1, case.Hkv - 1)))
        alone = key_heads < case.Hkv - 1
        yield from _others(b, a, np.repeat(alone, group), alone, f"k and v of key head {case.Hkv - 1} are NaN")


@law("bound", "nothing of a batch entry reaches another: all of one is NaN", holds=lambda case: case.B > 1)
def batch_isolation(base: Problem, ask: Bench) -> Iterator[Output]:
    """Entries share nothing but the sinks."""
    a = ask.ask(base)
    b = ask.ask(altered(base, "spoilt", _spoilt(base, ("q", "k", "v", "dout"), 0, base.case.B - 1)))
    for name, image in a.only("out", "lse", "dq", "dk", "dv").items():
        if name in b:
            yield compare(f"{name} (the last entry is NaN)", b[name][:-1], image[:-1])


def _spoilt(base: Problem, names: tuple[str, ...], axis: int, index: int) -> dict[str, Array]:
    arrays = {}
    for name in names:
        if name in base.logical:
            x = base.logical[name].astype(np.float64)
            x[(slice(None),) * axis + (index,)] = np.nan
            arrays[name] = x
    return arrays


def _others(b: Reply, a: Reply, heads: Array, key_heads: Array, label: str) -> Iterator[Output]:
    for names, kept in ((("out", "lse", "dq"), heads), (("dk", "dv"), key_heads)):
        for name, image in a.only(*names).items():
            if name in b and kept.any():
                yield compare(f"{name} ({label})", b[name][:, kept], image[:, kept])
    if "dsinks" in a and "dsinks" in b and heads.any():
        yield compare(f"dsinks ({label})", b["dsinks"][heads], a["dsinks"][heads])


@law("bitwise", "a batch entry alone = the same entry in its batch, to the last bit where batch_invariant is declared",
     holds=lambda case: case.B > 1, alone="splits that depend on the batch, in spite of what is declared")  # fmt: skip
def batch_of_one(base: Problem, ask: Bench) -> Iterator[Output]:
    """Within the bound in any case: splits and tiles may depend on how much there is to do.

    Bitwise is what He et al. 2025, "Defeating Nondeterminism in LLM Inference", calls batch invariance.
    """
    a = ask.ask(base)
    invariant = ask.conventions.batch_invariant and ask.conventions.deterministic
    for e in range(base.case.B):
        b = ask.ask(taken(base, f"entry{e}", entries=np.array([e])))
        images = a.only("out", "lse", "dq", "dk", "dv")
        yield from same(b, {n: x[e : e + 1] for n, x in images.items()}, bitwise=invariant)
