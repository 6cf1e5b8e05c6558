"""What a candidate's process may send back: plain data, arrays, and the few classes that hold them.

`Connection.recv` unpickles whatever comes, and a pickle may name any function: a candidate that finds the pipe in
the frames below it could so run code in the process that judges.  `received` knows the names that an honest reply
has, and refuses any other.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from .calling import Answer, Description, Plan
from .dtypes import FORMATS
from .precision import Conventions, Precision

__all__ = ["Forged", "received"]

_OURS = {(kind.__module__, kind.__name__): kind for kind in (Answer, Description, Plan, Precision, Conventions)}
_NUMPY = {("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
}
_DTYPES = {(form.dtype.type.__module__, form.dtype.type.__name__) for form in FORMATS.values()}
_PLAIN = {("builtins", name) for name in ("frozenset", "set", "bytearray", "complex")}
_KNOWN = {*_OURS, *_NUMPY, *_DTYPES, *_PLAIN}


class Forged(Exception):
    """A reply that no honest candidate's process sends."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise Forged(f"sent {module}.{name}, which is no part of an answer")
        return super().find_class(module, name)


def received(pipe: Connection[Any, Any]) -> Any:
    """The next message of a candidate's process; raises `Forged`, and EOFError or OSError as `recv` does."""
    data = pipe.recv_bytes()
    try:
        reply = _Unpickler(io.BytesIO(data)).load()
    except Forged:
        raise
    except Exception as error:
        raise Forged(f"sent what is no answer: {type(error).__name__}") from None
    if type(reply) is Answer and not (
        type(reply.outputs) is dict and all(type(x) is np.ndarray for x in reply.outputs.values())
    ):
        raise Forged("sent an answer that is not of arrays")
    return reply
