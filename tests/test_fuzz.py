"""Random cases: all valid, and a planted bug is found and shrunk."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import candidates
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from refattn import cli
from refattn.calling import Local
from refattn.case import Case, Dense, Packed
from refattn.conform import examine
from refattn.dtypes import FORMATS
from refattn.fuzz import cases, fuzz, simplified
from refattn.implementation import implementation, load, wrap
from refattn.inputs import make
from refattn.masks import Causal
from refattn.quantise import KINDS
from refattn.report import failure
from refattn.score_mods import SCORE_MODS

OURS = Local(load("refattn"))


@implementation(name="softcap forgotten", outputs=candidates.ALL)
def forgets_softcap(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    return candidates.solve(dataclasses.replace(case, softcap=None), given)


@implementation(name="refuses", outputs=candidates.ALL, supports=lambda case: "no")
def refuses(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def plain(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    s = q @ k.swapaxes(2, 3) / q.shape[3]  # not its root
    e = np.exp(s - s.max(3, keepdims=True, initial=-1e9)) * (1 if mask is None else mask)
    return e @ v / np.maximum(e.sum(3, keepdims=True), 1e-30)


def test_what_is_always_refused_is_not_drawn() -> None:
    found = fuzz(Local(wrap(plain, "plain")), 1.5)
    assert found.failure is not None and found.unsupported <= found.ran / 2


@settings(max_examples=100, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_draw_is_a_valid_case(case: Case) -> None:
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    assert make(case).logical["q"].shape == (case.B, case.H, case.Lq, case.D)


def test_every_feature_is_drawn() -> None:
    seen: set[str] = set()

    @settings(max_examples=400, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(cases())
    def look(case: Case) -> None:
        seen.update(case.features())

    look()
    assert seen >= {f"dtype={dtype}" for dtype in FORMATS} | {
        "causal", "window", "prefix", "documents", "padding", "sinktokens", "blocksparse", "dense", "gqa", "D!=Dv",
        "Lq!=Lk", "scale", "softcap", "bias", "sinks", "q_lens", "k_lens", "backward", "strided", "dlse", "dscale",
        "dsoftcap", "matrices", "dropout", "rotary", "far", "shared", "packed", "paged", "cache", "chunked", "dilated",
        "globaltokens", "tree", "gathered", *(f"score_mod={name}" for name in SCORE_MODS),
        *(f"quant={kind}" for kind in KINDS),
    }  # fmt: skip


def test_a_planted_bug_is_found_shrunk_and_replayed() -> None:
    outcome = fuzz(Local(forgets_softcap), seconds=2.0)  # the first ends the search; as much again is for shrinking
    assert outcome.failure is not None and outcome.ran > 0
    case = simplified(Local(forgets_softcap), outcome.failure, 60.0).case  # what a busy machine has left
    assert case.softcap is not None
    assert case.scores <= 12, "small enough to look at"
    again = Case.from_json(json.loads(json.dumps(case.to_json())))
    assert examine(Local(forgets_softcap), again).status == "failed"
    assert examine(Local(candidates.honest), again).status == "passed"


def test_a_failing_case_is_made_simpler() -> None:
    case = Case(
        "x", "y", B=2, H=4, Hkv=2, Lq=9, Lk=33, D=16, Dv=8, family="large_logits", want=frozenset({"out", "lse", "dq"}),
        mask=Causal("bottom_right"), k_lens=(33, 20), scale=0.3, softcap=1.0, sinks="zero", score_mod="tilt",
        storage=Packed(2),
    )  # fmt: skip
    failure = examine(Local(forgets_softcap), case)
    assert failure.status == "failed" and simplified(Local(forgets_softcap), failure, 0.0) is failure
    simple = simplified(Local(forgets_softcap), failure, 60.0).case
    assert simple.softcap == 1.0 and simple.storage == Dense() and len(simple.want) == 1
    assert simple.mask is simple.k_lens is simple.scale is simple.sinks is simple.score_mod is None
    assert simple.B == simple.H == simple.Lq == simple.D == simple.Dv == 1 and simple.Lk <= 3


@settings(max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_our_own_kernel_survives(case: Case) -> None:
    verdict = examine(OURS, case)
    assert verdict.status == "passed" or "nothing to judge" in verdict.reasons[0], failure(verdict, None)


def test_a_failure_of_the_suite_itself_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("refattn.examine.make", broken)
    with pytest.raises(RuntimeError, match=r'the suite itself failed on \{"id": "fuzz"') as error:
        fuzz(Local(candidates.honest), 0.5)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_seeds_differ_and_repeat() -> None:
    def drawn(seed: int) -> list[Case]:
        seen: list[Case] = []
        fuzz(Local(candidates.honest), 1e-9, seed)
        fuzz(Local(candidates.honest), 0.3, seed, lambda verdict: seen.append(verdict.case))
        return seen[:5]

    first = drawn(1)
    assert len(first) == 5 and first == drawn(1) and first != drawn(2)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    candidates.install(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fuzz", "my_kernel:ignores_masks", "--seconds", "1.5"]) == 1
    out = capfd.readouterr().out
    replay = next(line for line in out.splitlines() if "replay: " in line)
    text = replay.partition("--case-json ")[2]
    data = json.loads(text.strip("'").replace("'\"'\"'", "'"))
    assert json.dumps(data, indent=1) in out
    assert cli.main(["check", "my_kernel:ignores_masks", "--case-json", json.dumps(data)]) == 1
    assert cli.main(["check", "my_kernel:honest", "--case-json", json.dumps(data)]) == 0
    capfd.readouterr()
    assert cli.main(["fuzz", "my_kernel:honest", "--seconds", "0.5"]) == 0
    assert "random cases, 0 unsupported, seed 0" in capfd.readouterr().out


def test_refusing_everything_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shy.py").write_text("from my_kernel import refuses_all as f\n")
    candidates.install(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fuzz", "shy:f", "--seconds", "0.3"]) == 1
    assert "no success: no case was judged" in capfd.readouterr().out


def test_without_hypothesis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert cli.main(["fuzz"]) == 2
    assert capsys.readouterr().err == "refattn: error: fuzz needs hypothesis: pip install hypothesis\n"
