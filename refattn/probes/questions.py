"""The questions: tiny cases whose answers tell one convention, or one usual mistake, from another.

q and k are normal, v is one-hot, so that out is the matrix of weights; what each alternative gives comes from the
oracle.  Any two alternatives of a question are far apart: a test holds that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS
from ..masks import Causal, Dense, Window
from ..oracle import attention

__all__ = ["NEAR", "Probe", "plain", "questions"]

Array = np.ndarray[Any, Any]

NEAR = 0.04
"""how near an answer must be to an alternative, as a share of its largest number; the next is twice as far at least"""
KEYS = 8
IN_BASE_2 = ", in base 2"
"""of an alternative that is another one otherwise"""


@dataclass(frozen=True)
class Probe:
    """A question: a case with its arrays, which output is looked at in which rows, and what each alternative gives.

    `asked` is the alternative that is right where no convention, `field` of `Conventions`, says otherwise.  An
    alternative without numbers is any finite answer, one of NaN alone any answer that has a NaN.
    """

    name: str
    case: Case
    arrays: Mapping[str, Array]
    alternatives: Mapping[str, Array]
    asked: str = ""
    field: str = ""
    output: str = "out"
    rows: int = KEYS
    """how many rows are looked at"""
    needs: tuple[str, ...] = ()
    """names of probes without whose right answer this one tells nothing"""

    def named(self, got: Array) -> str | None:
        """The alternative that the answer is near, if it is far from all others."""
        if got.shape != self.case.shape_of(self.output):
            return None
        seen = np.asarray(got[:, :, : self.rows], np.float64)
        far = {name: _distance(seen, value) for name, value in self.alternatives.items()}
        best = min(far, key=lambda name: far[name])
        others = (x for name, x in far.items() if name != best)
        return best.removesuffix(IN_BASE_2) if far[best] <= NEAR and all(x >= 2 * NEAR for x in others) else None


def _distance(got: Array, value: Array) -> float:
    """The largest difference, as a share of the largest number; infinite where only one of the two is finite."""
    if np.isnan(value).all():
        return 0.0 if (np.isnan(got).any() if value.size else np.isfinite(got).all()) else np.inf
    with np.errstate(invalid="ignore"):
        difference = np.where(got == value, 0.0, np.abs(got - value))
    difference = np.where(np.isnan(difference), np.inf, difference)
    return float(difference.max(initial=0.0) / max(np.abs(value[np.isfinite(value)]).max(initial=0.0), 0.1))


def plain(dtype: str, D: int) -> Case:
    """The case of which all others are variations."""
    return Case("probe", "What a convention is.", Lq=KEYS, Lk=KEYS, D=D, Dv=D, dtype=dtype, want=frozenset({"out"}))


def questions(dtype: str, D: int) -> Iterator[Probe]:
    """All probes, in a dtype and of head size D >= 8, which is also the number of columns of v.

    One of the name of an earlier one is for those that do not support the earlier one.
    """
    base = plain(dtype, D)
    yield from _scales(base)
    yield from _causal(base)
    yield from _windows(base)
    yield from _empty_rows(base)
    yield from _lse(base)
    yield from _masked_nan(base)


def _arrays(case: Case) -> dict[str, Array]:
    rng = np.random.Generator(np.random.Philox(key=7))
    drawn = {"q": rng.standard_normal((1, 1, case.Lq, case.D)), "k": rng.standard_normal((1, 1, case.Lk, case.D))}
    drawn["v"] = np.eye(case.Lk, case.Dv)[None, None]
    if case.sinks is not None:
        drawn["sinks"] = np.array([2.0])
    return {name: x.astype(FORMATS[case.dtype].dtype) for name, x in drawn.items()}


def _of(arrays: Mapping[str, Array], **options: Any) -> Any:
    """The oracle's out and lse."""
    sinks = {"sinks": arrays["sinks"]} if "sinks" in arrays else {}
    return attention(arrays["q"], arrays["k"], arrays["v"], **{**sinks, **options})


def _under_masks(name: str, case: Case, masks: Mapping[str, Any], asked: str) -> Probe:
    """Which mask was applied, booleans (Lq, Lk)."""
    arrays = _arrays(case)
    return Probe(name, case, arrays, {what: _of(arrays, mask=mask).out for what, mask in masks.items()}, asked)


def _causal(base: Case) -> Iterator[Probe]:
    case = replace(base, Lq=4)
    i, j = np.ogrid[: case.Lq, : case.Lk]
    offsets = {"top_left": 0, "bottom_right": case.Lk - case.Lq}
    everything = np.ones((case.Lq, case.Lk), dtype=bool)
    for align, offset in offsets.items():
        masks = {name: j <= i + n for name, n in offsets.items()}
        masks |= {"one key too many": j <= i + offset + 1, "the own key hidden": j <= i + offset - 1}
        masks |= {"not causal": everything, "causal in reverse": j >= i + offset}
        yield _under_masks(f"causal {align}", replace(case, mask=Causal(align)), masks, align)  # type: ignore[arg-type]


def _windows(base: Case) -> Iterator[Probe]:
    i, j = np.ogrid[: base.Lq, : base.Lk]
    widths = {"inclusive": 2, "one key too few": 1, "one key too many": 3}
    masks = {name: (j <= i) & (j >= i - n) for name, n in widths.items()}
    masks |= {"both sides": abs(i - j) <= 2, "ignored": j < base.Lk + 0 * i, "causal alone": j <= i}
    yield _under_masks("window of 2 to the left", replace(base, mask=Window(2, 0, "bottom_right")), masks, "inclusive")
    seen = (i * 3 + j * 5) % 7 < 3
    masks = {"True = may attend": seen, "True = hidden": ~seen, "ignored": seen | True, "transposed": seen.T}
    probe = _under_masks("boolean mask", replace(base, mask=Dense.of(seen)), masks, "True = may attend")
    added = _of(probe.arrays, bias=seen.astype(np.float32)).out
    yield replace(probe, alternatives={**probe.alternatives, "added to the scores": added})


def _scales(base: Case) -> Iterator[Probe]:
    arrays, usual = _arrays(base), base.D**-0.5
    arrays["q"] = (3 * arrays["q"].astype(np.float64)).astype(arrays["q"].dtype)
    scales = {"D**-0.5": usual, "1": 1.0, "1 / D": usual**2, "D**-0.5 in base 2": usual * np.log(2)}
    yield Probe("default scale", base, arrays, {n: _of(arrays, scale=s).out for n, s in scales.items()}, "D**-0.5")
    given = 0.4 * usual
    scales = {"as given": given, "ignored": usual, "times D**-0.5": given * usual, "taken for 1": 1.0}
    case = replace(base, scale=given)
    yield Probe("scale", case, arrays, {n: _of(arrays, scale=s).out for n, s in scales.items()}, "as given")


def _empty_rows(base: Case) -> Iterator[Probe]:
    """The first rows of a drawn mask see nothing; where such are not supported, those of a causal one."""
    blank = np.ones((KEYS, 4), dtype=bool)
    blank[:4] = False
    for mask, need in ((Dense.of(blank), "boolean mask"), (Causal("bottom_right"), "causal bottom_right")):
        case = replace(base, Lk=4, mask=mask)
        arrays, shape = _arrays(case), (1, 1, 4, case.Dv)
        mean = np.broadcast_to(arrays["v"].astype(np.float64).mean(2, keepdims=True), shape)
        outs = {"zero": np.zeros(shape), "nan": np.full(shape, np.nan), "mean_all": mean}
        needs = "default scale", need
        yield Probe("empty rows", case, arrays, outs, field="empty_rows", rows=4, needs=needs)
        lses = {name: np.full(shape[:3], float(name)) for name in ("-inf", "+inf", "nan")} | {"finite": np.zeros(0)}
        both = replace(case, want=frozenset({"out", "lse"}))
        yield Probe("lse of empty rows", both, arrays, lses, field="empty_lse", output="lse", rows=4, needs=needs)


def _lse(base: Case) -> Iterator[Probe]:
    case = replace(base, want=frozenset({"out", "lse"}))
    arrays = _arrays(case)
    lse = _of(arrays).lse
    needs = ("default scale",)
    yield Probe("lse base", case, arrays, {"e": lse, "2": lse / np.log(2)}, "", "lse_base", "lse", needs=needs)
    case = replace(case, sinks="zero")
    arrays = _arrays(case)
    with_sinks, without = _of(arrays), _of(arrays, sinks=None)
    outs = {"in the denominator": with_sinks.out, "ignored": without.out}
    yield Probe("sinks", case, arrays, outs, "in the denominator")
    lses = {"included": with_sinks.lse, "excluded": without.lse}
    lses |= {f"{name}{IN_BASE_2}": x / np.log(2) for name, x in lses.items()}
    yield Probe("lse with sinks", case, arrays, lses, "", "lse_sinks", "lse", needs=("sinks",))


def _masked_nan(base: Case) -> Iterator[Probe]:
    """Key 6 is hidden from all rows but 6 and 7, which are not looked at."""
    case = replace(base, mask=Causal("top_left"))
    arrays = _arrays(case)
    out = _of(arrays, mask=case.mask).out[:, :, :6]
    for name in "kv":
        bad = arrays[name].copy()
        bad[:, :, 6] = np.nan
        alternatives = {"hidden": out, "leaks": np.full(out.shape, np.nan)}
        yield Probe(
            f"NaN in a hidden {'key' if name == 'k' else 'value'}", case, {**arrays, name: bad}, alternatives,
            field=f"masked_nan_{name}", rows=6, needs=("default scale", "causal top_left"),
        )  # fmt: skip
