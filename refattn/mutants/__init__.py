"""Kernels with one thing wrong: the catalogue of public bugs, forward and backward.

Each is `refattn.streaming` with one rule replaced by a wrong one, and an implementation of its own:
`refattn check refattn.mutants:causal_top_left` must fail.  One decorated class is one row of
MUTANTS; to add a bug, add a class to the file of its subject.  Its docstring says what is wrong,
`seen` where it, or its kin, was seen in public, `flag` the entry of `refattn.cases.FLAGS` it belongs
to (its own name if not given), and `separates` which cases can tell it from a correct kernel: on all
others its answer is the same, bit for bit.
"""

from __future__ import annotations

from ..streaming import Streaming
from . import dropout, gradients, masks, scores, softmax, storage, transforms
from .catalogue import MUTANTS, TILES, Mutant
from .masks import rewritten

__all__ = ["MUTANTS", "TILES", "Mutant", "rewritten"]

_SUBJECTS = (masks, softmax, scores, dropout, gradients, transforms, storage)


def __getattr__(name: str) -> Streaming:
    """The implementation of that name: `refattn.mutants:NAME`."""
    if name not in MUTANTS:
        raise AttributeError(f"no mutant is called {name}; MUTANTS has them all")
    return MUTANTS[name].implementation
