"""6. Packed sequences of any lengths, without idle blocks.

Added to k3: a block finds its sequence and tile in cu_seqlens on the device (`places.packed_tile`), so that the host
needs no lengths, and no block is started for the rows that a short sequence lacks.  Everything else is k3's
kernel, `forward(spec)` with spec.varlen.  Sequences may be empty; used lengths hide the rest of one.

    forward    grid (grid(tokens, B, H, spec),), block (spec.threads,), shared_bytes(spec)
               q, k, v, out, lse, shape, band, lengths, scores, bias      k3's arguments; lengths.start_q is needed

with tokens = q.shape[0].  Tokens beyond the last sequence, or beyond a used length, are not written.
"""

from __future__ import annotations

from typing import Any

from . import k3_tensor_core as k3
from .arguments import Specialisation
from .k3_tensor_core import SIGNATURE, forward, shared_bytes
from .spec import Spec

__all__ = ["SIGNATURE", "forward", "grid", "shared_bytes", "specialisations", "usual"]


def usual(dtype: str, D: int, Dv: int, **features: Any) -> Spec:
    """k3's tile."""
    return k3.usual(dtype, D, Dv, **{"varlen": True, **features})


def grid(tokens: int, B: int, H: int, spec: Spec) -> int:
    """Blocks that cover `tokens` = q.shape[0] rows in B sequences: at most B tiles of a head have no row."""
    return (tokens // spec.rows + B) * H if tokens else 0


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles."""
    found = []
    for D in (64, 128):  # it is k3 but for one function
        spec = usual("bfloat16", D, D)
        found.append(
            Specialisation(
                f"varlen bfloat16 D={D}", forward(spec).py_func, SIGNATURE, spec.threads, shared_bytes(spec),
                ("sm_80", "sm_90"), 2 * spec.row_tiles * spec.keys * D // 128,
            )
        )  # fmt: skip
    return found
