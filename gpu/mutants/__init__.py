"""Bugs planted in the kernels: what the executor and the tolerance must catch without a GPU.

A row is a text in a file of gpu/kernels that occurs once, what it becomes, a problem on which it shows, and the check
that catches it: an error of `gpu.simt`, in every schedule, or "bound": an output outside the interval of
`refattn.truth`.  `gpu.mutation` plants and runs them.
"""

from __future__ import annotations

from . import backward, decode, forward, plain, wgmma
from .mutant import KERNELS, Mutant
from .problems import ALIBI, PROBLEMS, Posed

__all__ = ["ALIBI", "KERNELS", "MUTANTS", "PROBLEMS", "Mutant", "Posed"]

MUTANTS = forward.MUTANTS + backward.MUTANTS + decode.MUTANTS + wgmma.MUTANTS + plain.MUTANTS
