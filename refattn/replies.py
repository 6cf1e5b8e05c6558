"""What a candidate's process may send back: plain data, arrays, and the few classes that hold them.

`Connection.recv` unpickles whatever comes, and a pickle may name any function: a candidate that finds the pipe in
the frames below it could so run code in the process that judges.  `received` knows the names that an honest reply
has, and refuses any other.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, get_args

import numpy as np

from .calling import Answer, Description, Kind, Plan
from .dtypes import FORMATS
from .precision import Conventions, Precision

__all__ = ["Forged", "received"]

_OURS = {(kind.__module__, kind.__name__) for kind in (Answer, Description, Plan, Precision, Conventions)}
_NUMPY = {("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
}
_DTYPES = {(form.dtype.type.__module__, form.dtype.type.__name__) for form in FORMATS.values()}
_KNOWN = {*_OURS, *_NUMPY, *_DTYPES, ("builtins", "frozenset")}


class Forged(Exception):
    """A reply that no honest candidate's process sends."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise Forged(f"sent {module}.{name}, which is no part of an answer")
        return super().find_class(module, name)


def received(data: bytes) -> Any:
    """A message of a candidate's process, out of its bytes; raises `Forged`."""
    try:
        reply = _Unpickler(io.BytesIO(data)).load()
    except Forged:
        raise
    except Exception as error:
        raise Forged(f"sent what is no answer: {type(error).__name__}") from None
    if type(reply) is Answer and not _plain(reply):
        raise Forged("sent an answer that is not of arrays and words")
    if type(reply) not in (Answer, Description, Plan, str):
        raise Forged(f"sent a {type(reply).__name__}, which is no answer")
    return reply


def _plain(x: Answer) -> bool:
    arrays = type(x.outputs) is dict and all(type(array) is np.ndarray for array in x.outputs.values())
    words = type(x.findings) is tuple and all(type(word) is str for word in (x.kind, x.text, *x.findings))
    return arrays and words and type(x.seconds) is float and x.kind in get_args(Kind)
