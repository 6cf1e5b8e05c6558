"""`Problem`, a case with its arrays, and `make`, which draws them.

`families` holds one function for each named family of q, k, v, by difficulty; `bias` the small
families of the additive bias and of the sink logits; `captured` reads what models computed; `poison` fills with NaN
what may not be read.
All is drawn from Philox streams keyed by the seed and the family's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..case import Cache, Case, Packed, Paged, Shared
from ..dropout import keep_tile
from ..dtypes import FORMATS, round_to
from ..memory import give
from .bias import BIAS, SINKS
from .captured import PREFIX, captured
from .families import FAMILIES
from .poison import poison, poison_pairs
from .transforms import quantised, rotated

__all__ = ["BIAS", "FAMILIES", "SINKS", "Problem", "drawn", "made", "make"]

Array = np.ndarray[Any, Any]
Drawn = dict[str, tuple[Array, str]]
Streams = Callable[[Case, str], np.random.Generator]


@dataclass(frozen=True)
class Problem:
    """A case with its arrays.

    `logical` holds dense arrays, (B, heads, L, D): all that the oracle sees.  They have the case's
    dtypes, but where q, k or v are rotated or quantised they are what comes of it exactly, in float64.
    `stored` holds what is handed over instead or besides: unrotated q and k, cos, sin, codes, scales.
    `fresh()` gives what an implementation is handed: copies, laid out as `case.storage` says.
    Names: q k v, and where the case has them bias sinks keep dout dlse.
    """

    case: Case
    logical: Mapping[str, Array]
    stored: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.case
        needed = {
            "bias": case.bias is not None, "sinks": case.sinks is not None, "keep": case.dropout is not None,
            "dout": case.backward,
        }  # fmt: skip
        for name in ("q", "k", "v", *(name for name, on in needed.items() if on)):
            if name not in self.logical:
                raise ValueError(f"{case.id}: logical has {', '.join(self.logical)}; the case needs {name} too")
        for name in ("q", "k", "v", "bias", "sinks", "keep", "dout", "dlse"):
            if name in self.logical and self.logical[name].shape != case.shape_of(name):
                shape = self.logical[name].shape
                raise ValueError(f"{case.id}: {name}.shape={shape} must be {case.shape_of(name)}, as the case says")

    def fresh(self) -> dict[str, Array]:
        """New writeable arrays, in the memory that the case's storage describes."""
        return give(self.case, {**self.logical, **self.stored})


def make(case: Case) -> Problem:
    """The problem of a case: deterministic in the seed, the family's name and the sizes.

    dout is in `out_dtype` and exists where a gradient is wanted, dlse (float32, of float64 cases
    float64) where lse is wanted too.  Refused: families that do not exist, and values beyond the
    range of their dtype.
    """
    return made(case, drawn(case, _rng))


def drawn(case: Case, rng: Streams) -> Drawn:
    """What the families of a case draw, in float64, with the dtype that each is meant for.

    `rng` gives a generator for the case and the name of a stream, with NumPy's methods.
    """
    if case.family.startswith(PREFIX):
        given = captured(case)
    else:
        qkv = _family(FAMILIES, case.family, "family")(case, rng(case, case.family))
        given = dict(zip("qkv", qkv, strict=True))
    found = {name: (given[name], case.dtype) for name in "qkv"}
    if case.bias is not None:
        if "bias" not in given:
            given["bias"] = _family(BIAS, case.bias.family, "bias family")(case, rng(case, f"bias {case.bias.family}"))
        found["bias"] = given["bias"], case.bias.dtype
    if case.sinks is not None:
        if "sinks" not in given:
            given["sinks"] = _family(SINKS, case.sinks, "sinks")(case, rng(case, f"sinks {case.sinks}"))
        found["sinks"] = given["sinks"], case.dtype
    if case.backward:
        gradients = rng(case, "backward")
        dout = gradients.standard_normal((case.B, case.H, case.Lq, case.Dv))
        found["dout"] = given.get("dout", dout), case.out_dtype
        if "lse" in case.want:
            dtype = "float64" if case.dtype == "float64" else "float32"
            # no gradient at rows that are not there: dsinks would hear of it
            exists = np.arange(case.Lq) < np.array(case.lengths[0])[:, None, None]
            found["dlse"] = np.where(exists, gradients.standard_normal((case.B, case.H, case.Lq)), 0.0), dtype
    return found


def made(case: Case, drawn: Drawn) -> Problem:
    """The problem of what was drawn: rounded, poisoned, rotated, quantised."""
    logical = {}
    for name, (x, dtype) in drawn.items():
        rounded = round_to(x, dtype)
        if not np.array_equal(np.isfinite(x), np.isfinite(rounded)):
            peak = np.abs(x[np.isfinite(x)]).max()
            raise ValueError(f"family={case.family!r} draws {name} up to {peak:.3g}, beyond {dtype}; use another")
        logical[name] = rounded.astype(FORMATS[dtype].numpy)
    if case.family == "poisoned":
        poison(case, logical)
    elif case.family == "poisoned_pairs":
        poison_pairs(case, logical)
    if isinstance(case.storage, (Packed, Paged, Cache)):
        _forget(case, logical)
    if isinstance(case.storage, Shared):
        logical["v"] = logical["k"][..., : case.Dv].copy()
    if case.dropout is not None:
        logical["keep"] = keep_tile(case.seed, 0, case.dropout, (case.B, case.H, case.Lq, case.Lk))
    stored = {**rotated(case, logical), **quantised(case, logical)}
    for x in (*logical.values(), *stored.values()):
        x.setflags(write=False)
    return Problem(case, logical, stored)


def _forget(case: Case, logical: Mapping[str, Array]) -> None:
    """0, in place, in rows that have no memory at all in this storage: what lies in their stead is no input."""
    q_lens, k_lens = case.lengths
    names = {"k": k_lens, "v": k_lens} | ({"q": q_lens, "dout": q_lens} if isinstance(case.storage, Packed) else {})
    for name, lens in names.items():
        for b, n in enumerate(lens):
            if name in logical:
                logical[name][b, :, n:] = 0


def _family(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise ValueError(f"{what}={name!r} is not one of {', '.join(table)}")
    return table[name]


def _rng(case: Case, stream: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=(zlib.crc32(stream.encode()) << 64) + case.seed))
