"""Node tests of ONNX: what is written runs under `onnx.reference`, and its answer lies in the interval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refattn.case import BiasSpec
from refattn.cases import CASES, by_id
from refattn.masks import Causal, Window
from refattn.vectors.dyadic import problem_of
from refattn.vectors.onnx_node import expressible, write_node

onnx = pytest.importorskip("onnx", reason="onnx writes node tests")
pytest.importorskip("flint", reason="python-flint (extra `test`) writes vectors")

from onnx.reference import ReferenceEvaluator  # noqa: E402

Array = np.ndarray[Any, Any]
IDS = (
    "one-token-f32", "full-tiny-f32", "causal-tiny-f32", "causal-f16", "window-0-0-f32", "gqa-2x2-f32", "bias-keys-f32",
    "padding-x-softcap-bf16", "documents-cross-f32", "small-3x5-bf16", "d3-f32", "drawn-per-head-f32",
)  # fmt: skip


def _tensor(path: Path) -> Array:
    return np.asarray(onnx.numpy_helper.to_array(onnx.load_tensor(str(path))))


def _run(folder: Path) -> tuple[Array, Array, Array, Array]:
    """got, expected, lo, hi."""
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    data = folder / "test_data_set_0"
    names = [x.name for x in model.graph.input]
    given = {name: _tensor(data / f"input_{n}.pb") for n, name in enumerate(names)}
    got = ReferenceEvaluator(model).run(None, given)[0]
    return got, *(_tensor(data / f"{name}.pb") for name in ("output_0", "lo_0", "hi_0"))


@pytest.mark.parametrize("id", IDS)
def test_reference_is_within_the_interval(id: str, tmp_path: Path) -> None:
    problem = problem_of(by_id(id))
    assert expressible(problem)
    write_node(tmp_path, problem)
    got, value, lo, hi = _run(tmp_path)
    assert got.dtype == value.dtype == lo.dtype and got.shape == value.shape
    x = got.astype(np.float64)
    assert ((lo.astype(np.float64) <= x) & (x <= hi.astype(np.float64))).all()
    assert ((lo.astype(np.float64) <= value.astype(np.float64)) & (value <= hi)).all()


@pytest.mark.parametrize(
    "change", [{"scale": 0.7}, {"mask": Causal("bottom_right")}, {"mask": Window(0, 1, "top_left")}],
    ids=["scale", "causal", "window"],
)  # fmt: skip
def test_another_case_is_out_of_the_interval(change: dict[str, Any], tmp_path: Path) -> None:
    case = replace(by_id("full-tiny-f32"), mask=Causal("top_left"))
    write_node(tmp_path / "one", problem_of(case))
    write_node(tmp_path / "other", problem_of(replace(case, **change)))
    got, _, _, _ = _run(tmp_path / "other")
    _, _, lo, hi = _run(tmp_path / "one")
    assert not ((lo <= got) & (got <= hi)).all()


def test_bias_and_mask_become_one_input(tmp_path: Path) -> None:
    case = replace(by_id("full-tiny-f32"), mask=Causal("bottom_right"), bias=BiasSpec("HK"), softcap=2.0)
    write_node(tmp_path, problem_of(case))
    model = onnx.load(tmp_path / "model.onnx")
    assert [x.name for x in model.graph.input] == ["Q", "K", "V", "attn_mask"]
    got, _, lo, hi = _run(tmp_path)
    assert ((lo <= got) & (got <= hi)).all()


def test_same_bytes_twice(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_node(tmp_path / name, problem_of(by_id("causal-tiny-f32")))
    files = [sorted(p.relative_to(tmp_path / n) for p in (tmp_path / n).rglob("*.*")) for n in ("one", "other")]
    assert files[0] == files[1] and len(files[0]) == 7
    for path in files[0]:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "other" / path).read_bytes(), path


def test_what_the_operator_cannot_say_is_left_out() -> None:
    for id in ("sinks-f32", "far-poisoned-f64", "cache-alone-bf16", "some-rows-masked-bf16", "mod-parabola-f32",
               "dropout-one-key-f32", "q-k-lens-br-f32", "lse-alone-f16", "scores-e4m3"):  # fmt: skip
        assert not expressible(problem_of(by_id(id))), id
    small = [c for c in CASES if c.chapter in ("basics", "masks", "heads", "scores")]
    assert sum(expressible(problem_of(c)) for c in small) >= 40
