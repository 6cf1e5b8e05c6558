"""A case as the text of a test, to be pasted into a file and run as it stands."""

from __future__ import annotations

import re
from dataclasses import fields

from ..case import Case
from ..masks import __all__ as masks

__all__ = ["as_test", "literal"]

_IN_PROCESS = '''
def test_{name}():
    attention = load(SPEC)
    answer = call(attention, make(CASE))
    verdict = judge(make(CASE), answer, attention.precision(CASE), attention.conventions, outputs=attention.outputs)
    assert verdict.status in ("passed", "acceptable"), failure(verdict, SPEC)
'''
_APART = '''
def test_{name}():
    with Worker(SPEC, timeout={timeout:g}) as attention:
        verdict = examine(attention, CASE)
    assert verdict.status in ("passed", "acceptable"), failure(verdict, SPEC)
'''


def as_test(case: Case, spec: str, *, apart: bool = False, timeout: float = 60.0) -> str:
    """The text of a pytest module: imports, the case as a literal, the call, and the assertion.

    spec is module:callable, or a name such as torch.  `apart` calls it in a process of its own, with a time limit in
    seconds: for what crashes or hangs.  Refused: a mask that was given as an array, which has no literal.
    """
    imports = {"refattn.case": {"Case"}, "refattn.report": {"failure"}}
    if apart:
        imports |= {"refattn.conform": {"examine"}, "refattn.worker": {"Worker"}}
    else:
        imports |= {"refattn.calling": {"call"}, "refattn.implementation": {"load"}}
        imports |= {"refattn.inputs": {"make"}, "refattn.judge": {"judge"}}
    text = literal(case)
    code = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
    for module, names in (("refattn.masks", masks), ("refattn.case", ("BiasSpec",)), ("refattn.rotary", ("Rotary",)),
                          ("refattn.quantise", ("Quant",)), ("refattn", ("storage",))):  # fmt: skip
        used = {name for name in names if re.search(rf"(?<![\w.]){name}[(.]", code)}
        if used:
            imports.setdefault(module, set()).update(used)
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(imports.items())]
    name = re.sub(r"\W", "_", case.id)
    body = (_APART if apart else _IN_PROCESS).format(name=name, timeout=timeout)
    return "\n".join([*lines, "", f"SPEC = {spec!r}", f"CASE = {text}", "", body]).rstrip() + "\n"


def literal(case: Case) -> str:
    """The case as Python, fields at their default left out: an equal one, with the names that `as_test` imports.

    >>> print(literal(Case("small", "A reason.", Lq=2)))
    Case(
        'small',
        'A reason.',
        Lq=2,
    )
    """
    if "Given(bool" in repr(case.mask):
        raise ValueError(f"mask={case.mask!r} was given as an array, which has no literal; pass refattn.masks.Dense.of")
    parts = [repr(case.id), repr(case.why)]
    for f in fields(case):
        value = getattr(case, f.name)
        if f.name in ("id", "why") or value == f.default or (f.name == "out_dtype" and value == case.dtype):
            continue
        text = f"storage.{value!r}" if f.name == "storage" else repr(value)
        if isinstance(value, frozenset):
            text = f"{{{', '.join(map(repr, sorted(value)))}}}"
        parts.append(f"{f.name}={text}")
    return "Case(\n" + "".join(f"    {part},\n" for part in parts) + ")"
