"""What the adapters have in common: what a library cannot express is refused by a word, before it is called.

An adapter is an instance of `Adapter`, or of a class that extends it by what is special to the library:

    @dataclass(frozen=True)
    class Attention(Adapter):
        def refuses(self, case): ...            # reasons beyond `takes`; None: it can do it
        def precision(self, case): ...          # if it is not the preset of the dtype
        def __call__(self, case, given): ...    # imports the library, returns named arrays

    default = Attention("jax.nn.dot_product_attention", "jax", takes=frozenset({"bias", "gqa"}))

The case's mask is realised exactly: by an option of the library that means just that mask, or by
`visible(case)` or `additive(...)`, or the case is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np

from ..case import Cache, Case, Packed, Paged
from ..dtypes import FORMATS
from ..masks import Causal
from ..precision import Conventions, Precision, preset

__all__ = ["FEATURES", "Adapter", "NotInstalled", "additive", "hides", "is_causal", "sees_nothing", "visible"]

Array = np.ndarray[Any, Any]

FEATURES: dict[str, Callable[[Case], bool]] = {
    "softcap": lambda case: case.softcap is not None,
    "sinks": lambda case: case.sinks is not None,
    "score_mod": lambda case: case.score_mod is not None,
    "dropout": lambda case: case.dropout is not None,
    "rotary": lambda case: case.rotary is not None,
    "quant": lambda case: case.quant is not None,
    "packed": lambda case: isinstance(case.storage, Packed),
    "paged": lambda case: isinstance(case.storage, Paged),
    "cache": lambda case: isinstance(case.storage, Cache),
    "bias": lambda case: case.bias is not None,
    "bias of another dtype": lambda case: case.bias is not None and case.bias.dtype != case.dtype,
    "mask": lambda case: hides(case),
    "gqa": lambda case: case.H != case.Hkv,
    "D!=Dv": lambda case: case.D != case.Dv,
    "scale": lambda case: case.scale is not None,
    "out_dtype": lambda case: case.out_dtype != case.dtype,
    "dlse": lambda case: case.backward and "lse" in case.want,
}
"""the word by which a library that lacks a feature refuses it, and which cases need it"""


class NotInstalled(ImportError):
    """The library of an adapter is not there."""


@dataclass(frozen=True)
class Adapter:
    """A public library as an `Implementation`: what it takes and returns, and what it declares.

    `distribution` is the name on PyPI, whose version is printed; `takes` are words of `FEATURES`.
    """

    name: str
    distribution: str
    takes: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset({"float32"})
    outputs: frozenset[str] = frozenset({"out"})
    arrays: Literal["numpy", "torch"] = "numpy"
    conventions: Conventions = Conventions()
    needs: str = ""
    """what the machine must have, beside the library, such as a CUDA GPU"""

    def __post_init__(self) -> None:
        for what, words, known in (("takes", self.takes, FEATURES), ("dtypes", self.dtypes, FORMATS)):
            unknown = sorted(words - set(known))
            if unknown:
                raise ValueError(f"{what}: {unknown[0]!r} is not one of {', '.join(known)}")

    @property
    def version(self) -> str:
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            name = self.distribution
            needs = f", and needs {self.needs}" if self.needs else ""
            raise NotInstalled(f"{name} is not installed{needs}: python -m pip install {name}") from None

    def supports(self, case: Case) -> str | None:
        if case.dtype not in self.dtypes:
            return case.dtype
        for word, has in FEATURES.items():
            if word not in self.takes and has(case):
                return word
        if self.returned(case).isdisjoint(case.want):
            return f"returns no {' '.join(sorted(case.want))}"
        return self.refuses(case)

    def returned(self, case: Case) -> frozenset[str]:
        """What it can return of a case."""
        return self.outputs

    def refuses(self, case: Case) -> str | None:
        """The reason to refuse a case whose features and dtypes it takes."""
        return None

    def precision(self, case: Case) -> Precision:
        return preset(case.dtype, case.out_dtype)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must call {self.distribution}")


def hides(case: Case) -> bool:
    """Whether the case has a mask, or lengths: whether a row may not see every key."""
    return not (case.mask is case.q_lens is case.k_lens is None)


def is_causal(case: Case, align: Literal["top_left", "bottom_right"] = "top_left") -> bool:
    """Whether a causal mask of that alignment is all that the case hides."""
    return case.mask == Causal(align) and case.q_lens is case.k_lens is None


def sees_nothing(case: Case) -> bool:
    """Whether some query that exists sees no key."""
    rows = np.asarray(visible(case).any(-1))
    return not all(rows[b, :, :n].all() for b, n in enumerate(case.lengths[0]))


def visible(case: Case) -> Array:
    """(B, H, Lq, Lk) booleans, True = may attend; an array of the caller's own."""
    return case.visibility.tile().copy()


def additive(case: Case, given: Mapping[str, Any], dtype: str | None = None) -> Array:
    """(B, H, Lq, Lk) in `dtype` (None: the case's): the case's bias or 0, and -inf where it hides."""
    bias = np.asarray(given["bias"], dtype=np.float64) if "bias" in given else 0.0
    return np.where(visible(case), bias, -np.inf).astype(FORMATS[dtype or case.dtype].numpy)
