"""Where a failing answer is wrong: planted errors are found, and nothing is said that does not hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.cases import by_id
from refattn.dtypes import FORMATS, round_to
from refattn.inputs import make
from refattn.judge import Verdict, judge
from refattn.localise import localise
from refattn.localise.index_sets import listed, words
from refattn.masks import Causal, Window
from refattn.mutants import MUTANTS
from refattn.oracle import attention
from refattn.precision import Conventions, preset
from refattn.streaming import Rules, Schedule, Streaming, implementation
from tests.bare_verdicts import bare_verdicts  # noqa: F401

PLAIN = Case("plain", "No features.", B=2, H=4, Hkv=2, Lq=40, Lk=71, D=16, Dv=16, family="peaked")
TILES = Schedule(tile_q=16, tile_k=16)


def judged(case: Case, answer: dict[str, Any]) -> Verdict:
    return judge(make(case), answer, preset(case.dtype, case.out_dtype), Conventions(), outputs=frozenset(answer))


def lines_of(case: Case, change: Any, *names: str) -> list[str]:
    """What is said of our kernel's answer with `change` done to it, in place."""
    answer = {n: x for n, x in implementation(case, make(case).fresh()).items() if n in (names or ("out",))}
    change(*answer.values())
    verdict = judged(case, answer)
    assert verdict.status == "failed" and verdict.evidence is not None
    return localise(verdict.evidence, verdict.contract).lines()


def set_to(index: Any, value: Any) -> Any:
    def change(x: Any) -> None:
        x[index] = value(x) if callable(value) else value

    return change


def where(case: Case, index: Any) -> str:
    """The first line of what is said of noise at an index."""
    return lines_of(case, set_to(index, lambda x: x[index] + 1.5))[0]


@pytest.mark.parametrize(
    "index, said",
    [
        (np.s_[...], "everywhere"),
        (np.s_[1], "entry 1"),
        (np.s_[:, 2], "head 2"),
        (np.s_[:, 2:], "heads 2..3 (those of key head 1)"),
        (np.s_[:, 1::2], "heads with i % 2 = 1"),
        (np.s_[:, :, 7], "row 7"),
        (np.s_[:, :, 32:], "rows from 32 on (the last, ragged tile of 16 or 32)"),
        (np.s_[:, :, 16:32], "rows 16..31 (tile 1 of 16)"),
        (np.s_[:, :, ::16], "rows with i % 16 = 0"),
        (np.s_[:, :, :5], "rows up to 4"),
        (np.s_[..., 8:], "columns from 8 on (tile 1 of 8)"),
        (np.s_[..., 1::2], "columns with i % 2 = 1"),
        (np.s_[0, 3, 9], "entry 0, head 3, row 9"),
        (np.s_[1, :, 20:, 3], "entry 1, rows from 20 on, column 3"),
    ],
)
def test_places(index: Any, said: str) -> None:
    assert where(PLAIN, index).endswith(f"fail: {said}")


def test_places_that_differ_by_entry() -> None:
    def change(out: Any) -> None:
        out[0, :, 30:] += 1.5
        out[1, :, 4:8] += 1.5

    lines = lines_of(PLAIN, change)
    assert [x.strip() for x in lines[1:3]] == ["entry 0: rows from 30 on", "entry 1: rows 4..7"]


def test_places_at_lengths() -> None:
    case = replace(PLAIN, k_lens=(71, 21), Lq=40)
    assert "rows from 21 on (21 = k_lens[1])" in where(case, np.s_[1, :, 21:])


def test_rows_that_see_nothing() -> None:
    case = replace(PLAIN, Lk=24, mask=Causal("bottom_right"))
    lines = lines_of(case, set_to(np.s_[:, :, :16], np.nan))
    assert "exactly the rows that see no key" in lines[1] and "all of them are NaN" in lines[2]


@pytest.mark.parametrize(
    "change, said",
    [
        (set_to(np.s_[:, :, 32:], 0.0), "all of them are 0: never written, or nothing was added up"),
        (set_to(np.s_[0, 0, 0], np.inf), "all of them are infinite"),
        (set_to(np.s_[1, 1], 0.25), "all of them are 0.25"),
        (set_to(np.s_[...], lambda x: -x), "all of it has the wrong sign"),
        (set_to(np.s_[...], lambda x: x * np.float32(0.25)), "all of it is 0.25 times what it should be = scale"),
        (set_to(np.s_[:, 1], lambda x: x[:, 3]), "out[h=1] is what [h=3] should be"),
        (set_to(np.s_[0], lambda x: x[1].copy()), "out[b=0] is what [b=1] should be"),
        (set_to(np.s_[:, :, :-1], lambda x: x[:, :, 1:].copy()), "out[i] is what [i+1] should be, for 39 of 40"),
        (set_to(np.s_[...], lambda x: x[..., ::-1].copy()), "out[d] is what [15 - d] should be: in reverse order"),
        (set_to(np.s_[:, :, 1:], lambda x: x[:, :, :1]), "out[i]: 39 of them are what [i=0] should be"),
    ],
)
def test_in_what_way(change: Any, said: str) -> None:
    assert said in [x.strip() for x in lines_of(PLAIN, change)]


def test_lse_in_base_2_and_off() -> None:
    lines = lines_of(PLAIN, set_to(np.s_[...], lambda x: x * np.float32(np.log2(np.e))), "lse")
    assert any("1.4427 times what it should be = log2(e)" in x for x in lines)
    lines = lines_of(PLAIN, set_to(np.s_[...], lambda x: x + np.float32(np.log(2))), "lse")
    assert any("off by +0.693147 = log 2" in x for x in lines)


def test_an_error_that_grows() -> None:
    case = replace(PLAIN, Lq=128, family="normal")
    grow = np.linspace(0, 1e-3, 128, dtype=np.float32)[:, None]
    assert any("the error grows with the row" in x for x in lines_of(case, set_to(np.s_[...], lambda x: x + grow)))


# ---- keys: the oracle with other weights, in the case's dtype


def keys_said(case: Case, times: Any, dtype: str = "float32") -> list[str]:
    """What is said of keys that count `times` (broadcast to B, H, Lq, Lk), as often as the case says if NaN."""
    case = replace(case, dtype=dtype, out_dtype="", want=frozenset({"out"}))
    x = make(case).logical
    seen = case.visibility.tile().astype(np.float64)
    times = np.where(np.isnan(times), seen, times) * np.ones(seen.shape)
    bias = np.where(times == 2, np.log(2), 0.0)
    out = attention(x["q"], x["k"], x["v"], mask=times > 0, bias=bias, scale=case.scale, softcap=case.softcap).out
    verdict = judged(case, {"out": round_to(out, dtype).astype(FORMATS[dtype].dtype)})
    assert verdict.evidence is not None
    return list(localise(verdict.evidence).keys)


def times(case: Case, **changes: float) -> Any:
    return np.full((case.B, case.H, case.Lq, case.Lk), np.nan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "rows, keys, count, said",
    [
        (slice(None), 0, 2, "key 0 is counted twice in all 40 rows"),
        (slice(None), slice(64, 71), 0, "keys from 64 on have no weight in all 40 rows"),
        (slice(0, 16), slice(16, 48), 0, "keys 16..47 have no weight in rows up to 15"),
        (slice(None), slice(16, 32), 2, "keys 16..31 are counted twice in all 40 rows"),
        (slice(20, 40), slice(0, 5), 0, "keys up to 4 have no weight in rows from 20 on"),
    ],
)
def test_keys_in_all_rows(dtype: str, rows: slice, keys: Any, count: float, said: str) -> None:
    case = replace(PLAIN, family="normal")
    a = times(case)
    a[:, :, rows, keys] = count
    (sentence,) = keys_said(case, a, dtype)
    if dtype == "float32":
        assert sentence.startswith(said)
    else:  # the weight of the outermost may be too small to tell; a row may pass
        kind = said.split(" in ")[0].split(" ", 2)[2].split(" ", 1)[-1]
        assert kind in sentence


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "mask, wrong, said",
    [
        (Window(8, 0, "top_left"), Window(9, 0, "top_left"), "one key too many at the left edge of what a row sees"),
        (Window(8, 0, "top_left"), Window(7, 0, "top_left"), "one key too few at the left edge of what a row sees"),
        (Causal("top_left"), Window(None, 1, "top_left"), "one key too many at the right edge of what a row sees"),
        (Causal("bottom_right"), Causal("top_left"), "31 keys too few at the right edge of what a row sees"),
        (Causal("top_left"), None, "all hidden keys have weight and must be hidden"),
    ],
)
def test_keys_at_edges(dtype: str, mask: Any, wrong: Any, said: str) -> None:
    case = replace(PLAIN, mask=mask, family="normal")
    (sentence,) = keys_said(case, replace(case, mask=wrong).visibility.tile().astype(float), dtype)
    assert sentence.startswith(said) and "within the bound" in sentence


def test_keys_beyond_a_length() -> None:
    case = replace(PLAIN, k_lens=(50, 31), family="normal")
    a = times(case)
    a[0, ..., 50:52] = a[1, ..., 31:33] = 1
    assert keys_said(case, a)[0].startswith("2 keys beyond the length have weight and must be hidden in all 40 rows")


def test_two_keys_at_once() -> None:
    a = times(PLAIN)
    a[..., 3], a[..., 60] = 0, 2
    (sentence,) = keys_said(replace(PLAIN, family="normal", Dv=32), a)
    assert sentence.startswith("key 3 has no weight and key 60 is counted twice in all 40 rows")


def test_keys_of_a_single_row_are_solved_for() -> None:
    case = replace(PLAIN, B=1, H=1, Hkv=1, Lq=1, Lk=12, family="normal")
    a = times(case)
    a[..., [1, 4, 5, 9]] = 0
    (sentence,) = keys_said(case, a)
    assert sentence == (
        "key 1 has no weight and keys 4..5 have no weight and key 9 has no weight: explains the failing row "
        "within the bound"
    )


def test_one_entry_alone() -> None:
    a = times(PLAIN)
    a[1, ..., 8:] = 0
    a[0, ..., 32:48] = 2
    lines = keys_said(replace(PLAIN, family="normal"), a)
    assert [x.split(" in ")[0] for x in lines] == [
        "b=0: keys 32..47 are counted twice", "b=1: keys from 8 on have no weight"
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", ["noise", "scale", "v", "heads", "rounding"])
def test_nothing_is_said_of_keys_where_it_is_not_keys(dtype: str, change: str) -> None:
    case = replace(PLAIN, dtype=dtype, out_dtype="", family="normal", want=frozenset({"out"}), mask=Causal("top_left"))
    x, rng = dict(make(case).logical), np.random.default_rng(0)
    q, k, v = (x[n].astype(np.float64) for n in "qkv")
    if change == "heads":
        k, v = k[:, ::-1], v[:, ::-1]
    if change == "v":
        v = k
    out = attention(q, k, v, mask=case.mask, scale=0.35 if change == "scale" else None).out
    if change == "noise":
        out = out + 0.3 * rng.standard_normal(out.shape)
    if change == "rounding":
        out = out * (1 + 40 * FORMATS[dtype].u * rng.uniform(-1, 1, out.shape))
    verdict = judged(case, {"out": round_to(out, dtype).astype(FORMATS[dtype].dtype)})
    assert verdict.evidence is not None
    assert localise(verdict.evidence).keys == ()


class skips_second_tile(Rules):
    """The second tile of keys is not added up, in rows from 16 on."""

    def update(self, state: Any, t: Any, v: Any, visible: Any, kept: Any = None) -> Any:
        if getattr(self, "tiles", 0) == 1:
            self.tiles = 2
            return state
        self.tiles = getattr(self, "tiles", 0) + 1
        return super().update(state, t, v, visible, kept)

    def start(self, rows: int, Dv: int) -> Any:
        self.tiles = 0
        return super().start(rows, Dv)


def test_a_wrong_kernel() -> None:
    case = by_id("full-f32")
    kernel = Streaming(rules=skips_second_tile, schedule=TILES)
    verdict = judged(case, kernel(case, make(case).fresh()))
    assert verdict.evidence is not None
    found = localise(verdict.evidence, verdict.contract)
    assert found.keys[0].startswith("keys 16..31 have no weight in all 37 rows: explains all 222 failing rows")
    assert [spot.name for spot in found.spots] == ["lse", "out"] and found.lines()[-1].startswith("keys: ")


SAMPLE = [
    ("causal_top_left", "causal-br-wide-f32", "96 keys too few at the right edge"),
    ("window_off_by_one", "window-0-0-f32", "one key too many at the left edge"),
    ("causal_ignored", "causal-f64", "all hidden keys have weight"),
    ("mean_of_v", "full-f32", ""),
    ("gqa_tiled", "gqa-2x2-f32", ""),
    ("lse_base_2", "full-tiny-f32", ""),
]


@pytest.mark.parametrize("mutant, case, said", SAMPLE)
def test_mutants(mutant: str, case: str, said: str) -> None:
    problem = make(by_id(case))
    kernel = MUTANTS[mutant].implementation
    verdict = judge(problem, kernel(problem.case, problem.fresh()), kernel.precision(problem.case), Conventions())
    assert verdict.evidence is not None
    begin = time.process_time()
    found = localise(verdict.evidence, verdict.contract)
    assert time.process_time() - begin < 2  # 0.1 on a quiet machine
    assert found.spots and (found.keys[0].startswith(said) if said else not found.keys)


@pytest.mark.parametrize("sizes", [{"Lk": 0}, {"D": 0}, {"Dv": 0}, {"Lq": 1}, {"B": 0}, {"H": 0, "Hkv": 0}])
def test_degenerate_sizes(sizes: dict[str, int]) -> None:
    case = replace(PLAIN, **sizes)  # type: ignore[arg-type]
    answer = implementation(case, make(case).fresh())
    verdict = judged(case, {n: x + 1 for n, x in answer.items()})
    if verdict.evidence is not None:
        assert localise(verdict.evidence).spots


def test_wrong_forms_are_left_out() -> None:
    verdict = judged(PLAIN, {"out": np.zeros((2, 2), np.float32)})
    assert verdict.evidence is not None and localise(verdict.evidence).lines() == []


def test_words_of_index_sets() -> None:
    every = np.ones(100, dtype=bool)
    i = np.arange(100)
    assert words(i >= 0, every, "row") == "all 100 rows"
    assert words(i < 0, every, "row") == "no row"
    assert words((i >= 64) & (i != 70), every, "row").startswith("rows from 64 on (35 of the 36 there)")
    assert words(i != 3, every, "row") == "all rows but 3"
    assert words(i % 16 >= 8, every, "row") == "rows with i % 16 in 8..15"
    assert words(np.isin(i, (3, 9, 27, 81)), every, "row") == "rows 3, 9, 27 and 81"
    assert words(i == 0, i == 0, "head") == "the only head"
    assert listed(np.array([3, 4, 5, 6, 90])) == "3..6 and 90"
