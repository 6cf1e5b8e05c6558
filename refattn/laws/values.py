"""Laws of the values: out is linear in v, with weights that are not negative and add up to 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dtypes import FORMATS
from ..inputs import Problem
from ..judge import Output
from ..precision import Precision
from .bench import Bench, same
from .law import law
from .measured import Measured, compare, exact
from .problems import altered, rng_of

Array = np.ndarray[Any, Any]
FORWARD = frozenset({"out", "lse"})


def ordinary(image: Measured, dtype: str, precision: Precision, gradient: bool) -> Array:
    """Where a power of two is forced through to the last bit: well above what underflows on the way."""
    least = max(4 * FORMATS[dtype].smallest_normal, 2.0**24 * FORMATS[precision.accumulate].smallest_normal)
    stored = [FORMATS[name] for name in (precision.weights, precision.scores) if name is not None]
    if gradient and any(f.emin > -100 for f in stored):  # dS may be subnormal there
        return np.zeros(image.x.shape, dtype=bool)
    return np.asarray((np.abs(image.x) >= least) | (image.x == 0))


@law("bound", "attention(q, k, v + w) = attention(q, k, v) + attention(q, k, w), lse as it was", long=True)
def additivity(base: Problem, ask: Bench) -> Iterator[Output]:
    """v is divided element by element between two arrays, the rest of each 0, so that the sum is exact."""
    whole = altered(base, "whole", want=FORWARD)
    v = base.logical["v"].astype(np.float64)
    here = rng_of(base, "additivity").random(v.shape) < 0.5
    a = ask.ask(whole)
    one, other = (ask.ask(altered(whole, f"part{i}", {"v": np.where(here == i, v, 0.0)})) for i in (0, 1))
    yield compare("out", one["out"] + other["out"], a["out"])
    for part in (one, other):
        yield from same(part, a.only("lse"))


@law("bitwise", "attention(q, k, -4 v) = -4 attention(q, k, v), dq and dk times -4, lse and dv as they were",
     alone="v read one unit of float32 too low", long=True)  # fmt: skip
def values_scaled(base: Problem, ask: Bench) -> Iterator[Output]:
    """A power of two changes no rounding, nor does a sign, unless something underflows: there it is a bound."""
    arrays = {name: -4 * base.logical[name].astype(np.float64) for name in ("v", "dlse") if name in base.logical}
    a, b = ask.ask(base), ask.ask(altered(base, "scaled", arrays))
    repeats = ask.conventions.deterministic
    yield from same(b, a.only("lse", "dv"), bitwise=repeats)
    for name, image in a.only("out", "dq", "dk").items():
        if name in b:
            dtype = base.case.out_dtype if name == "out" else base.case.dtype
            forced = ordinary(image, dtype, a.precision, name != "out")
            yield compare(name, b[name], image.times(-4.0), bitwise=forced & repeats)


@law("bound", "attention(q, k, 1) = 1, where a row sees a key", holds=lambda case: case.sinks is None, long=True)
def unit_values(base: Problem, ask: Bench) -> Iterator[Output]:
    """Mass: the weights of a row add up to 1; a sink would take a part of it."""
    b = ask.ask(altered(base, "ones", {"v": np.ones(base.logical["v"].shape)}, want=frozenset({"out"})))
    sees = b.sees[..., None]
    yield compare("out", b["out"], exact(sees * np.ones(b["out"].x.shape)))


@law("bound", "min v_j <= attention(q, k, v) <= max v_j, over the keys that a row sees (and 0 for its sink)",
     long=True)  # fmt: skip
def convex_hull(base: Problem, ask: Bench) -> Iterator[Output]:
    """Weights are not negative and add up to 1."""
    b = ask.ask(altered(base, "forward", want=FORWARD))
    case, out, seen = base.case, b["out"], b.seen
    v = base.logical["v"].astype(np.float64)
    low, high = np.zeros(out.x.shape), np.zeros(out.x.shape)
    for at in np.ndindex(*seen.shape[:3]):
        values = v[at[0], at[1] * case.Hkv // case.H][seen[at]]
        if len(values):
            low[at], high[at] = values.min(0), values.max(0)
    if case.sinks is not None:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    yield compare("out", out, exact(np.clip(np.nan_to_num(out.x), low, high)))


@law("bound", "<dout, attention(q, k, x)> = <dv, x>, for any values x",
     holds=lambda case: "dv" in case.want)  # fmt: skip
def adjoint_in_v(base: Problem, ask: Bench) -> Iterator[Output]:
    """out is linear in v, so that dv is its transpose at dout: no derivative is needed to say so."""
    case = base.case
    x = rng_of(base, "adjoint_in_v").choice([-2.0, -1.0, 1.0, 2.0], base.logical["v"].shape)
    a = ask.ask(base)
    b = ask.ask(altered(base, "others", {"v": x}, want=frozenset({"out"})))
    dout = base.logical["dout"].astype(np.float64)
    group = (case.B, case.Hkv, -1, case.Dv)
    left = b["out"].times(dout).each(lambda y: y.reshape(group)).sum((2, 3))
    yield compare("<dv, x>", a["dv"].times(x).sum((2, 3)), left)
