"""Arrays cross to torch and back bit for bit, without a copy."""

from __future__ import annotations

import numpy as np
import pytest

from refattn.dtypes import FORMATS
from refattn.exchange import from_torch, is_torch, to_torch

torch = pytest.importorskip("torch")


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


def test_refuses_other_dtypes_by_name() -> None:
    with pytest.raises(TypeError, match="x.dtype=int64"):
        to_torch(np.arange(3))
