"""The harness of the proofs: moments, decisions with their false-alarm rates and power, the command line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refattn.montecarlo import (
    ALPHA,
    Bounded,
    Decision,
    Finding,
    Mean,
    Moments,
    Run,
    Variance,
    Wager,
    exact,
    log_mean_exp,
    main,
    stream,
    whole,
    within,
)

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, pytest.importorskip("hypothesis.strategies")

Array = np.ndarray[Any, Any]
HOLDS, REFUTED, UNDECIDED = Decision.HOLDS, Decision.REFUTED, Decision.UNDECIDED
BATCHES = st.lists(st.lists(st.floats(-1e3, 1e3), max_size=12), max_size=6)


def moments(batches: list[list[float]]) -> Moments:
    m = Moments()
    for batch in batches:
        m.update(np.array(batch))
    return m


def central(values: list[float], power: int) -> Fraction:
    exactly = [Fraction(x) for x in values]
    mean = sum(exactly) / len(exactly)
    return sum(((x - mean) ** power for x in exactly), Fraction())


@given(BATCHES)
def test_moments_of_any_batches_are_those_of_all(batches: list[list[float]]) -> None:
    values = [x for batch in batches for x in batch]
    m = moments(batches)
    n = len(values)
    assert m.count == n
    if n:
        assert m.mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-10)
        # some 30 operations a batch, on sums of at most n (2 max)^k; each may underflow
        largest = 2 * max(map(abs, values))
        for power, got in ((2, m.sum2), (3, m.sum3), (4, m.sum4)):
            allowed = 50 * (n + len(batches)) * (2.0**-53 * n * largest**power + 2.0**-1074 * max(1, largest) ** power)
            assert abs(Fraction(got) - central(values, power)) <= allowed, power
    if n > 1:
        assert m.variance == pytest.approx(np.var(values, ddof=1), rel=1e-9, abs=1e-9)
        assert m.error == math.sqrt(m.variance / n)
    else:
        assert math.isnan(m.variance) and math.isnan(m.error)


@given(BATCHES, BATCHES)
def test_merge_commutes_and_has_an_identity(left: list[list[float]], right: list[list[float]]) -> None:
    a, b, both = moments(left), moments(right), moments(left)
    both.merge(moments(right))
    b.merge(a)
    assert both.count == b.count
    assert (both.mean, both.sum2) == pytest.approx((b.mean, b.sum2), rel=1e-9, abs=1e-6)
    same = moments(left)
    same.merge(Moments())
    assert same == a
    empty = Moments()
    empty.merge(a)
    assert (empty.count, empty.sum2, empty.sum3, empty.sum4) == (a.count, a.sum2, a.sum3, a.sum4)
    assert empty.mean == pytest.approx(a.mean, rel=1e-15)


def test_kurtosis_and_the_interval_that_knows_it() -> None:
    x = stream(0, "kurtosis").laplace(size=200_000)  # excess kurtosis 3, variance 2
    m = Moments()
    m.update(x)
    assert m.excess_kurtosis == pytest.approx(3, abs=0.3)
    lo, hi = m.variance_interval(2)
    assert hi - lo == pytest.approx(4 * 2 * math.sqrt(5 / 200_000), rel=0.1)
    assert math.isnan(Moments().excess_kurtosis)


def test_streams_are_named_and_reproducible() -> None:
    one, same, other, later = (stream(*of).random(4).tolist() for of in ((1, "a"), (1, "a"), (1, "b"), (2, "a")))
    assert one == same and one != other and one != later


# decisions

LOOKS = tuple(int(round(8 * 1.5**i)) for i in range(11))  # sizes of batches: looks at 8 ... 1,800 values
RATE = 0.05
STREAMS = 300
Draw = Callable[[np.random.Generator, int], Array]


def decided(draw: Draw, test: Mean, rng: np.random.Generator) -> Decision:
    for n in LOOKS:
        test.update(draw(rng, n))
        if test.decision is not UNDECIDED:
            break
    return test.decision


def too_many(n: int) -> int:
    """The fewest alarms of n that a rate of RATE brings about with probability below 1e-6, by the exact binomial."""
    tail, k = 1.0, 0
    while tail >= 1e-6:
        tail -= math.comb(n, k) * RATE**k * (1 - RATE) ** (n - k)
        k += 1
    return k


def t(df: float) -> Draw:
    return lambda rng, n: rng.standard_t(df, n)


UNIT, HEAVY = Bounded(0, 1), Variance(2.2 / 0.2)  # of Student t with 2.2 degrees of freedom: no third moment
NULLS: dict[str, tuple[Draw, float, Wager]] = {
    "coin": (lambda rng, n: rng.integers(0, 2, n), 0.5, UNIT),
    "rare": (lambda rng, n: rng.random(n) < 0.02, 0.02, UNIT),
    "uniform": (lambda rng, n: rng.random(n), 0.5, UNIT),
    "Student t2.2": (t(2.2), 0.0, HEAVY),
    "normal": (lambda rng, n: rng.standard_normal(n), 0.0, Variance(1)),
}


@pytest.mark.parametrize("name", NULLS)
def test_false_alarms_are_as_rare_as_promised(name: str) -> None:
    """At every look together: the mean is the value, and is refuted in at most RATE of the streams."""
    draw, mean, wager = NULLS[name]
    rng = stream(0, name)
    alarms = sum(decided(draw, Mean(mean, 0.1, wager, RATE), rng) is REFUTED for _ in range(STREAMS))
    assert alarms < too_many(STREAMS), alarms


@pytest.mark.parametrize("end", [-1, 1])
@pytest.mark.parametrize("name", ["coin", "Student t2.2"])
def test_a_mean_at_the_end_of_the_margin_seldom_holds(name: str, end: int) -> None:
    draw, mean, wager = NULLS[name]
    rng = stream(1, name)
    margin = 0.1 if name == "coin" else 1.0
    alarms = 0
    for _ in range(STREAMS):
        test = Mean(mean - end * margin, margin, wager, RATE)
        for n in LOOKS:
            test.update(draw(rng, n))
        alarms += test.log_e[1] >= -math.log(RATE)
    assert alarms < too_many(STREAMS), alarms


def test_the_check_of_false_alarms_has_teeth() -> None:
    """Looking again and again at a test of fixed size alarms far too often."""
    rng, alarms = stream(2, "peeking"), 0
    for _ in range(STREAMS):
        m = Moments()
        for n in LOOKS:
            m.update(rng.standard_normal(n))
            if abs(m.mean) > 1.96 / math.sqrt(m.count):
                alarms += 1
                break
    assert alarms > too_many(STREAMS)


@pytest.mark.parametrize(("name", "margin"), [("coin", 0.15), ("uniform", 0.1), ("normal", 0.3), ("Student t2.2", 1.2)])
def test_power(name: str, margin: float) -> None:
    """A mean at the value holds, one off by the margin is refuted, each soon and at the rate of the proofs."""
    draw, mean, wager = NULLS[name]
    rng = stream(3, name)
    for value, expected in ((mean, HOLDS), (mean + margin, REFUTED), (mean - margin, REFUTED)):
        test = Mean(value, margin, wager)
        while test.decision is UNDECIDED and test.moments.count < 40_000:
            test.update(draw(rng, 200))
        assert test.decision is expected, (value, test.log_e)


def test_catoni_survives_wild_values() -> None:
    """One value of 300 deviations is worth log(1 + |y| + y² / 2), not y: the decision is the right one all the same."""
    rng = stream(4, "wild")
    test = Mean(0.0, 1.2, HEAVY)
    test.update(np.array([1e3]))
    assert test.decision is UNDECIDED and test.moments.mean == 1e3
    while test.decision is UNDECIDED and test.moments.count < 40_000:
        test.update(rng.standard_t(2.2, 500))
    assert test.decision is HOLDS


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=60), max_size=30), st.floats(0, 1), st.floats(0.01, 0.4))
def test_one_decision_and_refuted_for_good(batches: list[list[float]], value: float, margin: float) -> None:
    test = Mean(value, margin, UNIT, RATE)
    seen = [test.decision]
    for batch in batches:
        test.update(batch)
        against, ends = test.log_e
        needed = -math.log(RATE)
        expected = REFUTED if against >= needed else HOLDS if ends >= needed else UNDECIDED
        assert test.decision is expected
        assert math.isfinite(against) and math.isfinite(ends)
        seen.append(test.decision)
    assert seen[0] is UNDECIDED
    assert UNDECIDED not in seen[next((i for i, d in enumerate(seen) if d is not UNDECIDED), len(seen)) :]
    assert set(seen[seen.index(REFUTED) :] if REFUTED in seen else []) <= {REFUTED}


@pytest.mark.parametrize("values", [[0.5, 1.1], [-0.1], [math.nan, 0.5], [1e9]])
def test_bounded_refuses_what_is_outside(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]|1 of 2 samples are not finite"):
        Mean(0.5, 0.1, UNIT).update(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sample_that_is_not_finite_is_refused(bad: float) -> None:
    test = Mean(0.0, 0.3, Variance(1))
    with pytest.raises(ValueError, match="1 of 2 samples are not finite"):
        test.update([0.0, bad])


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_variance_refuses(bound: float) -> None:
    with pytest.raises(ValueError, match="must be > 0 and finite"):
        Variance(bound)


@pytest.mark.parametrize("wager", [UNIT, HEAVY])
def test_no_bet_can_lose_more_than_all(wager: Wager) -> None:
    for m in (0.0, 0.02, 0.5, 1.0):
        for up in (True, False):
            for bet in wager.bets(m, 0.1, up):
                for x in (0.0, 1.0):
                    assert math.isfinite(wager.log_growth(np.array([x]), m, float(bet)))
                assert (bet > 0) == up


def test_a_bet_is_fair() -> None:
    """The wealth of one round has mean at most 1 under the hypothesis, exactly, for each bet."""
    for p in (0.02, 0.5, 0.9):
        for up in (True, False):
            for bet in UNIT.bets(p, 0.1, up):
                one, zero = (math.exp(UNIT.log_growth(np.array([x]), p, float(bet))) for x in (1.0, 0.0))
                assert p * one + (1 - p) * zero == pytest.approx(1, abs=1e-12)
    for bet in Variance(1).bets(0.0, 0.1, True):  # +-1, which has variance 1
        up, down = (math.exp(Variance(1).log_growth(np.array([x]), 0.0, float(bet))) for x in (1.0, -1.0))
        assert (up + down) / 2 <= 1


@pytest.mark.parametrize("fields", [{"margin": 0.0}, {"margin": math.nan}, {"alpha": 0.0}, {"alpha": 1.0}])
def test_mean_refuses(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="margin=.* > 0 and finite"):
        Mean(**{"value": 0.5, "margin": 0.1, "wager": UNIT, **fields})


def test_log_mean_exp() -> None:
    assert log_mean_exp(np.array([0.0, 0.0])) == 0
    assert log_mean_exp(np.array([2000.0, 2000.0, -np.inf, -np.inf])) == pytest.approx(2000 - math.log(2))
    assert log_mean_exp(np.array([-np.inf])) == -math.inf


def test_whole() -> None:
    assert whole([HOLDS, UNDECIDED, REFUTED]) is REFUTED
    assert whole([HOLDS, UNDECIDED]) is UNDECIDED
    assert whole([HOLDS]) is HOLDS
    assert whole([]) is UNDECIDED  # a claim without findings has not been proved


# findings and the command line


def test_findings() -> None:
    assert exact("a", 1, 1).decision is HOLDS and exact("a", math.nan, math.nan).decision is REFUTED
    assert [within("a", x, 0, 1).decision for x in (0, 1, 1.1, math.nan)] == [HOLDS, HOLDS, REFUTED, REFUTED]


def test_run() -> None:
    ticks: list[str] = []
    run = Run(quick=True, tick=ticks.append)
    assert list(run.batches(7, 3)) == [3, 3, 1] and ticks[-1] == "7 of at most 7"
    assert (run.budget(9, 5), Run().budget(9, 5), Run(samples=2).budget(9, 5)) == (5, 9, 2)
    assert run.rng("a").random() == Run().rng("a").random()


WORLDS = {"biased": "a coin with 60 % heads"}


def coin(run: Run) -> Iterator[Finding]:
    """A proof as others are: the coin is fair."""
    test = Mean(0.5, 0.1, UNIT)
    rng = run.rng("coin")
    for n in run.batches(run.budget(20_000, 20_000), 500):
        test.update(rng.random(n) < (0.6 if run.world == "biased" else 0.5))
        if test.decision is not UNDECIDED:
            break
    yield Finding("heads [of all]", test.moments.mean, 0.5, test.decision, test.moments.count, "a note")
    yield exact("sides", np.int64(2), 2)
    yield Finding("not finite", math.inf, "whatever", HOLDS)


def crash(run: Run) -> Iterator[Finding]:
    yield exact("first", 1, 1)
    raise ZeroDivisionError("what now")


def draw_picture(figure: Any, run: Run) -> None:
    figure.add_subplot().plot([0, 1])


def command(*arguments: str, prove: Any = coin, picture: Any = draw_picture) -> int:
    try:
        return main("The coin is fair.\n\nAnd so on: 100 %.", prove, WORLDS, picture, list(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command() == 0
    assert command("--quick", "--seed", "7") == 0
    assert command("--world", "biased") == 1
    assert command("--samples", "20") == 3
    out = capsys.readouterr().out
    assert "The coin is fair." in out and "heads [of all]" in out and "a note" in out
    assert "refuted in the world 'biased': 3 findings" in out
    assert command(prove=lambda run: iter(())) == 3


def test_a_crash_is_not_a_refutation(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(prove=crash) not in (0, 1, 2, 3)
    assert "what now" in capsys.readouterr().err


def test_exitfirst_stops_at_what_is_refuted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert command("-x", "--world", "biased", "--json", str(path)) == 1
    assert [f["decision"] for f in json.loads(path.read_text())["findings"]] == ["refuted"]
    assert command("-x", "--json", str(path)) == 0
    assert len(json.loads(path.read_text())["findings"]) == 3


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    command("--json", str(path), "--seed", "3", "--quick")
    data = json.loads(path.read_text())
    assert data["seconds"] >= 0 and data.pop("seconds") is not None
    findings = data.pop("findings")
    about = {"claim": "The coin is fair.", "decision": "holds", "world": "ours", "seed": 3, "quick": True}
    assert data == about
    assert findings[1] == {
        "what": "sides", "got": 2, "expected": 2, "decision": "holds", "samples": 0, "note": "",
    }  # fmt: skip
    assert findings[2]["got"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "-1 must be >= 0"),
        (["--seed", "x"], "--seed"),
        (["--samples", "0"], "0 must be >= 1"),
        (["--world", "other"], "invalid choice: 'other'"),
        (["--plot", "a.jpg"], "must end in .png or .svg"),
        (["--plot", "no/such/folder.png"], "no/such/folder.png cannot be written"),
        (["--json", "."], ". cannot be written"),
        (["--json", "no/such/folder.json"], "no/such/folder.json cannot be written"),
        (["extra"], "unrecognized arguments"),
    ],
)
def test_mistakes_in_the_call(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert command(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err and "Traceback" not in err and out == ""


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for name, head in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        assert command("--plot", str(tmp_path / name)) == 0
        assert (tmp_path / name).read_bytes().startswith(head)
    assert command("--plot", str(tmp_path / "b.png"), picture=None) == 2
    assert "this proof has no picture" in capsys.readouterr().err


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command("--plot", "a.png") == 2
    assert "--plot needs matplotlib: python -m pip install" in capsys.readouterr().err
    assert command() == 0


def test_help_tells_the_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "biased: a coin with 60 % heads" in out and "And so on: 100 %." in out and "exit status: 0" in out


def test_the_rate_of_the_proofs() -> None:
    assert ALPHA == 1e-9
