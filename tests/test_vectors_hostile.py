"""Folders and answers that are damaged or made in bad faith: refused by name, and nothing in them is run."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refattn.cli import main
from refattn.masks import Documents
from refattn.tensors import read
from refattn.vectors import BadIndex, judged_folder, opened, verify
from refattn.vectors.stored import safetensors

COMMITTED = Path(__file__).parent.parent / "docs" / "vectors"
IDS = ("causal-tiny-f32", "window-1-0-f32", "no-keys-sinks-bf16")
Index = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three cases of the committed set."""
    path = tmp_path / "vectors"
    (path / "cases").mkdir(parents=True)
    index = json.loads((COMMITTED / "index.json").read_text())
    index["cases"] = [entry for entry in index["cases"] if entry["id"] in IDS]
    for entry in index["cases"]:
        shutil.copy(COMMITTED / entry["file"], path / entry["file"])
    _save(path, index)
    return path


def _save(path: Path, index: Index) -> None:
    """With the numbers of cases and elements as they are."""
    index["case_count"] = len(index["cases"])
    index["element_count"] = sum(o["judged"] for entry in index["cases"] for o in entry["outputs"].values())
    (path / "index.json").write_text(json.dumps(index))


def _index(path: Path) -> Index:
    loaded: Index = json.loads((path / "index.json").read_text())
    return loaded


def _rehashed(path: Path, id: str, change: Callable[[dict[str, Any]], None]) -> None:
    """The tensors of a case changed, with the size and sha256 of the index made to fit."""
    index = _index(path)
    entry = next(e for e in index["cases"] if e["id"] == id)
    file = path / entry["file"]
    arrays = {name: x.copy() for name, x in read(file).arrays.items()}
    change(arrays)
    data = safetensors(arrays, {"case": id})
    file.write_bytes(data)
    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _save(path, index)


def _faults(path: Path) -> dict[str, str]:
    return verify(opened(path), lambda text: None).faults


def test_folder_as_it_is_is_good(folder: Path) -> None:
    assert _faults(folder) == {}


def _set(key: str, value: Any) -> Callable[[Index], None]:
    return lambda index: index["cases"][0].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index.__setitem__("version", 2), "index.version=2 must be one of 1"),
        (lambda index: index.__setitem__("format", "other"), "index.format='other' must be one of refattn-vectors"),
        (lambda index: index.__setitem__("extra", 1), "index has 'extra', which version 1 does not know"),
        (lambda index: index.pop("flags"), "index must have flags"),
        (_set("file", "../../etc/passwd"), r"index.cases\[0\].file='../../etc/passwd' must match"),
        (_set("file", "cases/../../x.safetensors"), r"index.cases\[0\].file=.* must match"),
        (_set("file", "cases/x.pickle"), r"index.cases\[0\].file='cases/x.pickle' must match"),
        (_set("B", 1 << 40), r"index.cases\[0\].B=1099511627776 must be from 0 to 16777216"),
        (_set("B", True), r"index.cases\[0\].B=True must be of type integer"),
        (_set("scale", "1"), r"index.cases\[0\].scale='1' must be of type number"),
        (_set("sha256", "0" * 63), r"index.cases\[0\].sha256=.* must match"),
        (_set("inputs", {"q": {"dtype": "O", "shape": []}}), r"index.cases\[0\].inputs must have k"),
        (_set("id", "window-1-0-f32"), "window-1-0-f32 is there twice"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)  # fmt: skip
def test_index_that_does_not_fit_the_schema(folder: Path, change: Callable[[Index], None], said: str) -> None:
    index = _index(folder)
    change(index)
    _save(folder, index)
    with pytest.raises(BadIndex, match=said):
        opened(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"format": NaN}', "NaN is no number of JSON"),
        ('{"version": 1, "version": 1}', "a name is there twice"),
        ("[]", "must be of type object"),
    ],
)  # fmt: skip
def test_index_that_is_no_object(folder: Path, text: str, said: str) -> None:
    (folder / "index.json").write_text(text)
    with pytest.raises(BadIndex, match=said):
        opened(folder)


def test_numbers_in_the_header_must_be_those_of_the_cases(folder: Path) -> None:
    for name in ("case_count", "element_count"):
        index = _index(folder)
        index[name] += 1
        (folder / "index.json").write_text(json.dumps(index))
        with pytest.raises(BadIndex, match=f"index.{name}=.* must be"):
            opened(folder)
        _save(folder, index)


def test_case_that_says_another_thing_than_its_entry(folder: Path) -> None:
    for change, said in (
        ({"H": 4}, "says H=4 and H=2"), ({"mask": {"type": "nonsense"}}, "makes no problem"),
        ({"id": "other"}, "in its own words"), ({"want": ["dq"]}, "in its own words"),
    ):  # fmt: skip
        index = _index(folder)
        entry = next(e for e in index["cases"] if e["id"] == "causal-tiny-f32")
        entry["case"] = entry["case"] | change
        (folder / "index.json").write_text(json.dumps(index))
        assert said in _faults(folder)["causal-tiny-f32"]
        shutil.copy(COMMITTED / "index.json", folder / "index.json")
        index = _index(folder)
        index["cases"] = [e for e in index["cases"] if e["id"] in IDS]
        _save(folder, index)


def test_sizes_beyond_all_memory_are_refused_before_they_are_made(folder: Path) -> None:
    index = _index(folder)
    entry = index["cases"][0]
    for name in ("B", "H", "Hkv"):
        entry[name] = entry["case"][name] = 1 << 20
    _save(folder, index)
    assert "pairs of query and key" in _faults(folder)[entry["id"]]


def test_files_that_are_missing_cut_off_or_altered(folder: Path) -> None:
    one, two, three = (folder / "cases" / f"{id}.safetensors" for id in IDS)
    one.unlink()
    two.write_bytes(two.read_bytes()[:-1])
    data = bytearray(three.read_bytes())
    data[-1] ^= 1
    three.write_bytes(data)
    faults = _faults(folder)
    assert "must be a file in" in faults[IDS[0]]
    assert "bytes, must have" in faults[IDS[1]]
    assert "has not the sha256 of the index" in faults[IDS[2]]


def test_file_that_is_a_link_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    path = folder / "cases" / f"{IDS[0]}.safetensors"
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "must be a file in" in _faults(folder)[IDS[0]]


def _header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((1 << 62).to_bytes(8, "little") + b"{}", "does not fit"),
        (b"\x02\0\0\0\0\0\0\0[]", "no JSON object"),
        (_header('{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4000000000]}}'), "4000000000"),
        (_header('{"q":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}'), "ints >= 0"),
        (_header('{"q":{"dtype":"F32","shape":[1073741824],"data_offsets":[0,4294967296]}}'), "cut off"),
        (_header('{"q":{"dtype":"O","shape":[1],"data_offsets":[0,4]}}'), "cannot be read"),
        (pickle.dumps({"q": 1}), "does not fit"),
    ],
)  # fmt: skip
def test_headers_in_bad_faith(folder: Path, data: bytes, said: str) -> None:
    index = _index(folder)
    entry = index["cases"][0]
    (folder / entry["file"]).write_bytes(data)
    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _save(folder, index)
    assert said in _faults(folder)[entry["id"]]


def test_tensors_that_are_not_those_of_the_index(folder: Path) -> None:
    _rehashed(folder, IDS[0], lambda x: x.pop("mask"))
    _rehashed(folder, IDS[1], lambda x: x.__setitem__("more", np.zeros(3)))
    _rehashed(folder, IDS[2], lambda x: x.__setitem__("value.lse", x["value.lse"][..., :1]))
    faults = _faults(folder)
    assert "mask is missing" in faults[IDS[0]] and "more is not in the index" in faults[IDS[1]]
    assert "value.lse is F64" in faults[IDS[2]]


@pytest.mark.parametrize(
    ("id", "name", "change", "said"),
    [
        ("causal-tiny-f32", "hi.out", lambda x: x - 1, "by refattn.truth is not in"),
        ("causal-tiny-f32", "lo.lse", lambda x: x * np.nan, "by refattn.truth is not in"),
        ("causal-tiny-f32", "mask", lambda x: 1 - x, "mask is not what its case says"),
        ("causal-tiny-f32", "q", lambda x: x * 2, "q is not what is drawn for its case"),
        ("no-keys-sinks-bf16", "sinks", lambda x: (x + 1).astype(x.dtype), "sinks is not what is drawn"),
        ("causal-tiny-f32", "value.out", lambda x: x * 0 + 12345.0, "value.out[0, 0, 0, 0] = 12345.0 must be"),
        ("causal-tiny-f32", "value.lse", lambda x: x * np.nan, "value.lse[0, 0, 0] = nan must be"),
        ("causal-tiny-f32", "value.out", lambda x: x * (1 + 2.0**-40), "value.out["),
        ("causal-tiny-f32", "lo.out", lambda x: x * 0 - np.inf, "lo.out[0, 0, 0, 0] = -inf must be from"),
        ("causal-tiny-f32", "hi.lse", lambda x: x + (1e-5 * abs(x)).astype(x.dtype), "hi.lse[0, 0, "),
    ],
)  # fmt: skip
def test_numbers_that_are_wrong_are_found(
    folder: Path, id: str, name: str, change: Callable[[Any], Any], said: str
) -> None:  # fmt: skip
    _rehashed(folder, id, lambda x: x.__setitem__(name, change(x[name])))
    assert said in _faults(folder)[id]


def test_intervals_too_narrow_for_an_honest_kernel_are_found(folder: Path) -> None:
    def narrow(x: dict[str, Any]) -> None:
        for end in ("lo.out", "hi.out"):
            x[end] = x["value.out"].astype(np.float32)

    _rehashed(folder, "window-1-0-f32", narrow)
    assert "lo.out[" in _faults(folder)["window-1-0-f32"]


def test_intervals_without_end_are_found(folder: Path) -> None:
    def widen(x: dict[str, Any]) -> None:
        for name in [n for n in x if n.startswith(("lo.", "hi."))]:
            x[name] = np.full_like(x[name], -np.inf if name.startswith("lo.") else np.inf)

    for id in IDS:
        _rehashed(folder, id, widen)
    assert all(" = -inf must be from" in fault for fault in _faults(folder).values())
    assert set(_faults(folder)) == set(IDS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scale", 99.0), ("softcap", 5.0), ("causal", None), ("features", ["sinks"]), ("why", "other"),
        ("layout", "BLHD"), ("storage", "Paged"), ("dropout", 0.5), ("score_mod", "tilt"), ("flags", []),
        ("out_dtype", "float64"), ("dtype", "float64"),
        ("contract", {"accumulate": "float32", "weights": "bfloat16", "rotated": None, "bound": "sharp"}),
        ("contract", {"accumulate": "float32", "weights": None, "rotated": None, "bound": "rigorous"}),
    ],
)  # fmt: skip
def test_an_entry_that_says_other_than_its_case_is_found(folder: Path, key: str, value: Any) -> None:
    index = _index(folder)
    index["cases"][0][key] = value
    _save(folder, index)
    assert _faults(folder)[index["cases"][0]["id"]].startswith(f"index: {key}=")


def test_a_case_that_is_not_the_one_of_its_id_is_found(folder: Path) -> None:
    index = _index(folder)
    index["cases"][0] |= {"why": "Another.", "case": index["cases"][0]["case"] | {"why": "Another."}}
    _save(folder, index)
    assert "case is not the one of that id" in _faults(folder)[index["cases"][0]["id"]]


@pytest.mark.parametrize("change", [{"rule": "all passes"}, {"flags": {"causal_top_left": "nothing"}}])
def test_an_index_that_explains_otherwise_is_found(folder: Path, change: dict[str, Any]) -> None:
    _save(folder, _index(folder) | change)
    assert "is not explained as refattn does" in _faults(folder)["index"]


def test_numbers_beyond_64_bits_in_a_mask_are_refused_by_name(folder: Path) -> None:
    index = _index(folder)
    ids = [[10**30] * 4]
    index["cases"][0]["case"]["mask"] = {"type": "Documents", "q_ids": ids, "k_ids": ids}
    _save(folder, index)
    assert "makes no problem" in _faults(folder)[index["cases"][0]["id"]]
    with pytest.raises(ValueError, match="q_ids=.* must hold ints of 64 bits"):
        Documents((10**30,), (1,)).dense(1, 1, 1, 1)


def test_answers_that_are_no_answers(folder: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    tensors = read(folder / "cases" / "causal-tiny-f32.safetensors").arrays
    good = {"out": tensors["value.out"], "lse": tensors["value.lse"]}
    for change, status, said in (
        ({}, "passed", "largest ratio"),
        ({"out": good["out"][..., :-1]}, "failed", "out.shape="),
        ({"out": good["out"].astype(np.float16)}, "failed", "out.dtype=float16 must be float32, or wider"),
        ({"out": np.where(good["out"] == good["out"].max(), np.nan, good["out"])}, "failed", "= nan, should be"),
        ({"more": good["lse"]}, "failed", "more is no output of it"),
        ({"lse": good["lse"] + 1}, "failed", "lse["),
    ):  # fmt: skip
        (answers / "causal-tiny-f32.safetensors").write_bytes(safetensors(good | change, {}))
        verdicts = {v.id: v for v in judged_folder(opened(folder), answers)}
        assert verdicts["causal-tiny-f32"].status == status and said in verdicts["causal-tiny-f32"].text
        assert verdicts["window-1-0-f32"].status == "unanswered"
    (answers / "window-1-0-f32.safetensors").symlink_to("nowhere")
    verdict = {v.id: v for v in judged_folder(opened(folder), answers)}["window-1-0-f32"]
    assert verdict.status == "failed" and "No such file" in verdict.text
    (answers / "causal-tiny-f32.safetensors").write_bytes(pickle.dumps(good))
    assert "does not fit" in str(judged_folder(opened(folder), answers)[0])
    (answers / "causal-tiny-f32.safetensors").write_bytes(safetensors({"lse": good["lse"]}, {}))
    assert "out is missing" in str(judged_folder(opened(folder), answers)[0])


def test_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "verify", str(folder)]) == 0
    assert "3 of 3 cases verified" in capsys.readouterr().out
    assert main(["vectors", "verify", str(tmp_path)]) == 2
    assert "pass a folder of `refattn vectors write`" in capsys.readouterr().err
    answers = tmp_path / "answers"
    answers.mkdir()
    assert main(["vectors", "verify", str(folder), "--answers", str(answers)]) == 1
    assert "0 passed, 0 failed, 3 unanswered" in capsys.readouterr().out
    report = tmp_path / "report.json"
    tensors = read(folder / "cases" / "causal-tiny-f32.safetensors").arrays
    (answers / "causal-tiny-f32.safetensors").write_bytes(safetensors({"out": tensors["value.out"]}, {}))
    judge = ["vectors", "verify", str(folder), "--answers", str(answers), "--json", str(report)]
    assert main(judge) == 1 and main([*judge, "--partial"]) == 0
    said = capsys.readouterr().out
    assert "passed     causal-tiny-f32  without lse; largest ratio" in said
    assert "1 passed (1 without outputs that are wanted), 0 failed, 2 unanswered" in said
    found = json.loads(report.read_text())
    assert [v["status"] for v in found] == ["passed", "unanswered", "unanswered"]
    assert [v["missing"] for v in found] == [["lse"], [], []]
    assert main(["vectors", "verify", str(folder), "--partial"]) == 2
    for wrong in (["--curated", "--dtype", "float32"], ["--chapter", "huge"], ["--case", "no-such-case"]):
        assert main(["vectors", "write", str(tmp_path / "new"), *wrong]) == 2
    assert not (tmp_path / "new").exists()
    _rehashed(folder, IDS[0], lambda x: x.pop("mask"))
    assert main(["vectors", "verify", str(folder)]) == 1
    assert f"wrong  {IDS[0]}" in capsys.readouterr().out
