"""What the process of a candidate sends is read as data: all that is honest arrives, nothing else runs."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest

from refattn.calling import Answer, Plan
from refattn.dtypes import FORMATS
from refattn.precision import preset
from refattn.replies import Forged, received


def reply(message: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> Any:
    return received(message if isinstance(message, bytes) else pickle.dumps(message, protocol))


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", [*FORMATS, "bool"])
def test_an_honest_answer_arrives(dtype: str, protocol: int) -> None:
    kind = FORMATS[dtype].dtype if dtype in FORMATS else np.dtype(dtype)
    whole = np.arange(12).reshape(3, 4).astype(kind)
    for x in (whole, whole[::2, 1:], np.asfortranarray(whole), whole[:0], np.asarray(whole[1, 1])):
        found = reply(Answer("answer", {"out": x}, ("a fault",), "text", 0.5), protocol)
        assert found.findings == ("a fault",) and found.outputs["out"].dtype == kind
        assert np.array_equal(found.outputs["out"], x)


def test_a_plan_arrives() -> None:
    plan = Plan(precision=preset("bfloat16"), failure=Answer("error", text="why"))
    assert reply(plan) == plan


class Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def _any(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    "message",
    [
        Evil(os.getcwd, ()), Evil(exec, ("raise SystemExit",)), Evil(getattr, ("", "join")), Evil(np.load, ("x",)),
        Answer("answer", _any({"out": Evil(os.getcwd, ())})), Plan(precision=_any(Evil(eval, ("1",)))),
        b"cnumpy\nndarray.__class__\n.", b"crefattn.judge\nratios\n.", b"", b"no pickle", pickle.dumps(1)[:-1],
        Answer(_any("fine")), Answer("answer", findings=_any("no")), Answer("answer", seconds=_any(0)), 3, frozenset(),
        Answer("answer", _any({"out": [1.0]})), Answer("answer", _any(np.zeros(3))), Answer("answer", _any({"out": 3})),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(message: Any) -> None:
    with pytest.raises(Forged, match="^sent "):
        reply(message)
