"""Every storage, there and back: what is given and taken is the same, and so is what is answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.case import BiasSpec, Cache, Case, Dense, Packed, Paged, Shared, Strided
from refattn.dtypes import FORMATS
from refattn.memory import answer_shape, extra_names, give, give_answer, take, take_answer
from refattn.quantise import Quant
from refattn.rotary import Rotary

Array = np.ndarray[Any, Any]
quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)
STORAGES = (Dense, Strided, Shared, Packed, Paged, Cache)
QUERIES, KEYS = ("q", "dout", "out", "dq"), ("k", "v", "dk", "dv")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small cases of every storage; lengths from 0 on, where the storage allows it."""
    kind = draw(st.sampled_from(STORAGES))
    B, Hkv, group = draw(st.integers(int(kind is Cache), 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    Lq, Lk = draw(st.integers(0, 5)), draw(st.integers(0, 9))
    D, Dv = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    q_lens, k_lens = (st.none() | st.tuples(*[st.integers(0, n)] * B) for n in (Lq, Lk))
    fields: dict[str, Any] = {"q_lens": draw(q_lens), "k_lens": draw(k_lens)}
    size = draw(st.integers(1, 4))
    storage: Any = {Dense: Dense("".join(draw(st.permutations("BHLD")))), Shared: Shared()}.get(kind)
    storage = storage or kind(size if kind in (Strided, Paged) else size - 1)
    if kind is Shared:
        D = max(D, Dv)
    if kind is Cache:
        Lk = max(Lk, Lq)
        fields = {"k_lens": draw(st.none() | st.tuples(*[st.integers(Lq, Lk)] * B))}
    return Case(
        "memory", "there and back", B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, D=D, Dv=Dv,
        dtype=draw(st.sampled_from(["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])), storage=storage,
        seed=draw(st.integers(0, 99)), bias=draw(st.none() | st.just(BiasSpec("HQK"))),
        sinks=draw(st.none() | st.just("normal")), **fields,
    )  # fmt: skip


def numbered(shape: tuple[int, ...], dtype: Any) -> Array:
    """Numbers none of which is 0, as different as the dtype has them."""
    count = np.arange(np.prod(shape, dtype=int))
    return (count % (100 if np.dtype(dtype).itemsize == 1 else 2000) + 1).reshape(shape).astype(dtype)


def dense_of(case: Case) -> dict[str, Array]:
    dtype = FORMATS[case.dtype].numpy
    shapes = {
        "q": (case.B, case.H, case.Lq, case.D), "k": (case.B, case.Hkv, case.Lk, case.D),
        "v": (case.B, case.Hkv, case.Lk, case.Dv), "dout": (case.B, case.H, case.Lq, case.Dv),
    }  # fmt: skip
    dense = {name: numbered(shape, dtype) for name, shape in shapes.items()}
    if isinstance(case.storage, Shared):
        dense["v"] = dense["k"][..., : case.Dv].copy()
    if case.bias is not None:
        dense["bias"] = numbered(case.bias_shape, np.float32)
    if case.sinks is not None:
        dense["sinks"] = numbered((case.H,), dtype)
    dense["dlse"] = numbered((case.B, case.H, case.Lq), np.float32)
    dense["keep"] = np.arange(case.scores).reshape(case.B, case.H, case.Lq, case.Lk) % 3 == 0
    return dense


def existing(case: Case, name: str, x: Array) -> Array:
    """x, 0 where a storage has no place for it."""
    lens = case.k_lens if name in (*KEYS, "k_cache", "v_cache") else case.q_lens
    only = KEYS if isinstance(case.storage, (Paged, Cache)) else (*QUERIES, *KEYS, "lse", "dlse")
    if lens is None or name not in only or isinstance(case.storage, (Dense, Strided, Shared)):
        return x
    y = x.copy()
    for b, n in enumerate(lens):
        y[b, :, n:] = 0
    return y


def same_bits(x: Array, y: Array) -> bool:
    """Dtype, shape and every bit; NaN included."""
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@quick
@given(cases())
def test_what_is_given_is_taken(case: Case) -> None:
    dense = dense_of(case)
    handed = give(case, dense)
    for name in set(handed) - set(extra_names(case)):
        assert handed[name].flags.writeable and handed[name].dtype == dense[name].dtype
        assert not np.shares_memory(handed[name], dense[name])
    assert set(handed) == set(dense) | set(extra_names(case))
    taken = take(case, handed)
    for name, x in dense.items():
        assert same_bits(taken[name], existing(case, name, x)), name


@quick
@given(cases())
def test_what_is_answered_is_taken(case: Case) -> None:
    dtype = FORMATS[case.out_dtype].numpy
    own = (case.B, case.Hkv, case.Lk)
    shapes = {
        "out": (case.B, case.H, case.Lq, case.Dv), "lse": (case.B, case.H, case.Lq),
        "dq": (case.B, case.H, case.Lq, case.D), "dk": (*own, case.D), "dv": (*own, case.Dv),
        "dbias": (1, case.H, case.Lq, case.Lk), "dsinks": (case.H,), "dscale": (),
    }  # fmt: skip
    if isinstance(case.storage, Cache):
        shapes |= {"k_cache": (*own, case.D), "v_cache": (*own, case.Dv)}
    if not isinstance(case.storage, Packed):
        shapes["weights"] = (case.B, case.H, case.Lq, case.Lk)
    dense = {name: numbered(shape, dtype) for name, shape in shapes.items()}
    answer = give_answer(case, dense)
    for name, x in dense.items():
        assert answer[name].shape == answer_shape(case, name, x.shape), name
        back = take_answer(case, name, answer[name])
        expected = existing(case, name, x) if isinstance(case.storage, Packed) else x
        assert same_bits(back, expected), name


@quick
@given(cases())
def test_the_tables_alone_lead_to_everything(case: Case) -> None:
    """Token by token, as the classes of `refattn.storage` say, without their code; the rest is NaN."""
    dense = dense_of(case)
    handed = give(case, dense)
    q_lens, k_lens = case.q_lens or (case.Lq,) * case.B, case.k_lens or (case.Lk,) * case.B
    read = 0
    for b in range(case.B):
        for token in range(k_lens[b]):
            if isinstance(case.storage, Packed):
                at: Any = handed["k"][handed["cu_seqlens_k"][b] + token]
            elif isinstance(case.storage, Paged):
                size = case.storage.page_size
                at = handed["k"][handed["block_table"][b, token // size], token % size]
            elif isinstance(case.storage, Cache):
                past = handed["cache_lens"][b]
                at = handed["k_cache"][b, token] if token < past else handed["k"][b, :, token - past]
            else:
                at = handed["k"][b, :, token]
            assert same_bits(at, dense["k"][b, :, token])
            read += 1
        for token in range(q_lens[b]):
            packed = isinstance(case.storage, Packed)
            at = handed["q"][handed["cu_seqlens_q"][b] + token] if packed else handed["q"][b, :, token]
            assert same_bits(at, dense["q"][b, :, token])
    if isinstance(case.storage, Packed) and case.storage.gap:
        assert handed["seqused_q"].tolist() == list(q_lens) and handed["seqused_k"].tolist() == list(k_lens)
    if isinstance(case.storage, Paged):
        assert handed["seqused_k"].tolist() == list(k_lens)
    tables = [x for name, x in handed.items() if name in extra_names(case) and not name.endswith("_cache")]
    assert all(x.dtype == np.int32 for x in tables)
    if isinstance(case.storage, (Packed, Paged)) and case.D:
        unused = np.isnan(handed["k"].astype(np.float64)).all(-1).all(-1).sum()
        assert read + unused == np.prod(handed["k"].shape[: 1 if isinstance(case.storage, Packed) else 2])


def test_strides() -> None:
    case = Case("x", "y", B=2, H=3, Hkv=3, Lq=4, Lk=5, D=6, Dv=7, storage=Dense("LBHD"))
    q = give(case, dense_of(case))["q"]
    assert q.strides == (4 * 6 * 3, 4 * 6, 4 * 6 * 3 * 2, 4) and q.shape == (2, 3, 4, 6)
    far = Case("x", "y", B=2, H=3, Hkv=3, Lq=4, Lk=5, D=6, Dv=7, bias=BiasSpec("QK"), storage=Strided(1 << 20))
    handed = give(far, dense_of(far))
    assert all(handed[name].strides[2] == 4 << 20 and handed[name].strides[3] == 4 for name in ("q", "k", "v", "bias"))
    assert handed["q"].strides[:2] == (4 * 3 * 4 << 20, 4 * 4 << 20)
    shared = Case("x", "y", Lk=5, D=6, Dv=4, storage=Shared())
    handed = give(shared, dense_of(shared))
    handed["k"][0, 0, 2, 3] = -1
    assert handed["v"][0, 0, 2, 3] == -1 and np.shares_memory(handed["v"], handed["k"])


def test_codes_are_kept_and_unused_memory_holds_the_largest() -> None:
    for storage in (Packed(1), Paged(4)):
        case = Case("x", "y", B=2, Lk=6, D=8, k_lens=(6, 3), quant=Quant("int8", "head"), storage=storage)
        dense = dense_of(case)
        dense |= {name: numbered(dense[name].shape, np.int8) for name in "kv"}
        dense |= {f"{name}_scale": numbered((2, 1, 1, 1), np.float32) for name in "kv"}
        handed = give(case, dense)
        assert handed["k"].dtype == np.int8 and (handed["k"] == 127).any()
        assert same_bits(take(case, handed)["k"], existing(case, "k", dense["k"]))
        assert same_bits(handed["k_scale"], dense["k_scale"])


def test_extra_names() -> None:
    for fields, names in (
        ({"rotary": Rotary(4, True)}, {"cos", "sin"}),
        ({"quant": Quant("int8", "head", "qkv")}, {"q_scale", "k_scale", "v_scale"}),
        ({"storage": Packed()}, {"cu_seqlens_q", "cu_seqlens_k"}),
        ({"storage": Packed(1)}, {"cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"}),
        ({"storage": Paged()}, {"block_table", "seqused_k"}),
        ({"storage": Cache(), "rotary": Rotary(4, True)}, {"cos", "sin", "k_cache", "v_cache", "cache_lens"}),
        ({"storage": Shared()}, set()),
    ):
        assert set(extra_names(Case("x", "y", **fields))) == names  # type: ignore[arg-type]


WRONG: list[tuple[Any, str, Any]] = [
    (Paged(2), "block_table", lambda x: x[:, ::-1]),
    (Cache(2), "cache_lens", lambda x: x - 1),
    (Packed(1), "k", lambda x: np.roll(x, 1, axis=0)),
]


@pytest.mark.parametrize(("storage", "name", "wrong"), WRONG, ids=[name for _, name, _ in WRONG])
def test_a_wrong_table_is_seen(storage: Any, name: str, wrong: Any) -> None:
    """The round trip above can fail."""
    case = Case("x", "y", B=2, Lq=2, Lk=6, storage=storage)
    dense = dense_of(case)
    handed = give(case, dense)
    handed[name] = wrong(handed[name])
    assert not same_bits(take(case, handed)["k"], dense["k"])
