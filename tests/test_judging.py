"""Judging arrays and files: honest ones pass, the smallest error beyond the bound fails, broken ones are refused."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from few_hypotheses import ask_few
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import refattn
from refattn import cli, streaming
from refattn.calling import call
from refattn.cases import CASES, by_id
from refattn.dtypes import FORMATS, format_of, round_to
from refattn.dump import dump
from refattn.inputs import make
from refattn.judge import judge
from refattn.judge_file import question_of_file
from refattn.judgement import Unjudgeable
from refattn.judging import judge_arrays, question
from refattn.layouts import to_layout
from refattn.masks import Causal, Window
from refattn.precision import Conventions, preset
from refattn.sampling import Coverage
from refattn.tensors import BadFile, read
from refattn.truth import truth

Array = np.ndarray[Any, Any]
FOUR = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")


def honest(
    dtype: str = "float32", B: int = 2, H: int = 4, Hkv: int = 2, Lq: int = 7, Lk: int = 9, D: int = 8, Dv: int = 5,
    mask: Any = None, gradients: bool = True, seed: int = 0, **options: Any,
) -> dict[str, Array]:  # fmt: skip
    """Inputs, and what our own kernel makes of them under the preset of the dtype."""
    rng = np.random.default_rng(seed)
    f = FORMATS[dtype]
    out = "bfloat16" if f.bits <= 4 else dtype
    shapes = {"q": (B, H, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv), "dout": (B, H, Lq, Dv)}
    x = {n: round_to(1.5 * rng.standard_normal(s), dtype).astype(f.dtype) for n, s in shapes.items()}
    how = {"mask": mask, "precision": preset(dtype, out), **options}
    x |= streaming.attention(x["q"], x["k"], x["v"], **how)._asdict()
    if gradients and f.bits > 4:
        found = streaming.attention_grad(x["q"], x["k"], x["v"], x["dout"], **how)
        return x | {"dq": found.dq, "dk": found.dk, "dv": found.dv}
    del x["dout"]
    return x


def beyond(x: Array, expected: Any, index: tuple[int, ...]) -> Array:
    """x with one element moved to the first number of its dtype above its interval."""
    f, hi = format_of(x.dtype), float(expected.hi[index])
    step = max(f.u * abs(hi), f.eta)
    while not (new := float(round_to(np.array(hi + step), f.name))) > hi:
        step *= 2
    changed = np.array(x)
    changed[index] = new
    return changed


masks = st.sampled_from([None, Causal("top_left"), Causal("bottom_right"), Window(2, 0, "bottom_right")])


@given(
    st.sampled_from(sorted(FORMATS)), masks, st.sampled_from(["BHLD", "BLHD", "LBHD", "DLHB"]), st.integers(0, 99),
    st.integers(1, 9), st.integers(1, 9), st.sampled_from([(1, 1), (4, 2), (3, 1)]), st.data(),
)  # fmt: skip
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_honest_passes_and_the_smallest_excess_fails(
    dtype: str, mask: Any, layout: str, seed: int, Lq: int, Lk: int, heads: tuple[int, int], data: st.DataObject
) -> None:
    x = honest(dtype, H=heads[0], Hkv=heads[1], Lq=Lq, Lk=Lk, mask=mask, seed=seed)

    def ask(x: dict[str, Array]) -> Any:
        laid = {n: to_layout(a, layout) if n in FOUR else a for n, a in x.items()}
        return judge_arrays(**laid, mask=mask, layout=layout, diagnose=False)

    found = ask(x)
    assert found.status == "passed" and found.ratio <= 1 and found.reasons == ()
    assert all(found.rms[o.name] <= o.ratio for o in found.outputs)
    problem = question(x | ({} if mask is None else {"mask": mask})).problem
    name = data.draw(st.sampled_from([o.name for o in found.outputs]))
    index = tuple(data.draw(st.integers(0, n - 1)) for n in x[name].shape)
    expected = truth(problem, preset(dtype, x["out"].dtype.name))[name]
    if not np.isfinite(expected.hi[index]):
        return
    wrong = ask(x | {name: beyond(x[name], expected, index)})
    (o,) = (o for o in wrong.outputs if not o.passed)
    assert (wrong.status, o.name, o.index, o.failing) == ("failed", name, index, 1)
    assert ask(x | {name: np.full_like(x[name], np.nan)}).status == "failed"


def test_the_package_has_it() -> None:
    assert refattn.judge_arrays is judge_arrays


def test_mask_as_array_is_the_mask() -> None:
    mask = Causal("bottom_right")
    x = honest(mask=mask)
    dense = mask.dense(2, 4, 7, 9)
    for given_mask in (dense, dense[:1, :1], dense[0, 0]):
        found = judge_arrays(**x, mask=given_mask)
        assert found.outputs == judge_arrays(**x, causal="bottom_right").outputs
    assert judge_arrays(**x, mask=~dense[0, 0], diagnose=False).status == "failed"
    both = judge_arrays(**honest(mask=mask & Window(3, 0, "top_left")), mask=dense, window=(3, 0, "top_left"))
    assert both.status == "passed"


def test_options_reach_the_truth() -> None:
    rng = np.random.default_rng(1)
    keep = rng.random((2, 4, 7, 9)) < 0.8
    options = {"bias": rng.standard_normal((4, 1, 9)).astype(np.float32), "softcap": 3.0, "scale": 0.3}
    options |= {"sinks": rng.standard_normal(4).astype(np.float32), "dropout": 0.2, "keep": keep}
    x = honest(**options)
    assert judge_arrays(**x, **options).status == "passed"
    for name in options:
        lacking = {n: o for n, o in options.items() if n != name and {n, name} != {"dropout", "keep"}}
        assert judge_arrays(**x, **lacking, diagnose=False).status == "failed", name
    described = {n: options[n] for n in ("softcap", "scale", "dropout")}
    arrays = {n: options[n] for n in ("bias", "sinks", "keep")}
    assert judge_arrays(**x, **arrays, case=described).status == "passed"


def test_lengths_and_conventions() -> None:
    lens = {"q_lens": (7, 3), "k_lens": (4, 9)}
    x = honest(gradients=False)
    for b, (lq, lk) in enumerate(zip(*lens.values(), strict=True)):
        part = (x["q"][b : b + 1, :, :lq], x["k"][b : b + 1, :, :lk], x["v"][b : b + 1, :, :lk])
        done = streaming.attention(*part, mask=Causal("bottom_right"), precision=preset("float32"))
        x["out"][b, :, :lq], x["lse"][b, :, :lq] = done.out[0], done.lse[0]
        x["out"][b, :, lq:], x["k"][b, :, lk:], x["v"][b, :, lk:] = 9.0, np.nan, np.nan
    assert judge_arrays(**x, causal="bottom_right", **lens).status == "passed"
    assert judge_arrays(**x, causal="top_left", **lens, diagnose=False).status == "failed"
    for n in "kv":
        x[n] = np.nan_to_num(x[n], nan=5.0)
    empty = np.isneginf(x["lse"])
    x["out"][empty] = np.nan
    found = judge_arrays(**x, causal="bottom_right", **lens)
    assert found.status == "failed" and "empty_rows='nan'" in found.notes[0]
    declared = judge_arrays(**x, causal="bottom_right", **lens, conventions=Conventions(empty_rows="nan"))
    assert declared.status == "acceptable" and declared.rms["out"] < 1


def test_contracts() -> None:
    x = honest("float16", D=64, Lk=200, gradients=False)
    s = (x["q"].astype(np.float32) @ x["k"].repeat(2, 1).astype(np.float32).swapaxes(2, 3)).astype(np.float16)
    s = (s * np.float16(0.125)).astype(np.float32)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = (p / p.sum(-1, keepdims=True)).astype(np.float16).astype(np.float32)
    given_arrays = {n: x[n] for n in "qkv"} | {"out": (p @ x["v"].repeat(2, 1).astype(np.float32)).astype(np.float16)}
    found = judge_arrays(**given_arrays)
    assert found.status == "failed" and "eager" in found.notes[0]
    assert judge_arrays(**given_arrays, contract="eager").status == "passed"
    fields = {"scores": "float16", "weights_normalised": True}
    loosened = judge_arrays(**given_arrays, contract_fields=fields)
    assert loosened.status == "passed" and loosened.loosened == fields | {"weights_normalised": True}


def test_upcast_arrays() -> None:
    x = honest("bfloat16")
    wide = {n: a.astype(np.float32) for n, a in x.items()}
    found = judge_arrays(**wide)
    assert found.status == "failed" and "dtype=bfloat16" in found.notes[-1]
    assert judge_arrays(**wide, dtype="bfloat16").outputs == judge_arrays(**x).outputs
    x["out"] = streaming.attention(x["q"], x["k"], x["v"], precision=preset("bfloat16", "float32")).out
    assert judge_arrays(**{n: x[n] for n in ("q", "k", "v", "out")}).contract.out == "float32"  # type: ignore[union-attr]


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="judges torch tensors")
    from refattn.exchange import to_torch

    x = honest("bfloat16")
    assert judge_arrays(**{n: to_torch(a) for n, a in x.items()}).outputs == judge_arrays(**x).outputs
    assert judge_arrays(**x, mask=torch.ones(7, 9, dtype=torch.bool)).status == "passed"


def test_a_tensor_without_memory_is_refused() -> None:
    torch = pytest.importorskip("torch", reason="judges torch tensors")
    x = honest(gradients=False)
    with pytest.raises(TypeError, match="out cannot be read as an array; pass a dense one on the CPU"):
        judge_arrays(x["q"], x["k"], x["v"], out=torch.empty(x["out"].shape, device="meta"))


# ---- rows


@given(masks, st.booleans(), st.booleans(), st.integers(0, 9))
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
def test_sampled_rows_are_those_of_the_whole(mask: Any, lens: bool, dense: bool, seed: int) -> None:
    x = honest("float16", Lq=90, Lk=40, mask=mask)
    bias = np.random.default_rng(seed).standard_normal((1, 4, 90, 40)).astype(np.float32)
    given_mask = mask.dense(2, 4, 90, 40) if dense and mask is not None else mask
    arrays = x | {"bias": bias} | ({} if mask is None else {"mask": given_mask})
    whole = question(arrays, **({"q_lens": (77, 90), "k_lens": (40, 22)} if lens else {}))
    part = whole.sampled(5, seed)
    assert isinstance(part.coverage, Coverage) and part.coverage.left_out == ("dk", "dv")
    rows = list(part.coverage.rows)
    assert {0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 89} | ({76, 77} if lens else set()) <= set(rows)
    full, few = truth(whole.problem, whole.precision), truth(part.problem, part.precision)
    for name in ("out", "lse", "dq"):
        keep = ~few[name].ignored
        assert np.array_equal(keep, ~full[name].ignored[:, :, rows])
        for field in ("value", "lo", "hi"):
            a, b = getattr(few[name], field)[keep], getattr(full[name], field)[:, :, rows][keep]
            assert np.allclose(a, b, rtol=1e-12, atol=1e-12), (name, field)


def test_sampled_rows_find_what_they_hold() -> None:
    x = honest("float32", B=1, Lq=500, Lk=20, gradients=False, mask=Causal("top_left"))
    part = judge_arrays(**x, causal="top_left", rows=40, seed=3)
    assert part.status == "passed" and part.coverage is not None and part.coverage.drawn == 40
    assert part.coverage.miss(10) == pytest.approx(0.9**40)
    assert "0.015 if one row in 10 were wrong" in str(part.coverage)
    rows = set(part.coverage.rows)
    for row, status in ((max(rows - {499}), "failed"), (min(set(range(500)) - rows), "passed")):
        out = x["out"].copy()
        out[0, 1, row, 2] += 1
        found = judge_arrays(**x | {"out": out}, causal="top_left", rows=40, seed=3, diagnose=False)
        assert found.status == status
        assert status == "passed" or found.outputs[0].index == (0, 1, row, 2)
    assert judge_arrays(**x, causal="top_left", rows=500).coverage is None


def test_chance_to_miss_is_an_upper_bound() -> None:
    x = honest("float32", B=1, H=1, Hkv=1, Lq=200, Lk=3, gradients=False)
    asked = question(x)
    wrong = set(range(5, 200, 20))  # one row in 20
    coverages = [asked.sampled(15, seed).coverage for seed in range(300)]
    missed = sum(c is not None and wrong.isdisjoint(c.rows) for c in coverages) / 300
    bound = Coverage((), 15, 200).miss(20)
    assert 0.3 * bound < missed <= bound + 3 * np.sqrt(bound / 300)


# ---- files


def write(path: Path, arrays: dict[str, Array], metadata: dict[str, str] | None = None) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return path
    save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, path, metadata=metadata)
    return path


STORED = ("float64", "float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", STORED)
def test_files_give_the_arrays_verdict(tmp_path: Path, dtype: str) -> None:
    x = honest(dtype, mask=Causal("top_left"))
    expected = judge_arrays(**x, causal="top_left")
    for suffix in (".safetensors", ".npz"):
        path = write(tmp_path / f"x{suffix}", x)
        options = {"dtype": dtype} if suffix == ".npz" and dtype == "bfloat16" else {}
        assert question_of_file(path, causal="top_left", **options).judged().outputs == expected.outputs


def test_float8_as_torch_writes_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="writes float8 as safetensors")
    from safetensors.torch import save_file as save_torch

    from refattn.exchange import to_torch

    x = honest("float8_e4m3fn")
    save_torch({n: to_torch(a).contiguous() for n, a in x.items()}, tmp_path / "x.safetensors")
    assert torch is not None
    found = question_of_file(tmp_path / "x.safetensors").judged()
    assert found.status == "passed" and found.case.dtype == "float8_e4m3fn"


def some_of_each_kind() -> list[str]:
    """The first small case that has a feature which none before it had."""
    seen: set[str] = set()
    ids = []
    for case in CASES:
        new = {w for w in case.features() if not w.startswith("dtype")} - seen
        if new and case.scores < 30_000:
            seen |= new
            ids.append(case.id)
    return ids


KINDS = some_of_each_kind()


@pytest.mark.parametrize("name", KINDS)
def test_dump_round_trip(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != KINDS[0]:  # to ask all hypotheses takes seconds, and alters no verdict
        ask_few(monkeypatch)
    problem = make(by_id(name))
    answer = call(streaming.implementation, problem)
    contract = streaming.implementation.precision(problem.case)
    first = next(n for n in ("out", "lse", "dq", "dk", "dv", *answer.outputs) if n in answer.outputs)
    wrong = np.where(answer.outputs[first] == 0, 1, answer.outputs[first].astype(np.float64) * -3)
    outputs = {**answer.outputs, first: wrong.astype(answer.outputs[first].dtype)}
    verdict = judge(problem, replace(answer, outputs=outputs), contract, Conventions())
    if verdict.evidence is None:  # nothing of it is judged
        assert all(o.elements == 0 for o in verdict.outputs if o.name == first)
        return
    path = dump(verdict.evidence, tmp_path, "ours")
    found = question_of_file(path).judged(diagnose=name in KINDS[::8])
    assert (found.status, found.outputs, found.reasons) == ("failed", verdict.outputs, verdict.reasons)
    with pytest.raises(ValueError, match="brings its own case"):
        question_of_file(path, causal="top_left")


@given(st.sampled_from([".safetensors", ".npz"]), st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_a_cut_file_is_refused(tmp_path_factory: pytest.TempPathFactory, suffix: str, share: float) -> None:
    path = write(tmp_path_factory.getbasetemp() / f"cut{suffix}", honest(B=1, gradients=False))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadFile, match=r"write|copy|archive"):
        read(path)


@given(st.data())
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_damaged_file_is_refused_or_the_same(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """One byte of the header, or of an archive anywhere, is another."""
    suffix = data.draw(st.sampled_from([".safetensors", ".npz"]))
    x = honest(B=1, Lq=3, Lk=4, gradients=False)
    path = write(tmp_path_factory.getbasetemp() / f"damaged{suffix}", {n: x[n] for n in ("q", "k", "v", "out")})
    raw = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(raw[:8], "little") if suffix == ".safetensors" else len(raw)
    at = data.draw(st.integers(0, end - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        found = question_of_file(path).judged()
    except (ValueError, TypeError) as refusal:
        assert str(refusal)
    else:
        assert found.outputs == judge_arrays(**{n: x[n] for n in ("q", "k", "v", "out")}).outputs


def header(entries: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), place: tuple[int, int] = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(place)}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header({"q": entry("F4")}, bytes(8)), "q of dtype 'F4'"),
        (header({"q": entry(shape=(3,))}, bytes(8)), r"8 bytes, must have 12"),
        (header({"q": entry(shape=(-2,))}, bytes(8)), "ints >= 0"),
        (header({"q": entry(), "k": entry(place=(4, 12))}, bytes(12)), "begins at byte 4 of the data, must at 8"),
        (header({"q": entry()}, bytes(12)), "bytes of no tensor"),
        (header({"q": entry(place=(8, 16))}, bytes(16)), "begins at byte 8"),
        (header({"q": {"dtype": "F32"}}, bytes(8)), "must have dtype, shape and data_offsets"),
        (header({"q": entry(), "__metadata__": {"dtypes": '{"q": "bool"}'}}, bytes(8)), "must be uint8"),
        (header({"q": entry("BOOL", (8,))}, b"\2" * 8), "other than 0 and 1"),
        (header([], b""), "no JSON object"),  # type: ignore[arg-type]
        (b"\x20" + bytes(7) + b'{"q": 1, "q": 2}' + b" " * 16, "twice"),
        (b"PK\3\4" + bytes(60), "does not fit"),
        (b"", "does not fit"),
    ],
)
def test_bad_safetensors(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(BadFile, match=says):
        read(tmp_path / "x.safetensors")


def test_pickles_are_refused_unopened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return Path.touch, (tmp_path / "sprung",)

    np.savez(tmp_path / "a.npz", q=np.array([Trap()], dtype=object))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap()))
    for name in "ab":
        with pytest.raises(BadFile, match="pickled"):
            read(tmp_path / f"{name}.npz")
    for content in (b"", b"P", b"PK", b"PK\3\4", header({"q": entry()}, bytes(8))):
        (tmp_path / "d.npz").write_bytes(content)
        with pytest.raises(BadFile, match="is no archive of np.savez, or cut off"):
            read(tmp_path / "d.npz")
    assert not (tmp_path / "sprung").exists()
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    (tmp_path / "c.npz").write_bytes(buffer.getvalue())
    for name, says in (("c.npz", "np.savez"), ("no.npz", "No such file"), ("x.pt", "must be a .safetensors")):
        with pytest.raises(BadFile, match=says):
            read(tmp_path / name)


# ---- refusals of arrays


X = honest()
SMALL = {n: X[n] for n in ("q", "k", "v", "out")}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"q": None}, {}, "q is missing"),
    ({"out": None}, {}, "nothing to judge: at least one of out, lse"),
    ({"attn": X["out"]}, {}, "attn is no array of attention"),
    ({"q": X["q"][0]}, {}, r"q.shape=\(4, 7, 8\) must have 4 dimensions"),
    ({"k": X["v"]}, {}, r"k.shape=\(2, 2, 9, 5\) must be"),
    ({"v": X["v"][:1]}, {}, r"v.shape=\(1, 2, 9, 5\) must be"),
    ({"k": X["k"].astype(np.float16)}, {}, "k.dtype=float16 must be float32"),
    ({"q": X["q"].astype(np.int32)}, {}, "q.dtype=int32 is not a supported dtype"),
    ({"q": X["q"].astype(">f4")}, {}, "other byte order"),
    ({"q": np.ma.masked_array(X["q"])}, {}, "masked array"),
    ({"out": X["out"].swapaxes(1, 2)}, {}, r"out.shape=\(2, 7, 4, 5\) must be \(2, 4, 7, 5\)"),
    ({"lse": X["lse"].swapaxes(1, 2)}, {}, r"lse.shape=.* every layout"),
    ({"lse": X["lse"].astype(np.float16)}, {}, "lse.dtype=float16 must be float32 or float64"),
    ({"dq": X["dq"]}, {}, "dq needs dout"),
    ({"dq": X["dq"].astype(np.float64), "dout": X["dout"]}, {}, "dq.dtype=float64 must be float32"),
    ({"mask": np.ones((7, 9))}, {}, "mask.dtype=float64 must be bool, True = may attend"),
    ({"mask": np.ones((9, 7), bool)}, {}, r"mask.shape=\(9, 7\) must broadcast"),
    ({"bias": np.zeros((3, 7, 9))}, {}, r"bias.shape=\(3, 7, 9\) must broadcast"),
    ({"sinks": np.zeros(3)}, {}, r"sinks.shape=\(3,\) must be \(4,\)"),
    ({"keep": np.ones((7, 9), bool)}, {}, "keep needs dropout too"),
    ({}, {"dropout": 0.1}, "dropout=0.1 needs keep too"),
    ({}, {"softcap": 0}, "softcap=0"),
    ({}, {"scale": float("nan")}, "scale=nan must be finite"),
    ({}, {"causal": "left"}, "causal='left' must be"),
    ({}, {"window": (-1, 0, "top_left")}, "left=-1 must be an int >= 0"),
    ({}, {"layout": "THD"}, "layout='THD' must be an order"),
    ({}, {"layout": "BLHD"}, "must"),
    ({}, {"k_lens": (9,)}, "k_lens"),
    ({}, {"case": {"k_lens": 9}}, "k_lens=9 must be ints, one for each batch entry"),
    ({}, {"case": {"k_lens": [9, 8.5]}}, r"k_lens=\[9, 8.5\] must be ints"),
    ({}, {"case": {"mask": {"type": "Causal"}}}, "mask of type Causal={} must be an object with align"),
    ({}, {"case": {"out_dtype": "bfloat16"}}, "out_dtype='bfloat16' of the case must be float32"),
    ({"q": X["q"][:, :3], "out": X["out"][:, :3]}, {}, "H=3 of q.shape.* must be a multiple of Hkv=2 .*see layout"),
    ({}, {"dtype": "bfloat16"}, "q of float32 has numbers that are none of bfloat16"),
    ({}, {"dtype": "float12"}, "float12 is not a supported dtype"),
    ({}, {"contract": "strict"}, "contract='strict' must be preset, eager"),
    ({}, {"contract": preset("float16")}, "must be for float32 and float32"),
    ({}, {"contract_fields": {"speed": 1}}, "speed is no field of a contract"),
    ({}, {"rows": 0}, "rows=0 must be an int >= 1"),
    ({}, {"case": {"Lk": 8}}, "Lk=8 of the case must be 9"),
    ({}, {"case": {"softcup": 8}}, "a case has no field softcup"),
    ({}, {"case": {"sinks": "normal"}}, "sinks is missing"),
    ({}, {"case": {"storage": {"type": "Packed"}}}, "storage=Packed"),
    ({}, {"case": {"scale": 1}, "scale": 1}, "scale=1 beside a case"),
    ({"out": X["out"].tolist()}, {}, "out is of list, which has no dtype"),
    ({"mask": [[True] * 9] * 7}, {}, "mask is of list, which has no dtype"),
    ({}, {"conventions": "x"}, "conventions='x' must be a refattn.precision.Conventions"),
    ({}, {"case": {"mask": 3}}, "mask=3 must be an object"),
    ({}, {"case": "x"}, "case='x' must be a mapping"),
]


@pytest.mark.parametrize(("change", "options", "says"), REFUSED, ids=[says[:30] for *_, says in REFUSED])
def test_refusals(change: dict[str, Any], options: dict[str, Any], says: str) -> None:
    options = dict(options)
    rows = options.pop("rows", None)
    arrays = {n: x for n, x in {**SMALL, **change}.items() if x is not None}
    with pytest.raises((ValueError, TypeError), match=says):
        question(arrays, **options).sampled(rows).judged()


def test_what_cannot_be_judged_never_passes() -> None:
    nan = np.full_like(X["q"], np.nan)
    with pytest.raises(Unjudgeable, match="none of the 280 elements .*q has 448 numbers that are not finite"):
        judge_arrays(nan, X["k"], X["v"], out=np.full_like(X["out"], np.nan))
    with pytest.raises(Unjudgeable, match="none of the 0"):
        judge_arrays(X["q"][:, :, :0], X["k"], X["v"], out=X["out"][:, :, :0])
    one = X["q"].copy()
    one[0, 0, 3] = np.nan
    out = X["out"].copy()
    out[0, 0, 3] = np.inf
    found = judge_arrays(one, X["k"], X["v"], out=out)
    assert found.status == "passed" and found.unjudged == {"out": 5}
    assert any("5 of out pass whatever they are" in note for note in found.notes)
    out[0, 0, 4] = np.inf
    assert judge_arrays(one, X["k"], X["v"], out=out).status == "failed"


def test_another_order_of_the_axes_is_named() -> None:
    x = honest(B=2, H=4, Hkv=4, Lq=8, Lk=8, gradients=False)
    turned = {n: np.ascontiguousarray(x[n].swapaxes(1, 2)) for n in ("q", "k", "v", "out")}
    found = judge_arrays(**turned)
    assert found.status == "failed" and any("heads and positions exchanged" in note for note in found.notes)
    assert judge_arrays(**turned, layout="BLHD").status == "passed"
    turned["out"][0, 0, 0, 0] += 1
    assert not any("exchanged" in note for note in judge_arrays(**turned, diagnose=False).notes)


def test_a_bound_that_allows_everything_explains_nothing() -> None:
    found = judge_arrays(X["q"] * np.float32(1e30), X["k"], X["v"], out=X["out"], diagnose=False)
    assert found.status == "failed" and not any("another contract" in note for note in found.notes)


def test_a_large_forward_is_judged_by_narrow_intervals_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes or fails as by the wide ones; of what fails the rows that are furthest out are judged by those."""
    x = honest(B=1, Lq=40, Lk=40, mask=Causal("bottom_right"), gradients=False)
    wrong = {**x, "out": x["out"].copy(), "lse": x["lse"].copy()}
    wrong["out"][0, 1, 30:33] *= 1.01
    wrong["lse"][0, 2, 7] = np.nan
    whole = [judge_arrays(**a, causal="bottom_right", diagnose=False) for a in (x, wrong)]
    monkeypatch.setattr("refattn.judgement._QUICK", 1)
    right, failed = (judge_arrays(**a, causal="bottom_right", diagnose=False) for a in (x, wrong))
    assert (right.status, failed.status) == ("passed", "failed") and right.coverage is None
    assert whole[0].ratio <= right.ratio <= 1.1 * whole[0].ratio
    assert failed.coverage is not None and failed.coverage.rows == (7, 30, 31, 32) and failed.coverage.beyond == 4
    assert "the other 36 are right" in str(failed.coverage)
    for many, few in zip(whole[1].outputs, failed.outputs, strict=True):
        assert (many.failing, many.index, many.ratio) == (few.failing, few.index, few.ratio)
    monkeypatch.setattr("refattn.judgement.rows_beyond", lambda *_: np.array([9, 3]))
    found = judge_arrays(**x, causal="bottom_right")
    assert (found.status, found.coverage) == ("passed", None)  # the wide intervals of these two rows decide
    monkeypatch.undo()
    monkeypatch.setattr("refattn.judgement._QUICK", 1)
    monkeypatch.setattr("refattn.judgement._FURTHEST", 1)
    assert judge_arrays(**wrong, causal="bottom_right", diagnose=False).coverage.rows == (7,)  # type: ignore[union-attr]


# ---- the command


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def judge_command(capfd: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        try:
            code = cli.main(["judge", *map(str, arguments)])
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capfd.readouterr())

    return command


def test_command(tmp_path: Path, judge_command: Run) -> None:
    x = honest("bfloat16", mask=Causal("bottom_right") & Window(3, 0, "bottom_right"))
    good = write(tmp_path / "x.safetensors", x | {"extra": np.zeros(3)})
    flags = ("--causal", "bottom_right", "--window", "3,0,bottom_right", "--ignore", "extra")
    code, out, err = judge_command(good, *flags, "--json", tmp_path / "x.json")
    assert (code, err) == (0, "") and "of the bound: normal" in out and out.endswith("within bound\n")
    assert "contract assumed: preset, accumulate=float32, weights=bfloat16" in out
    data = json.loads((tmp_path / "x.json").read_text())
    assert data["status"] == "passed" and data["outputs"][0]["rms"] <= data["ratio"] <= 1
    x["out"][1, 3, 6, 2] += 4
    bad = write(tmp_path / "bad.safetensors", x)
    code, out, _ = judge_command(bad, *flags)
    assert code == 1 and "times the bound at [b=1, h=3, i=6, d=2]: not rounding" in out
    assert "1 of 280 elements out of bound" in out and "NOT within bound" in out
    code, out, _ = judge_command(good, *flags, "--weights", "none", "--exp-ulp", "8")
    assert "contract assumed: preset but for weights=None, exp_ulp=8.0" in out and code == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "leave it out with --ignore extra"),
        (("--ignore", "ex*", "--window", "3,-1,top_left"), "must be LEFT,RIGHT,ALIGN"),
        (("--ignore", "ex*", "--conventions", "rows=nan"), "must be NAME=VALUE"),
        (("--ignore", "ex*", "--conventions", "empty_rows=inf"), "must be one of 'zero', 'nan'"),
        (("--ignore", "ex*", "--case", "{"), "--case:"),
        (("--ignore", "ex*", "--case", "[]"), "--case: must be one JSON object"),
        (("--ignore", "ex*", "--rows", "1", "--seed", "-1"), "seed=-1 of the rows must be an int >= 0"),
        (("--ignore", "ex*", "--dtype", "bfloat16"), "leave --dtype out"),
        (("--ignore", "ex*", "--weights", "float12"), "weights=float12 is not a supported dtype"),
        (("--ignore", "ex*", "--json", "/no/such/folder/x.json"), "cannot be written"),
        (("--ignore", "ex*", "--ignore", "q"), "q is missing"),
    ],
)
def test_wrong_usage_is_2(tmp_path: Path, judge_command: Run, flags: tuple[str, ...], says: str) -> None:
    path = write(tmp_path / "x.npz", SMALL | {"extra": np.zeros(3)})
    code, out, err = judge_command(path, *flags)
    assert (code, out) == (2, "") and says in err


def test_rows_of_a_dump_are_of_what_its_case_wants(tmp_path: Path) -> None:
    x = honest("float32", B=1, Lq=60, gradients=False)
    case = {"id": "x", "why": "x", "H": 4, "Hkv": 2, "Lq": 60, "Lk": 9, "D": 8, "Dv": 5, "want": ["out"]}
    arrays = {n: x[n] for n in "qkv"} | {"got.out": x["out"], "got.lse": x["lse"] + 1}
    path = write(tmp_path / "x.safetensors", arrays, {"case": json.dumps(case)})
    found = question_of_file(path).sampled(3).judged()
    assert found.status == "passed" and [o.name for o in found.outputs] == ["out"] and found.coverage is not None
