"""`refattn.assert_attention`: one line in anybody's test.

    refattn.assert_attention(out, q, k, v, causal="bottom_right")

It asks `refattn.judging.judge_arrays`, and fails with the text of `refattn check`: the worst element, its interval,
by how much it is out, and which bug gives just these numbers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import Any

from .judgement import Judgement, Unjudgeable, looks_like
from .judging import JUDGED, judge_arrays
from .report import failure

__all__ = ["AttentionError", "assert_attention"]


class AttentionError(AssertionError):
    """What was computed is not attention.

    The bug is looked for, which takes some seconds, when the text is asked for: hypothesis, which raises hundreds
    of these to find the smallest, asks for one.
    """

    def __init__(self, judgement: Judgement) -> None:
        super().__init__()
        self.judgement = judgement

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        found = self.judgement
        return _text(replace(found, notes=(*found.notes, *looks_like(found))))


def assert_attention(out: Any, q: Any, k: Any, v: Any, **given: Any) -> None:
    """AssertionError unless `out`, and what else was computed, is attention of q, k and v within the derived bound.

    `given` are the arguments of `refattn.judging.judge_arrays`: the other outputs lse dq dk dv dbias dsinks, the
    other inputs dout dlse bias mask sinks keep, and the options causal window scale softcap dropout q_lens k_lens
    layout dtype out_dtype contract contract_fields conventions rows seed.  Arrays of NumPy, torch, jax, MLX, CuPy
    are taken as they are.  `out` may be None where another output is judged.  ValueError or TypeError if the
    arrays make no problem.

    >>> import numpy as np
    >>> x = np.eye(4, dtype=np.float32)[None, None]
    >>> assert_attention(np.full_like(x, 0.25), x, x, x, scale=0)
    >>> assert_attention(x, x, x, x, scale=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    refattn.asserting.AttentionError: out[0, 0, 0, 0] = 1, should be 0.25 in [0.2499997, 0.2500003] ...
    """
    __tracebackhide__ = True
    try:
        found = judge_arrays(q, k, v, out=out, **{**given, "diagnose": False})
    except Unjudgeable:
        if all(0 in x.shape for x in (out, *map(given.get, JUDGED)) if x is not None):
            return  # there are no elements, and the shapes are right
        raise
    if found.status not in ("passed", "acceptable"):
        raise AttentionError(found)


def _text(found: Judgement) -> str:
    """The text of the failure, with cures that can be passed here."""
    text = failure(found, None).removeprefix(f"FAIL {found.case.id}  ")
    text = re.sub(r"the eager one: precision=.*", 'the eager one: pass contract="eager"', text)
    text = re.sub(r"float32's: it computes in float32", '\\g<0>: pass contract_fields={"accumulate": "float32"}', text)
    text = re.sub(r"weights_from_lse=True", 'pass contract_fields={"weights_from_lse": True}', text)
    cure = "; if it is meant, pass conventions=refattn.precision.Conventions("
    return re.sub(r"undeclared convention: (\w+='?[^',\n]+'?)", f"\\g<0>{cure}\\1)", text)
