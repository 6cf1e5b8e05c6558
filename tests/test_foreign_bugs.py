"""The diagnosis on bugs of a kernel that was written without knowledge of it or of its catalogue."""

from __future__ import annotations

import pytest

from refattn.cases import CASES
from refattn.conform import Report, run
from refattn.implementation import wrap
from tests.foreign_bugs import BUGS, honest

CHAPTERS = ("basics", "masks", "heads", "scores", "modifiers")
SMALL = [
    c for c in CASES
    if c.chapter in CHAPTERS and c.dtype in ("float32", "bfloat16") and c.B * c.H * c.Lq * c.Lk < 2**13
]  # fmt: skip


def report_of(name: str) -> Report:
    return run(wrap(BUGS[name][0], name), SMALL)


def test_the_honest_kernel_passes() -> None:
    counts = run(wrap(honest, "honest"), SMALL).counts()
    assert counts["failed"] == 0 and counts["passed"] > 30


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("upper_left", "causal_top_left"),
        ("polarity", "mask_inverted"),
        ("strictly_causal", "causal_off_by_one"),
        ("head_0", "key_head_0"),
        ("heads_tiled", "gqa_tiled"),
    ],
)
def test_it_is_named(name: str, mutant: str) -> None:
    """In all failing cases, or in most of them where the bug is a little wider than the catalogue's."""
    report = report_of(name)
    assert report.counts()["failed"]
    assert f"({mutant})" in report.diagnosis[0]
    assert report.diagnosis[0].startswith("your output is") or "failing cases look like this bug" in report.diagnosis[0]


def test_what_the_catalogue_has_not_is_not_named() -> None:
    report = report_of("lse_16_bits")
    assert report.counts()["failed"]
    assert report.diagnosis == ("no bug of the catalogue explains it",)
