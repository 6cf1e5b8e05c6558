"""Kernels with one thing wrong: the catalogue of public bugs, and of the kinds of which they are instances.

Each is `refattn.streaming` with one decision replaced by a wrong one, and an implementation of its own:
`refattn check refattn.mutants:causal_top_left` must fail.  One decorated class is one row of
MUTANTS; to add a bug, add a class to the file of its subject.  Most are a subclass of `Rules` with
one method; what is no rule of the kernel (what depends on calls, cheats, rows that are not
written) is a `Wrapped` kernel.  The docstring says what is wrong, the arguments of `@mutant` where it was
seen in public, which cases can tell it from a correct kernel, and by which it is caught: `Mutant`.
"""

from __future__ import annotations

from . import (
    bias,
    calls,
    cheats,
    dropout,
    empty,
    gradients,
    heads,
    masks,
    merges,
    patterns,
    precision,
    scores,
    softmax,
    storage,
    tails,
    transforms,
)
from .catalogue import MUTANTS, SPLITS, TILES, Kernel, Mutant
from .masks import rewritten

__all__ = ["MUTANTS", "SPLITS", "TILES", "Kernel", "Mutant", "rewritten"]

_SUBJECTS = (
    masks, patterns, empty, tails, softmax, merges, heads, scores, bias, precision, storage, transforms, gradients,
    dropout, calls, cheats,
)  # fmt: skip


def __getattr__(name: str) -> Kernel:
    """The implementation of that name: `refattn.mutants:NAME`."""
    if name not in MUTANTS:
        raise AttributeError(f"no mutant is called {name}; MUTANTS has them all")
    return MUTANTS[name].implementation
