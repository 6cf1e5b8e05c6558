"""The hypotheses of the diagnosis: an honest model, and rows each of which is a bug that some case would notice."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest

from refattn.case import Cache, Case
from refattn.cases import CASES
from refattn.diagnose.alone import alone
from refattn.diagnose.dense import Inputs
from refattn.diagnose.hypothesis import KINDS, Hypothesis, hypotheses
from refattn.diagnose.model import Model
from refattn.diagnose.passed import would_be_noticed
from refattn.dtypes import round_to
from refattn.inputs import make
from refattn.precision import preset
from refattn.truth import Expected, truth

KNOWN = frozenset("out lse dq dk dv dbias dsinks dscale dsoftcap scores capped biased weights".split())
SMALL = [c for c in CASES if c.want <= KNOWN and c.scores < 2**13 and c.Lq * c.D < 2**12]
OTHERS = [c for c in CASES if c.scores < 2**15
          and (c.dropout and c.H > c.Hkv or isinstance(c.storage, Cache) and c.rotary)]  # fmt: skip
"""of which none is as small and has no other outputs"""
FAMILIES: dict[str, list[Hypothesis]] = {}
"""the rows of each class"""
for row in hypotheses() and KINDS:
    FAMILIES.setdefault(row.name.split("[")[0], []).append(row)


@cache
def solved(case: Case) -> tuple[Inputs, dict[str, Expected]]:
    problem = make(case)
    return Inputs(problem), truth(problem, preset(case.dtype, case.out_dtype))


@pytest.mark.parametrize("case", SMALL[::16], ids=lambda case: case.id)
def test_the_model_is_attention(case: Case) -> None:
    inputs, expected = solved(case)
    found = Model(inputs).solve(case.want)
    assert set(found) == set(expected)
    for name, e in expected.items():
        x = round_to(found[name], e.dtype).astype(np.float64)
        inside = (e.lo <= x) & (x <= e.hi)
        assert (inside | e.ignored | e.nonfinite).all(), name


def test_an_honest_model_is_not_noticed() -> None:
    row = Hypothesis("honest", "Nothing.", lambda case: True, KNOWN, lambda x, c, want: Model(x, c).solve(want))
    assert not any(would_be_noticed(row, case) for case in SMALL[::40])


def test_rows() -> None:
    names = [h.name for h in hypotheses()]
    assert len(names) == len(set(names)) > 3000
    for kind in KINDS:
        for h in (kind, *kind.elsewhere):
            assert "{" not in h.what and h.what[0] == h.what[0].strip() and len(h.what) < 220, h.what


@pytest.mark.parametrize("family", [name for name, rows in FAMILIES.items() if not all(h.rounding for h in rows)])
def test_some_case_notices(family: str) -> None:
    """One that no case notices can never be named, and only costs time.

    Roundings may stay within four radii, and be named where they do not.
    """
    rows = FAMILIES[family]
    some = rows[:: -(-len(rows) // 8)]
    first = [c for c in SMALL if c.family in ("poisoned_pairs", "rising", "large_logits")]
    cases = [*first[:: -(-len(first) // 24)], *SMALL, *OTHERS]
    telling = (((h, c) for c in cases if h.separates(c)) for h in some)
    assert any(would_be_noticed(h, c) for pairs in telling for h, c in islice(pairs, 49))


def test_what_is_wrong_in_a_part_alone() -> None:
    """The forward alone: gradients are those of a right backward; the backward alone: out and lse are right."""
    want = frozenset({"out", "lse", "dq", "dk", "dv"})
    case = Case("both", "forward and backward", H=2, Lq=5, Lk=9, dtype="float64", want=want)
    inputs, expected = solved(case)
    scale = next(h for h in KINDS if h.name == "scale[1: it is not applied]")
    forward, backward = (next(p for p in scale.elsewhere if p.part == part) for part in ("forward", "backward"))
    assert would_be_noticed(forward, case) and would_be_noticed(backward, case)
    y = backward.solve(inputs, None, case.want)
    np.testing.assert_allclose(y["out"], expected["out"].value, rtol=1e-12)
    assert not np.allclose(y["dq"], expected["dq"].value)
    backward = next(p for p in scale.elsewhere if p.part == "backward")
    dq = alone(backward, frozenset({"dq"})).solve(inputs, None, case.want)
    assert not np.allclose(dq["dq"], expected["dq"].value)
    for name in ("out", "lse", "dk", "dv"):
        np.testing.assert_allclose(dq[name], expected[name].value, rtol=1e-12)
