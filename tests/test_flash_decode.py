"""A step of decoding against the truth's intervals: few queries, keys in splits, caches read where they lie."""

from __future__ import annotations

import json
import sys
import tracemalloc
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'refattn[cpu]'")

import numba
from test_flash import dtype_of, in_child

from refattn.case import BiasSpec, Case
from refattn.dtypes import FORMATS
from refattn.flash import decode, threads
from refattn.flash.implementation import attention
from refattn.flash.problem import Problem
from refattn.inputs import make
from refattn.judge import judge
from refattn.masks import Causal, Dilated, Padding, SinkTokens, Window
from refattn.memory import take
from refattn.streaming import Attention

Array = np.ndarray[Any, Any]
OPTIONS: dict[str, Any] = dict.fromkeys(("mask", "bias", "scale", "softcap", "sinks"))
FAMILIES = ("normal", "peaked", "ties", "sparse_q", "rising", "falling", "large_logits", "huge_offset", "underflow")
BOTTOM: Literal["bottom_right"] = "bottom_right"


def problem_of(case: Case) -> Problem:
    x = take(case, make(case).fresh())
    options = {"bias": x.get("bias"), "sinks": x.get("sinks"), "scale": case.scale, "softcap": case.softcap}
    return Problem(x["q"], x["k"], x["v"], mask=case.visibility, **options)


def solved(case: Case) -> Attention:
    out, lse, _, _ = decode.solve(problem_of(case))
    return Attention(out.astype(FORMATS[case.dtype].dtype), lse)


def verdict_of(case: Case, answer: Attention) -> Any:
    contract = attention.precision(case)
    return judge(make(case), answer._asdict(), contract, attention.conventions, outputs=attention.outputs)


def check(case: Case) -> None:
    verdict = verdict_of(case, solved(case))
    assert verdict.status == "passed", (verdict.case, verdict.reasons, verdict.outputs)


@st.composite
def cases(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")) -> Case:
    B, Hkv, group, Lq = (draw(st.integers(1, n)) for n in (2, 3, 5, 3))
    Lk = draw(st.integers(0, 40) | st.integers(120, 300))
    dtype = draw(st.sampled_from(dtypes))
    n = st.integers(0, 20)
    mask = st.sampled_from([
        None, Causal(BOTTOM), Causal("top_left"), Window(draw(n), draw(n), BOTTOM), Dilated(draw(n), 2, BOTTOM),
        SinkTokens(draw(n)) | Window(draw(n), 0, BOTTOM), Padding(tuple(draw(st.integers(0, Lk)) for _ in range(B))),
    ])  # fmt: skip
    return Case(
        "decode", "drawn", B=B, H=group * Hkv, Hkv=Hkv, Lq=Lq, Lk=Lk,
        D=draw(st.integers(1, 40) | st.sampled_from([64, 100, 128])),
        Dv=draw(st.integers(1, 40) | st.sampled_from([64, 100, 128])),
        dtype=dtype, seed=draw(st.integers(0, 99)),
        family=draw(st.sampled_from(FAMILIES if dtype in ("float32", "float64") else FAMILIES[:4])),
        mask=draw(mask), k_lens=draw(st.none() | st.tuples(*[st.integers(0, Lk)] * B)),
        scale=draw(st.sampled_from([None, None, 1.0, -0.25, 0.0])), softcap=draw(st.sampled_from([None, None, 3.0])),
        bias=draw(st.sampled_from([None, None, *(BiasSpec(dims) for dims in ("K", "HK", "QK", "BHQK", "BQ"))])),
        sinks=draw(st.sampled_from([None, "normal"])),
    )  # fmt: skip


PLAIN = Case("plain", "an example", B=2, H=6, Hkv=2, Lk=decode.SPLIT + 1, D=24, Dv=40, family="peaked")


@settings(max_examples=150)
@given(cases(), st.sampled_from([1, 7, 16, 200, decode.SPLIT]))
@example(PLAIN, decode.SPLIT)
@example(replace(PLAIN, Lk=decode.SPLIT - 1), decode.SPLIT)
@example(replace(PLAIN, Lk=2 * decode.SPLIT, H=8, mask=Window(decode.SPLIT - 1, 0, BOTTOM)), decode.SPLIT)
@example(replace(PLAIN, Lk=decode.KEYS + 1, dtype="float64", out_dtype="float64"), decode.SPLIT)
@example(replace(PLAIN, D=0, Dv=0), decode.SPLIT)
@example(replace(PLAIN, H=decode.FULL + 1, Hkv=1, Lk=100), 32)
@example(replace(PLAIN, H=7, Hkv=1, Lq=19, Lk=100, mask=Causal(BOTTOM)), 32)
@example(replace(PLAIN, B=0), 7)
@example(replace(PLAIN, Lq=0), 7)
def test_truth(case: Case, split: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "SPLIT", split)
        check(case)


def test_can_fail() -> None:
    """A key too many or too few at the end of a split, and one part that is not rescaled."""
    found = solved(PLAIN)
    assert verdict_of(PLAIN, found).status == "passed"
    for keys in (slice(decode.SPLIT), slice(1, None)):
        x = problem_of(PLAIN).x
        out, lse, _, _ = decode.solve(Problem(x.q, x.k[:, :, keys], x.v[:, :, keys], **OPTIONS))
        assert verdict_of(PLAIN, Attention(out, found.lse)).status == "failed"
        assert verdict_of(PLAIN, Attention(found.out, lse)).status == "failed"


@given(cases(("float32", "float64")), st.sampled_from([16, 200]))
@settings(max_examples=40)
def test_the_same_bits_for_any_number_of_threads(case: Case, split: int) -> None:
    problem, most = problem_of(case), numba.get_num_threads()
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "SPLIT", split)
        patch.setattr(threads, "SMALL", 0)
        try:
            for n in (1, most, most):
                numba.set_num_threads(n)
                found.append([a.tobytes() for a in decode.solve(problem)])
        finally:
            numba.set_num_threads(most)
    assert found[0] == found[1] == found[2]


@given(cases(("float32", "float64")))
@settings(max_examples=60)
def test_weights_by_shift_and_factor(case: Case) -> None:
    """out is the sum of exp2((S - shift) c) factor v, with S in units of the scale where nothing is done to it."""
    case = replace(case, mask=None, k_lens=None, softcap=None, bias=None, family="normal")
    problem = problem_of(case)
    out, lse, shift, factor = (a.astype(np.float64) for a in decode.solve(problem))
    scale = float(problem.scale)
    x = problem.x
    k, v = (np.repeat(a.astype(np.float64), x.group, 1) for a in (x.k, x.v))
    s = x.q.astype(np.float64) @ k.swapaxes(2, 3) * scale
    weights = np.exp(s - (shift * (abs(scale) or 1))[..., None]) * factor[..., None]
    np.testing.assert_allclose(weights @ v, out, atol=1e-4)
    np.testing.assert_allclose(weights, np.exp(s - lse[..., None]), atol=1e-4)


def drawn(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(dtype)


LONG = 1 << 14


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_cache_is_read_where_it_lies(dtype: str) -> None:
    """A part of a longer cache, or one in the order (B, L, heads, D), is not copied, and gives the bits of a copy."""
    kind = FORMATS[dtype].dtype
    q, cache = drawn(1, 4, 1, 30, dtype=kind), drawn(1, 2, LONG + 5, 40, dtype=kind)
    cache[:, :, :2], cache[:, :, LONG - 1 :], cache[..., 30] = np.nan, np.nan, np.nan  # around what is given
    layouts = {
        "slice": cache[:, :, 2 : LONG - 1],
        "BLHD": np.ascontiguousarray(cache.swapaxes(1, 2)).swapaxes(1, 2)[:, :, 2:9999],
        "one for all": np.broadcast_to(cache[:, :1, 2:9999], (1, 2, 9997, 40)),
    }
    for layout, a in layouts.items():
        k, v = a[..., :30], a[..., 31:]
        decode.solve(Problem(q, k, v, **OPTIONS))
        tracemalloc.start()
        found = decode.solve(Problem(q, k, v, **OPTIONS))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < cache.nbytes / 8, layout
        copies = decode.solve(Problem(q, k.copy(), v.copy(), **OPTIONS))
        assert [x.tobytes() for x in found] == [x.tobytes() for x in copies], layout
        assert all(np.isfinite(x).all() for x in found)


FENCED = """
import ctypes, mmap
import numpy as np
from refattn.flash import decode
from refattn.flash.problem import Problem

def fenced(*shape):
    "Zeros whose end is that of a page, which one follows that cannot be read."
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + 2 * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    size = 4 * int(np.prod(shape))
    return np.frombuffer(pages, np.float32, size // 4, 2 * mmap.PAGESIZE - size).reshape(shape)

for n in range(1, 40):
    k, v = fenced(1, 1, n, 7), fenced(1, 1, n, 21)
    out = decode.solve(Problem(k[:, :, :1], k, v, mask=None, bias=None, scale=None, softcap=None, sinks=None))[0]
    assert not out.any()
print("read")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect as Linux has it")
def test_nothing_is_read_beyond_the_last_key() -> None:
    assert in_child(FENCED) == "read\n"


@pytest.mark.parametrize("turned", [np.s_[:, :, ::-1], np.s_[..., ::-1], np.s_[..., ::2]], ids=str)
def test_what_cannot_be_read_in_place_is_copied(turned: Any) -> None:
    q, a = drawn(1, 2, 1, 6), drawn(1, 1, 50, 6)
    k, v = a[turned], a[turned]
    q = q[..., : k.shape[3]]
    found = decode.solve(Problem(q, k, v, **OPTIONS))
    copies = decode.solve(Problem(q, k.copy(), v.copy(), **OPTIONS))
    assert [x.tobytes() for x in found] == [x.tobytes() for x in copies]


def test_what_no_row_sees_is_not_read() -> None:
    q, k, v = drawn(2, 4, 1, 8), drawn(2, 2, 700, 8), drawn(2, 2, 700, 12)
    mask = Padding((300, 513)) & Window(200, None, BOTTOM)
    clean = decode.solve(Problem(q, k, v, **OPTIONS | {"mask": mask}))
    k[0, :, 300:], v[1, :, 513:], v[0, :, :400], k[1, :, :400] = np.nan, np.inf, np.nan, np.inf
    k[0, :, :300][:, : 700 - 201] = np.nan
    found = decode.solve(Problem(q, k, v, **OPTIONS | {"mask": mask}))
    assert [x.tobytes() for x in found] == [x.tobytes() for x in clean]


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(where: str, value: float) -> None:
    """Unless it is a key whose every score is -inf, which is the right answer: such a key has no weight."""
    x = {"q": drawn(1, 2, 1, 8), "k": drawn(1, 2, 300, 8), "v": drawn(1, 2, 300, 12)}
    x[where][0, 1, -1, 5] = value
    out, lse, _, _ = decode.solve(Problem(**x, **OPTIONS))
    shows = not (np.isfinite(out).all() and np.isfinite(lse).all())
    dropped = where == "k" and value * x["q"][0, 1, 0, 5] == -np.inf
    assert shows != dropped


def test_few() -> None:
    """A matter of the number of queries alone: heads of a group fill no lanes of a tile."""
    for Lq in (0, 1, 2, 4, 5, 8, 9, 16, 17):
        problem = Problem(drawn(1, 8, Lq, 4), drawn(1, 1, 3, 4), drawn(1, 1, 3, 4), **OPTIONS)
        assert decode.few(problem) == (4 * Lq <= problem.wide)


NARROW = [
    PLAIN,
    replace(PLAIN, Lq=3, Lk=300, D=7, Dv=3, mask=Causal(BOTTOM), sinks="normal"),
    replace(PLAIN, Lq=2, Lk=300, D=33, Dv=66, mask=Dilated(9, 3, BOTTOM), bias=BiasSpec("HQK"), softcap=3.0),
]
CHILD = """
import json, sys
sys.path.insert(0, "tests")
from test_flash_decode import check
from refattn.case import Case
from refattn.flash import vectors
for case in json.load(sys.stdin):
    check(Case.from_json(case))
print(vectors.BITS)
"""


@pytest.mark.parametrize("bits", [128, 256])
def test_narrower_vectors(bits: int) -> None:
    dtype = dtype_of(bits)
    cases = [replace(case, dtype=dtype, out_dtype=dtype).to_json() for case in NARROW]
    assert in_child(CHILD, json.dumps(cases), REFATTN_FLASH_BITS=str(bits)) == f"{bits}\n"
