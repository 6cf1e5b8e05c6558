import numpy as np
import pytest
from hypothesis import given, settings
from tiny_attention import attention

from refattn import assert_attention
from refattn.masks import Causal
from refattn.strategies import problems


@pytest.mark.parametrize("lq, lk", [(1, 1), (17, 17), (5, 40)])
def test_causal(lq, lk):
    rng = np.random.default_rng(lk)
    q, k, v = (rng.standard_normal((2, heads, length, 8), np.float32) for heads, length in ((6, lq), (3, lk), (3, lk)))
    mask = np.tril(np.ones((lq, lk), bool), lk - lq)
    out, lse = attention(q, k, v, mask)
    assert_attention(out, q, k, v, lse=lse, causal="bottom_right")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    problem=problems(
        features=["mask", "gqa", "Lq!=Lk"], dtypes=["float32"], families=["peaked"], lengths=(1, 17, 40)
    )
)
def test_random(problem):
    case, arrays = problem.case, problem.fresh()
    q, k, v = (arrays[name] for name in "qkv")
    mask = None if case.mask is None else case.visibility.tile()
    out, lse = attention(q, k, v, mask)
    assert_attention(out, q, k, v, lse=lse, mask=case.mask)


def test_a_mask_by_name():
    """The picture of a mask is what it hides."""
    x = np.eye(4, dtype=np.float32)[None, None]
    out, _ = attention(x, x, x, Causal("top_left").dense(1, 1, 4, 4))
    assert_attention(out, x, x, x, mask=Causal("top_left"))
