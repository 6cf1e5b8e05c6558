"""A case as text: its line in the list, and its page with the picture of its mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .case import NAMES, BiasSpec, Case, Dense
from .inputs import make
from .memory import answer_shape
from .precision import preset
from .truth import dtype_of

__all__ = ["line", "page"]

Array = np.ndarray[Any, Any]

_ROWS, _COLUMNS = 32, 64
_PICTURES = 4
_AFFORDABLE = 1 << 20
"""elements of which arrays are made to show their shapes"""


def line(case: Case) -> str:
    """One line: id, chapter, sizes, dtype, family, features."""
    features = sorted(f for f in case.features() if not f.startswith("dtype="))
    words = f"{case.id:<32} {case.chapter:<11} {_sizes(case)}  {_dtypes(case)}  {case.family}  {' '.join(features)}"
    return words.rstrip()


def page(case: Case, flags: Mapping[str, str]) -> str:
    """Everything about a case; `flags` says what each flag means."""
    lines = [case.id, case.why, "", f"chapter  {case.chapter}", f"sizes    {_sizes(case)}", f"dtype    {_dtypes(case)}"]
    lines += [f"family   {case.family}, seed {case.seed}", f"wants    {' '.join(sorted(case.want))}"]
    fields = "mask q_lens k_lens scale softcap score_mod bias sinks dropout rotary quant storage"
    for name in fields.split():
        value = getattr(case, name)
        if value is not None and value != Dense():
            lines.append(f"{name:<8} {_one_line(value)}")
    lines += _handed(case)
    lines += [f"for      {flag}: {flags.get(flag, '(no description)')}" for flag in case.flags]
    if case.mask is not None or case.q_lens is not None or case.k_lens is not None:
        lines += ["", *_pictures(case)]
    return "\n".join(lines)


def _handed(case: Case) -> list[str]:
    """Name, shape and dtype of each array that the case hands over, and of those that it wants back."""
    if max(case.Lq, case.Lk) * (case.D + case.Dv) * case.B * case.H > _AFFORDABLE:
        return []
    given = [f"{name} {tuple(x.shape)} {x.dtype.name}" for name, x in make(case).fresh().items()]
    contract = preset(case.dtype, case.out_dtype)
    wanted = [f"{n} {answer_shape(case, n, case.shape_of(n))} {dtype_of(n, case, contract)}" for n in NAMES
              if n in case.want]  # fmt: skip
    return [*_column("handed", given), *_column("returns", wanted)]


def _column(name: str, rows: list[str]) -> list[str]:
    return [f"{name if n == 0 else '':<8} {row}" for n, row in enumerate(rows)]


def _sizes(case: Case) -> str:
    return " ".join(f"{name}={getattr(case, name)}" for name in ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv"))


def _dtypes(case: Case) -> str:
    return case.dtype if case.out_dtype == case.dtype else f"{case.dtype} -> {case.out_dtype}"


def _one_line(value: Any) -> str:
    if isinstance(value, BiasSpec):
        return f"{value.dims} {value.dtype} {value.family}"
    text = value.layout if isinstance(value, Dense) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _pictures(case: Case) -> list[str]:
    """The pictures of the distinct batch entries and heads, rows = queries, columns = keys."""
    groups: dict[str, list[str]] = {}
    entries = [(b, h) for b in range(case.B) for h in range(case.H)]
    for b, h in entries[:64]:
        groups.setdefault(_picture(case, b, h), []).append(f"b={b} h={h}")
    lines = ["x = may attend, rows are queries, columns keys" + _scale_note(case)]
    for drawing, members in list(groups.items())[:_PICTURES]:
        more = f" and {len(members) - 4} more" if len(members) > 4 else ""
        where = "every b and h" if len(members) == len(entries) else ", ".join(members[:4]) + more
        lines += ["", where, *drawing.split("\n")]
    if len(groups) > _PICTURES:
        lines += ["", f"and {len(groups) - _PICTURES} other pictures"]
    return lines


def _block(case: Case) -> tuple[int, int]:
    """How many queries and keys one character stands for."""
    return max(1, -(-case.Lq // _ROWS)), max(1, -(-case.Lk // _COLUMNS))


def _scale_note(case: Case) -> str:
    rows, keys = _block(case)
    return "" if rows == keys == 1 else f"; one character is {rows} x {keys}, + where only some may"


def _picture(case: Case, b: int, h: int) -> str:
    rows, keys = _block(case)
    starts = np.arange(0, case.Lk, keys)
    drawn = []
    for first in range(0, case.Lq, rows):
        seen = case.visibility.tile(slice(first, first + rows), b=b, h=h)
        count = np.add.reduceat(seen.sum(0), starts) if case.Lk else np.zeros(0)
        whole = seen.shape[0] * np.minimum(keys, case.Lk - starts)
        drawn.append("".join(np.where(count == 0, ".", np.where(count == whole, "x", "+"))))
    return "\n".join(drawn)

