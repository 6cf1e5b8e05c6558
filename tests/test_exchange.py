"""Arrays cross to torch and back bit for bit, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import plain_functions as plain
import pytest

from refattn.calling import call
from refattn.case import Cache, Case, Packed, Paged, Shared, Strided
from refattn.dtypes import FORMATS
from refattn.exchange import from_torch, is_torch, to_torch
from refattn.implementation import implementation
from refattn.inputs import make
from refattn.judge import judge
from refattn.masks import Causal
from refattn.quantise import Quant
from refattn.rotary import Rotary

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_pattern_survives(name: str) -> None:
    dtype = FORMATS[name].dtype
    bits = np.random.default_rng(5).integers(0, 256, 6 * 40 * dtype.itemsize, dtype=np.uint8)
    x = bits.view(dtype).reshape(2, 3, 40).transpose(2, 0, 1)
    tensor = to_torch(x)
    assert str(tensor.dtype) == f"torch.{name}" and tensor.shape == x.shape and not tensor.requires_grad
    back = from_torch(tensor)
    assert back.dtype == dtype and back.strides == x.strides
    assert back.tobytes() == x.tobytes()
    assert np.shares_memory(back, x)


@pytest.mark.parametrize("name", FORMATS)
def test_values_agree(name: str) -> None:
    x = np.array([0.0, -1.5, 2.0, 448.0]).astype(FORMATS[name].dtype)
    assert to_torch(x).to(torch.float64).tolist() == x.astype(np.float64).tolist()


def test_writing_to_the_tensor_is_seen() -> None:
    x = np.zeros(3, FORMATS["bfloat16"].dtype)
    to_torch(x)[1] = 2
    assert x.tolist() == [0, 2, 0]


def test_detached_and_other_dtypes() -> None:
    assert from_torch(torch.ones(2, requires_grad=True) * 2).tolist() == [2, 2]
    assert from_torch(torch.arange(3)).dtype == np.int64
    assert from_torch(torch.zeros(0, 3, dtype=torch.bfloat16)).shape == (0, 3)
    assert is_torch(torch.nn.Parameter(torch.ones(1))) and not is_torch(np.ones(1))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64"])
def test_tables_codes_and_masks(dtype: str) -> None:
    """block_table, cu_seqlens, codes, keep: of any strides, without a copy."""
    x = np.array([[0, 1, 3], [2, -1, 127]]).astype(dtype)[:, 1:]
    tensor = to_torch(x)
    assert str(tensor.dtype) == f"torch.{dtype}" and tensor.tolist() == x.tolist()
    back = from_torch(tensor)
    assert back.dtype == x.dtype and back.strides == x.strides and np.shares_memory(back, x)


def test_a_view_stays_a_view() -> None:
    """v within k, and rows far apart, as `Shared` and `Strided` hand them over."""
    k = np.arange(24.0).reshape(4, 6).astype(FORMATS["bfloat16"].dtype)
    whole, part = to_torch(k), to_torch(k[:, :2])
    whole[2, 1] = -1
    assert part[2, 1] == -1 and part.stride() == (6, 1)
    far = np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), (4, 3), (64, 4))
    assert to_torch(far).stride() == (16, 1)


def test_refuses_other_dtypes_by_name() -> None:
    with pytest.raises(TypeError, match="x.dtype=complex64 is not a supported dtype; use one of float64"):
        to_torch(np.zeros(3, np.complex64))


HANDED = [
    {"storage": Packed(1), "q_lens": (3, 2)}, {"storage": Paged(2)}, {"storage": Cache()}, {"storage": Shared()},
    {"storage": Strided(64)}, {"quant": Quant("float8_e4m3fn", "head"), "dtype": "bfloat16"}, {"dropout": 0.5},
    {"rotary": Rotary(4, True)}, {"score_mod": "tilt", "mask": Causal("top_left")},
]  # fmt: skip


@pytest.mark.parametrize("fields", HANDED, ids=lambda fields: next(iter(map(repr, fields.values()))))
def test_a_torch_function_gets_tensors_alone(fields: dict[str, Any]) -> None:
    """Tables, codes and masks too; what it returns is judged as any answer."""
    case = Case("x", "torch", B=2, H=2, Hkv=2, Lq=3, Lk=6, D=8, Dv=8, family="peaked", **fields)
    function = {
        Packed: plain.packed, Paged: plain.paged, Cache: plain.cached, Shared: plain.dense, Strided: plain.dense,
    }.get(type(case.storage), plain.coded if case.quant else plain.dropped if case.dropout else None)  # fmt: skip
    function = function or (plain.rotated if case.rotary else plain.modified)

    @implementation("of torch", arrays="torch")
    def candidate(q: Any, k: Any, v: Any, **options: Any) -> Any:
        assert all(isinstance(x, torch.Tensor) for x in (q, k, v, *options.values()) if hasattr(x, "shape"))
        arrays = {name: from_torch(x) if is_torch(x) else x for name, x in options.items()}
        found = function(*map(from_torch, (q, k, v)), **arrays)
        return to_torch(found["out"] if isinstance(found, dict) else found[0] if isinstance(found, tuple) else found)

    answer = call(candidate, make(case))
    assert answer.kind == "answer" and not answer.findings, answer
    assert judge(make(case), answer, candidate.precision(case), candidate.conventions).status == "passed"
