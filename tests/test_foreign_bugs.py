"""The diagnosis on bugs of a kernel that was written without knowledge of it or of its catalogue.

Of the 70 bugs, run over every second case of fewer than 2**13 scores, two fail none of them, one returns a wrong
dtype alone, which its verdict says, and two (dk and dv of groups) fail only a case that the honest kernel fails too.
Five are conventions, and named as these.  The other 60 are named first, 43 of them as exact, and no name is wrong.
Hypotheses were added after these bugs had been seen; `tests.test_fresh_bugs` says what it does with bugs unseen: of 48,
34 (71 %) were named right, and none wrongly as exact.
"""

from __future__ import annotations

import pytest

from refattn.cases import CASES
from refattn.conform import Report, run
from refattn.implementation import wrap
from tests.foreign_bugs import BUGS, honest

CHAPTERS = ("basics", "masks", "heads", "scores", "modifiers")
SMALL = [
    c for c in CASES
    if c.chapter in CHAPTERS and c.dtype in ("float32", "bfloat16") and c.scores < 2**13
]  # fmt: skip


def report_of(name: str) -> Report:
    return run(wrap(BUGS[name][0], name), SMALL)


def test_the_honest_kernel_passes() -> None:
    counts = run(wrap(honest, "honest"), SMALL).counts()
    assert counts["failed"] == 0 and counts["passed"] > 30


@pytest.mark.parametrize(
    ("name", "hypothesis"),
    [
        ("upper_left", "Causal is always aligned at the top_left"),
        ("polarity", "read the wrong way round"),
        ("strictly_causal", "causal_off_by_one"),
        ("head_0", "key_head_0"),
        ("heads_tiled", "gqa_tiled"),
        ("v_tiled", "values are read from key head h % Hkv"),
        ("softcap_first", "it falls on q·k before the scale"),
        ("bias_base_2", "The bias is multiplied by ln 2"),
        ("sink_base_2", "The sink joins scores that are in base 2 as it is"),
        ("lse_16_bits", "lse is rounded to"),
    ],
)
def test_it_is_named(name: str, hypothesis: str) -> None:
    """In all failing cases, or in most of them where the bug is a little wider than the hypothesis."""
    report = report_of(name)
    assert report.counts()["failed"]
    first = next(line for line in report.diagnosis if not line.endswith(")") or "bug: " in line)
    assert hypothesis in first
    assert first.startswith("your output is") or "failing cases look like this bug" in first


def test_a_convention_is_named() -> None:
    report = report_of("lse_base_2")
    assert "undeclared convention: lse_base='2'" in report.diagnosis[0]
