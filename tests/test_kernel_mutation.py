"""A rotating sample of the kernel's mutants: each is killed by the judge, or argued in the table of survivors."""

from __future__ import annotations

import datetime
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import kernel_mutation_probes as probes
from tests.kernel_mutation import examine, short, source
from tests.kernel_mutation_sites import FILES, Site, every, sites
from tests.kernel_mutation_survivors import SURVIVORS, argument

SAMPLE = 40
RESULT = json.loads((Path(__file__).parent.parent / "docs" / "kernel-mutation.json").read_text())
KILLED = set(RESULT["names of the killed"].split())
LISTED = {name for names in RESULT["survivors"].values() for name in names}
WEEK = datetime.date.today().isocalendar()[:2]


@pytest.fixture(scope="module", autouse=True)
def _truths() -> None:
    probes.warm_up(list(probes.PROBES))


def sample() -> list[Site]:
    """Other ones each week, the same ones in all processes of a run."""
    return random.Random(f"{WEEK}").sample(every(), SAMPLE)


@pytest.mark.parametrize("site", sample(), ids=lambda site: re.sub(r"[^ -~]", "?", site.name)[:100])
def test_a_mutant_is_killed_or_argued(site: Site) -> None:
    if site.name in LISTED:
        assert argument(site.name) in RESULT["survivors"]
        return
    found = examine(site, list(probes.PROBES))
    if found["by"] is None:
        assert short(site.name) not in KILLED, f"{site.name} was killed once, and now passes all probes"
        assert argument(site.name), f"{site.name} passes all probes; kill it, or say in SURVIVORS why nothing can"


def test_the_honest_kernel_lives() -> None:
    assert examine(None, list(probes.PROBES))["by"] is None


@pytest.mark.parametrize(
    "name",
    [
        "online.update: operand: state.l * keep -> (state.l)",
        "rules.Rules.key_head: arithmetic: h // (H // Hkv) -> ((h) % (H // Hkv))",
        "backward.backward: accumulation: dt *= p -> dt = p",
    ],
)
def test_a_survivor_would_be_seen(name: str) -> None:
    """What the table does not excuse is killed: neither the probes nor the table let everything through."""
    site = next(site for site in every() if site.name == name)
    assert examine(site, list(probes.PROBES))["by"] and not argument(name)


def test_an_endless_loop_is_killed() -> None:
    at = next(site for site in sites("forward") if site.kind == "loop")
    endless = at._replace(new="iter(int, 1)")
    assert examine(endless, list(probes.PROBES), limit=1.0)["how"] == "timed out"


def test_sites() -> None:
    found = every()
    assert len({site.name for site in found}) == len(found) > 1200
    kinds = Counter(site.kind for site in found)
    assert min(kinds.values()) >= 5 and len(kinds) == 18, kinds
    for site in found[:: len(found) // 150]:
        compile(site.source, site.file, "exec")
        assert site.source != FILES[site.file].read_text()


def test_every_argument_is_of_a_site() -> None:
    names = [site.name for site in every()]
    for why, patterns in SURVIVORS.items():
        assert len(why) > 25
        for pattern in patterns:
            assert any(re.search(pattern, name) for name in names), f"{pattern} is of no site any more"


def test_the_committed_result() -> None:
    assert RESULT["not argued"] == 0 and RESULT["run"] == RESULT["sites"]
    assert RESULT["killed"] + RESULT["survived"] == RESULT["sites"]
    if RESULT["source"] != source():
        pytest.skip("the kernel was edited since; run python -m tests.kernel_mutation again")
