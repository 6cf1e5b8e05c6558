"""Laws of the scores: what leaves softmax as it is, and what leaves every product as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..inputs import Problem
from ..judge import Output
from ..oracle import scale_of
from .bench import Bench, same
from .law import law
from .measured import compare, exact
from .problems import altered, rng_of
from .values import ordinary


@law("bound", "one more feature, (q, a) and (k, 1): out as it was, lse + scale a",
     holds=lambda case: case.softcap is None and case.sinks is None and scale_of(case.scale, case.D) != 0,
     long=True)  # fmt: skip
def logit_shift(base: Problem, ask: Bench) -> Iterator[Output]:
    """Softmax does not see a shift of its row.  Seven features of 0 make the size of a key even."""
    case, scale = base.case, scale_of(base.case.scale, base.case.D)
    a = 2.0 ** round(math.log2(3 / abs(scale))) * np.where(np.arange(case.Lq) % 2, 1.0, -1.0)
    q, k = (np.pad(base.logical[n].astype(np.float64), ((0, 0), (0, 0), (0, 0), (0, 8))) for n in "qk")
    q[..., case.D], k[..., case.D] = a, 1.0
    was, now = ask.ask(base), ask.ask(altered(base, "shifted", {"q": q, "k": k}, D=case.D + 8, scale=scale))
    yield from same(now, was.only("out", "dv"))
    shift = scale * (a if ask.rows is None else a[ask.rows])
    if "lse" in was:
        yield from same(now, {"lse": was["lse"].plus(shift / ask.nats)})
    for name, image in was.only("dq", "dk").items():
        if name in now:
            yield compare(name, now[name][..., : case.D], image)
    if "dq" in now:  # of the rows that see a key, and of them alone
        alive = now.sees
        dlse = now.problem.logical.get("dlse", np.zeros(alive.shape)).astype(np.float64)
        yield compare("dq (of a)", now["dq"][..., case.D], exact(np.where(alive, scale * dlse, 0.0)))
        rest = now["dq"][..., case.D + 1 :]
        yield compare("dq (of zeros)", rest, exact(np.zeros(rest.x.shape)), bitwise=True)


@law("bitwise", "(4 q, scale / 4) = (q, scale), dq a quarter", holds=lambda case: scale_of(case.scale, case.D) != 0,
     alone="q rounded to multiples of 2^-24, in float32", long=True)  # fmt: skip
def scale_equivalence(base: Problem, ask: Bench) -> Iterator[Output]:
    """A power of two changes no rounding; four, so that its root does not either."""
    scale = scale_of(base.case.scale, base.case.D)
    a = ask.ask(altered(base, "as-is", scale=scale))
    b = ask.ask(altered(base, "scaled", {"q": 4 * base.logical["q"].astype(np.float64)}, scale=scale / 4))
    repeats = ask.conventions.deterministic
    yield from same(b, a.only("out", "lse", "dk", "dv", "dsinks"), bitwise=repeats)
    if "dq" in a:
        image = a["dq"].times(0.25)
        forced = ordinary(image, base.case.dtype, a.precision, False)
        yield from same(b, {"dq": image}, bitwise=forced & repeats)


@law("bitwise", "(q s, k s) = (q, k) for signs s of the features, dq and dk times s",
     alone="q read one unit of float32 too low", long=True)  # fmt: skip
def sign_flips(base: Problem, ask: Bench) -> Iterator[Output]:
    """Every product q_d k_d stays as it was, bit for bit, and rounding to nearest does not know signs."""
    s = rng_of(base, "sign_flips").choice([-1.0, 1.0], base.case.D)
    a = ask.ask(base)
    b = ask.ask(altered(base, "flipped", {n: s * base.logical[n].astype(np.float64) for n in "qk"}))
    images = {**a.only("out", "lse", "dv", "dsinks"), **{n: x.times(s) for n, x in a.only("dq", "dk").items()}}
    yield from same(b, images, bitwise=ask.conventions.deterministic)
