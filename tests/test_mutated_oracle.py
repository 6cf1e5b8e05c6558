"""Who guards the guards: an oracle with one line wrong is caught by streaming, and by ball arithmetic.

Each mutation replaces one piece of the oracle's source.  The mutant answers a few problems that have
the features combined, and its answers are held against the other two derivations, each within its own
bound: `apriori.bounds` for streaming, `Certified.limit` for the balls.  Then streaming is mutated, and
held against the oracle and the balls.  `PYTHONPATH=. python tests/test_mutated_oracle.py` prints what
catches what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from apriori import SCORES, Problem, bounds, solve, visible_of, worst_ratio
from mutations import ORACLE, STREAMING, Mutation, mutant

from refattn import oracle, streaming
from refattn.masks import Causal
from refattn.precision import preset
from refattn.score_mods import SCORE_MODS
from refattn.streaming import Schedule

pytest.importorskip("flint", reason="python-flint (extra `test`) makes the certified balls")

from certified import Certified, certify  # noqa: E402

Array = np.ndarray[Any, Any]


# --- problems ----------------------------------------------------------------------------------

B, H, HKV, LQ, LK, D, DV = 2, 4, 2, 5, 7, 3, 2


def _arrays(seed: int, **options: Any) -> Problem:
    """N(0, 1), and nothing else but what is named."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (B, H, LQ, D), "k": (B, HKV, LK, D), "v": (B, HKV, LK, DV)}
    shapes |= {"dout": (B, H, LQ, DV), "dlse": (B, H, LQ)}
    x: Problem = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return x | dict.fromkeys((*SCORES, "dropout", "keep")) | options


def _everything(score_mod: str, **options: Any) -> Problem:
    """Every option at once, a row that sees nothing among them."""
    rng = np.random.default_rng(1)
    mask = rng.random((B, 1, LQ, LK)) < 0.7
    mask[:, :, 2] = False
    return _arrays(
        2, mask=mask, bias=rng.standard_normal((H, 1, LK)), scale=-0.7, softcap=2.0, sinks=rng.standard_normal(H),
        score_mod=SCORE_MODS[score_mod], dropout=0.3, keep=rng.random((B, H, LQ, LK)) < 0.7,
    ) | options  # fmt: skip


def _hidden() -> Problem:
    """A bias that hides, whole rows too; a sink of -inf; a mask as an object."""
    rng = np.random.default_rng(4)
    bias = rng.standard_normal((B, H, LQ, LK))
    bias[rng.random(bias.shape) < 0.3] = -np.inf
    bias[:, :, 3] = -np.inf
    return _arrays(5, mask=Causal("bottom_right"), bias=bias, sinks=np.array([0.5, -np.inf, -1.0, 2.0]))


def _scattered(seed: int) -> Array:
    return np.asarray(np.random.default_rng(seed).random((B, H, LQ, LK)) < 0.5)


PROBLEMS: dict[str, Problem] = {
    "plain": _arrays(0),
    "tilt": _everything("tilt"),
    "relative": _everything("relative", softcap=None, scale=None, sinks=None),
    "parabola": _everything("parabola", dropout=0.75, bias=np.array([[[[0.3]], [[-0.2]], [[1.0]], [[0.1]]]])),
    "dropout": _arrays(3, dropout=0.1, keep=np.random.default_rng(6).random((LQ, 1)) < 0.6, scale=2.0),
    "all dropped": _arrays(3, dropout=1.0, keep=np.zeros((), dtype=bool)),
    "hidden": _hidden(),
    "large sinks": _everything("softsign", sinks=np.array([1e3, 900.0, -1e3, 0.0]), softcap=None),
    "large scores": (x := _arrays(7, softcap=800.0, mask=_scattered(9))) | {"q": x["q"] * 1e3},
    "low scores": _arrays(10, bias=np.array(-900.0)),
    "visible NaN": _arrays(8, mask=_scattered(11)),
}
POISONED = ("tilt", "hidden", "large sinks", "visible NaN")
"""those in which what no row sees, and what arrives at rows that see nothing, is NaN"""


def _poisoned(name: str, x: Problem) -> Problem:
    seen = visible_of(x)
    unread = ~seen.reshape(B, HKV, H // HKV, LQ, LK).any((2, 3))
    blind = ~seen.any(-1)
    x = {name: y.copy() if name in ("q", "k", "v", "dout", "dlse") else y for name, y in x.items()}
    x["k"][unread], x["v"][unread], x["q"][blind], x["dout"][blind] = np.nan, np.nan, np.nan, np.nan
    if x["sinks"] is not None:
        blind = blind & np.isneginf(x["sinks"])[:, None]
    x["dlse"][blind] = np.nan
    if name == "visible NaN":
        x["v"][0, 1, 4, 0] = x["k"][1, 0, 2] = x["dout"][1, 3, 0] = np.nan
    return x


class Posed(NamedTuple):
    """A problem, and what both other derivations say of it."""

    x: Problem
    certified: Certified
    bounds: dict[str, Array]
    answers: dict[str, dict[str, Array]]
    """by derivation"""


@lru_cache
def _posed() -> dict[str, Posed]:
    made = {}
    for name, clean in PROBLEMS.items():
        x = _poisoned(name, clean) if name in POISONED else clean
        options = {n: x[n] for n in ("bias", "scale", "softcap", "sinks", "dropout", "keep", "dout", "dlse")}
        options["score_mod"] = None if x["score_mod"] is None else x["score_mod"].name
        certified = certify(x["q"], x["k"], x["v"], **options, visible=visible_of(x), matrices=True)
        answers = {"oracle": _of_oracle(oracle, x), "streaming": _of_streaming(streaming, x)}
        made[name] = Posed(x, certified, bounds(clean), answers)
    return made


def _of_oracle(module: Any, x: Problem) -> dict[str, Array]:
    return solve(module, x) | module.attention_scores(x["q"], x["k"], **{n: x[n] for n in SCORES})._asdict()


def _of_streaming(module: Any, x: Problem) -> dict[str, Array]:
    how: dict[str, Any] = {"precision": replace(preset("float64"), tile=1), "schedule": Schedule(2, 3, "reverse", 2)}
    arguments = module.Arguments(x["q"], x["k"], x["v"], **{n: x[n] for n in SCORES}, dtype=np.dtype(float))
    return solve(module, x, **how) | module.matrices(arguments, module.Rules(**how))


def caught(answers: Callable[[Problem], dict[str, Array]], other: str) -> dict[str, str]:
    """By whom: {"certified" or `other`: the first "problem output" beyond the bound}."""
    found: dict[str, str] = {}
    with np.errstate(all="ignore"):
        for problem, posed in _posed().items():
            for name, got in answers(posed.x).items():
                certified = posed.certified.units(name, np.asarray(got)) <= posed.certified.limit(name)
                alike = worst_ratio(got, posed.answers[other][name], posed.bounds[name]) <= 1
                for who, agrees in (("certified", certified), (other, alike)):
                    if not agrees:
                        found.setdefault(who, f"{problem}: {name}")
            if len(found) == 2:
                break
    return found


SOLVERS = {"oracle": (_of_oracle, "streaming"), "streaming": (_of_streaming, "oracle")}
"""how to ask the package, and which other derivation it is held against beside the balls"""


def _caught(package: str, mutation: Mutation | None) -> dict[str, str]:
    answers, other = SOLVERS[package]
    with mutant(package, mutation) as module:
        return caught(partial(answers, module), other)


@pytest.mark.parametrize("package", SOLVERS)
def test_what_is_not_mutated_is_not_caught(package: str) -> None:
    assert _caught(package, None) == {}


@pytest.mark.parametrize("mutation", ORACLE, ids=lambda mutation: mutation.what)
def test_each_mutated_oracle_is_caught_twice(mutation: Mutation) -> None:
    assert _caught("oracle", mutation).keys() == {"streaming", "certified"}


@pytest.mark.parametrize("mutation", STREAMING, ids=lambda mutation: mutation.what)
def test_each_mutated_streaming_is_caught_twice(mutation: Mutation) -> None:
    assert _caught("streaming", mutation).keys() == {"oracle", "certified"}


if __name__ == "__main__":
    for package, mutations in (("oracle", ORACLE), ("streaming", STREAMING)):
        print(f"{f'refattn.{package}, mutated':45} {'against ' + SOLVERS[package][1]:25} against balls")
        for mutation in mutations:
            found = _caught(package, mutation)
            print(f"{mutation.what:45} {found.get(SOLVERS[package][1], '-'):25} {found.get('certified', '-')}")
