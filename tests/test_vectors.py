"""Golden vectors: the committed set, the same bytes again, the argument that they are the same everywhere."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.cases import CASES, FLAGS, by_id
from refattn.cli import main
from refattn.precision import preset
from refattn.tensors import read
from refattn.truth.solve import Truth
from refattn.vectors import CURATED, Refused, opened, verify, write
from refattn.vectors import expected as expected_module
from refattn.vectors.curated import UNCOVERED
from refattn.vectors.dyadic import Words, _on_grid, _rounded, problem_of
from refattn.vectors.expected import LEFT_OUT, RIGOROUS, expected_of, up
from refattn.vectors.schema import text
from refattn.vectors.stored import safetensors, whole

flint = pytest.importorskip("flint", reason="python-flint (extra `test`) writes vectors")

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "docs" / "vectors"
SAMPLE = CURATED[3::7]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- the committed set


def test_committed_files_are_what_is_written_now(tmp_path: Path) -> None:
    write(tmp_path / "new", [by_id(id) for id in SAMPLE])
    new, committed = _files(tmp_path / "new"), _files(COMMITTED)
    for name in [n for n in new if n != "index.json"]:
        assert new[name] == committed[name], f"{name}: write docs/vectors anew, or find what changed"
    entries = {entry["id"]: entry for entry in json.loads(committed["index.json"])["cases"]}
    assert json.loads(new["index.json"])["cases"] == [entries[id] for id in SAMPLE]


def test_committed_set_is_whole_and_small() -> None:
    folder = opened(COMMITTED)
    assert [entry["id"] for entry in folder.index["cases"]] == list(CURATED)
    assert set(_files(COMMITTED)) == {
        "README.md", "index.json", "schema.json", *(entry["file"] for entry in folder.index["cases"])
    }  # fmt: skip
    assert sum(map(len, _files(COMMITTED).values())) < 5_000_000


def test_committed_set_covers_what_it_says() -> None:
    cases, usual = [by_id(id) for id in CURATED], [c for c in CASES if c.chapter not in ("huge", "captured")]
    assert set(FLAGS) - {flag for c in cases for flag in c.flags} == UNCOVERED
    features = {word for c in usual for word in c.features()} - {word for c in cases for word in c.features()}
    assert not {word for word in features if not word.startswith(("bias=", "score_mod="))}
    assert {c.chapter for c in usual} - {c.chapter for c in cases} == {"long"}
    assert (RIGOROUS | LEFT_OUT) <= {c.id for c in CASES}


def test_committed_set_is_verified_and_shows_bugs() -> None:
    index = dict(opened(COMMITTED).index)
    index["cases"] = [entry for entry in index["cases"] if entry["id"] in SAMPLE]
    said: list[str] = []
    found = verify(replace(opened(COMMITTED), index=index), said.append)
    assert found.good and not said and found.cases == len(SAMPLE)
    assert sum(map(bool, found.killed.values())) >= 20


def test_readme_shows_the_lines_of_the_programs() -> None:
    page = (ROOT / "refattn" / "vectors" / "README.md").read_text()
    for program in ("check.c", "check.js"):
        source = (ROOT / "tests" / "vectors" / program).read_text()
        lines = source.split("/* README: begin */\n")[1].split("/* README: end */")[0].rstrip()
        assert lines in page, f"{program} and the README differ"


# ---- the same bytes everywhere


def test_words_are_those_of_philox() -> None:
    """The streams that inputs are made of, by a digest: Philox words are fixed, and all is exact from there."""
    words = Words((12345 << 64) + 7)
    drawn = [
        words.standard_normal((3, 5)), words.random(4), words.uniform(-1.0, 2.0, 3), words.integers(-1, 2, (2, 2)),
        words.choice([-3.0, -2.0, 2.0, 3.0], (3, 1)),
    ]  # fmt: skip
    digest = hashlib.sha256(b"".join(x.astype("<f8").tobytes() for x in drawn)).hexdigest()
    assert digest[:16] == "563fb41f41e3da04"


def test_words_are_distributed_as_they_say() -> None:
    words = Words(1)
    x, u, n = words.standard_normal(40_000), words.random(40_000), words.integers(2, 5, 30_000)
    assert abs(x.mean()) < 0.03 and abs(x.std() - 1) < 0.02 and np.abs(x).max() <= 3.5
    assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.01
    assert np.abs(np.bincount(n, minlength=5)[2:] - 10_000).max() < 500


@pytest.mark.parametrize("id", ["full-f32", "far-poisoned-f64", "gqa-2x2-f32", "causal-f16", "negative-window-f32"])
def test_scores_are_exact_in_any_order(id: str) -> None:
    x = problem_of(by_id(id))
    q, k = (np.nan_to_num(x.logical[n].astype(np.float64), posinf=0, neginf=0) for n in "qk")
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    order = np.random.default_rng(0).permutation(q.shape[3])
    one = sum(q[..., None, d] * k[..., None, :, d] for d in range(q.shape[3]))
    other = sum(q[..., None, d] * k[..., None, :, d] for d in order)
    assert np.array_equal(one, other)
    assert not np.array_equal(  # what it would be without the grid
        sum(q[..., None, d] / 3 * (k[..., None, :, d] / 3) for d in range(q.shape[3])),
        sum(q[..., None, d] / 3 * (k[..., None, :, d] / 3) for d in order),
    )


def test_no_inputs_of_the_suite_are_refused() -> None:
    for case in CASES:
        if case.chapter != "huge" and case.scores < 100_000:
            problem_of(case)


def test_what_last_bits_could_turn_is_refused() -> None:
    with pytest.raises(Refused, match=r"x\[1\] lies in the middle between two neighbours"):
        _rounded(np.array([1.0, 2.5 + 2.0**-40]), np.asarray(0), "x")
    assert _rounded(np.array([1.0, 2.5 + 2.0**-20]), np.asarray(0), "x").tolist() == [1.0, 3.0]
    with pytest.raises(Refused, match="a power of two"):
        _on_grid(np.array([0.1, 1 / (1 + 2.0**-12)]), "x")
    assert _on_grid(np.array([512.0, np.inf]), "x").tolist() == [512.0, np.inf]


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.floats(2.0**-1000, 2.0**1000))
def test_up_is_above_by_a_sixteenth_at_most(t: float) -> None:
    rounded = float(up(np.array(t)))
    assert t * (1 - 2.0**-51) <= rounded <= t * (1 + 2.0**-5 + 2.0**-50)
    assert up(np.array(rounded)) in (rounded, up(np.array(np.nextafter(rounded, np.inf))))


def test_tolerance_that_depends_on_last_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = by_id("normal-e4m3")
    assert case.id in RIGOROUS
    monkeypatch.setattr(expected_module, "RIGOROUS", frozenset())
    with pytest.raises(Refused, match="put it in RIGOROUS"):
        expected_of(problem_of(case), preset(case.dtype, case.out_dtype))


def test_a_truth_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Truth.bounds

    def wrong(self: Truth) -> Any:
        values, radii = usual(self)
        return values | {"out": values["out"] * (1 + 2.0**-12)}, radii

    monkeypatch.setattr(Truth, "bounds", wrong)
    case = by_id("full-tiny-f32")
    with pytest.raises(ArithmeticError, match=r"out\[\d, \d, \d, \d\]: .* of refattn.truth is not in"):
        expected_of(problem_of(case), preset(case.dtype, case.out_dtype))


# ---- the form


def test_file_is_one_that_others_read(tmp_path: Path) -> None:
    from safetensors import safe_open

    case = by_id("paged-e5m2")
    write(tmp_path / "one", [case])
    path = tmp_path / "one" / "cases" / f"{case.id}.safetensors"
    with safe_open(path, "np") as file:
        assert file.metadata() == {"case": case.id}
        names, lse = set(file.keys()), file.get_tensor("value.lse")
    ours = read(path)
    assert set(ours.arrays) == names and np.array_equal(ours.arrays["value.lse"], lse, equal_nan=True)
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    for name, x in ours.arrays.items():
        assert (8 + length + header[name]["data_offsets"][0]) % x.dtype.itemsize == 0, f"{name} is not aligned"


def test_unused_memory_holds_nan() -> None:
    x = problem_of(by_id("q-k-lens-br-f32"))
    q_lens, k_lens = x.case.lengths
    for name, lens in (("q", q_lens), ("k", k_lens), ("v", k_lens)):
        for b, n in enumerate(lens):
            assert np.isnan(x.logical[name][b, :, n:]).all() or np.isinf(x.logical[name][b, :, n:]).any()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_there_is_one_nan(dtype: str) -> None:
    x = np.array([1.0, np.nan, -np.nan, -np.inf], dtype)
    x.view(f"u{x.itemsize}")[1] += 1
    y = whole(x)
    assert y.view(f"u{x.itemsize}")[1] == y.view(f"u{x.itemsize}")[2] and not np.signbit(y[1:3]).any()
    assert y[0] == 1 and y[3] == -np.inf
    assert safetensors({"x": x}, {}) == safetensors({"x": np.array([1.0, np.nan, np.nan, -np.inf], dtype)}, {})


def test_index_fits_the_schema_by_jsonschema_too() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema checks our own checker")
    jsonschema.validate(json.loads((COMMITTED / "index.json").read_text()), json.loads(text()))


def test_folder_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(FileExistsError, match="is not empty; pass a new folder"):
        write(tmp_path, [by_id("one-token-f32")])


def test_command_without_flint_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "flint", None)
    assert main(["vectors", "write", str(tmp_path / "x"), "--case", "one-token-f32"]) == 2
    assert "pip install python-flint" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_command_writes_what_is_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "write", str(tmp_path / "x"), "--case", "one-token-f32", "--case", "causal-tiny-*"]) == 0
    assert capsys.readouterr().out == f"2 cases in {tmp_path / 'x'}\n"
    assert main(["vectors", "verify", str(tmp_path / "x")]) == 0


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    assert write(tmp_path / "x", [by_id("one-token-f32"), by_id(min(LEFT_OUT))], said=said.append) == 1
    assert said == [f"left out: {min(LEFT_OUT)}, whose tolerance would depend on the machine"]
