"""The seed's scaled_dot_product_attention, and multi-head attention of Vaswani et al. 2017, section 3.2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from refattn import attention, multi_head_attention, scaled_dot_product_attention

Array = np.ndarray[Any, Any]


def _rows(Q: Array, K: Array, V: Array, mask: Array | None) -> tuple[Array, Array]:
    """Equation 1 for matrices, row by row: scores over sqrt(d_k), -1e9 where mask == 0, softmax, times V."""
    weights = np.zeros((len(Q), len(K)))
    for i in range(len(Q)):
        scores = [sum(Q[i, d] * K[j, d] for d in range(Q.shape[1])) / math.sqrt(Q.shape[1]) for j in range(len(K))]
        if mask is not None:
            scores = [-1e9 if mask[i, j] == 0 else s for j, s in enumerate(scores)]
        e = [math.exp(s - max(scores)) for s in scores]
        weights[i] = [x / sum(e) for x in e]
    output = [[sum(w * V[j, d] for j, w in enumerate(row)) for d in range(V.shape[1])] for row in weights]
    return np.array(output), weights


@pytest.fixture
def qkv() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(6)
    return rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 6, 5)), rng.standard_normal((2, 3, 6, 2))


@pytest.mark.parametrize("kind", [None, bool, np.int64, np.float32])
def test_the_seed(qkv: tuple[Array, Array, Array], kind: Any) -> None:
    """(output, weights) over any leading dimensions; the mask may be of any type, 0 hides."""
    Q, K, V = qkv
    mask = None if kind is None else (np.random.default_rng(7).random((4, 6)) < 0.6).astype(kind)
    if mask is not None:
        mask[1] = 0
    output, weights = scaled_dot_product_attention(Q, K, V, mask)
    assert output.shape == (2, 3, 4, 2) and weights.shape == (2, 3, 4, 6)
    for b, h in np.ndindex(2, 3):
        for got, expected in zip((output[b, h], weights[b, h]), _rows(Q[b, h], K[b, h], V[b, h], mask), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-15)
    np.testing.assert_array_equal(output, weights @ V)
    one, _ = scaled_dot_product_attention(Q[0, 0], K[0, 0], V[0, 0], mask)
    np.testing.assert_allclose(one, output[0, 0], rtol=1e-13)


def test_where_the_seed_agrees_with_the_oracle(qkv: tuple[Array, Array, Array]) -> None:
    """Rows that see a key, scores far above -1e9: then exp(-1e9 - m) is 0 and -1e9 is as good as -inf."""
    causal = np.tril(np.ones((4, 6), dtype=bool))
    np.testing.assert_allclose(
        scaled_dot_product_attention(*qkv, causal)[0], attention(*qkv, mask=causal).out, rtol=1e-13, atol=1e-15
    )
    # M of the seed: 0 for j <= i, -inf for j > i, added to the scores
    M = np.where(causal, 0.0, -np.inf)
    np.testing.assert_array_equal(attention(*qkv, bias=M).out, attention(*qkv, mask=causal).out)


def test_where_minus_1e9_is_not_minus_infinity(qkv: tuple[Array, Array, Array]) -> None:
    Q, K, V = qkv
    # every key masked: the mean of V, where the oracle gives 0
    nothing = np.zeros((4, 6), dtype=bool)
    output, weights = scaled_dot_product_attention(Q, K, V, nothing)
    np.testing.assert_allclose(weights, 1 / 6, rtol=1e-15)
    np.testing.assert_allclose(output, np.broadcast_to(V.mean(2, keepdims=True), output.shape), rtol=1e-13)
    assert (attention(Q, K, V, mask=nothing).out == 0).all()
    # a visible score of -2e9 loses to a masked key of -1e9
    q, k, v = np.array([[1.0]]), np.array([[-2e9], [0.0]]), np.array([[3.0], [5.0]])
    mask = np.array([[True, False]])
    assert scaled_dot_product_attention(q, k, v, mask)[0].item() == 5
    assert attention(q[None, None], k[None, None], v[None, None], mask=mask).out.item() == 3
    # NaN in a masked value: 0 * NaN leaks here, and nowhere in the oracle
    v[1] = np.nan
    assert np.isnan(scaled_dot_product_attention(q, np.array([[2.0], [0.0]]), v, mask)[0].item())


def test_multi_head_against_a_loop_over_heads(qkv: tuple[Array, Array, Array]) -> None:
    """Section 3.2.2: Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q[i], K W_K[i], V W_V[i])."""
    rng = np.random.default_rng(8)
    Q, K, V = (rng.standard_normal((2, n, 6)) for n in (4, 5, 5))
    W_Q, W_K, W_V = (rng.standard_normal((3, 6, d)) for d in (2, 2, 7))
    W_O = rng.standard_normal((3 * 7, 6))
    mask = np.tril(np.ones((4, 5), dtype=bool))
    for m in (None, mask):
        expected = []
        for b in range(2):
            heads = [scaled_dot_product_attention(Q[b] @ W_Q[i], K[b] @ W_K[i], V[b] @ W_V[i], m)[0] for i in range(3)]
            expected.append(np.concatenate(heads, axis=-1) @ W_O)
        got = multi_head_attention(Q, K, V, W_Q, W_K, W_V, W_O, mask=m)
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_one_head_with_identity_projections_is_attention(qkv: tuple[Array, Array, Array]) -> None:
    x = qkv[0][0]  # three sequences of four tokens, d_model = 5
    eye = np.eye(5)[None]
    got = multi_head_attention(x, x, x, eye, eye, eye, np.eye(5))
    np.testing.assert_allclose(got, scaled_dot_product_attention(x, x, x)[0], rtol=1e-13)


def test_heads_take_their_own_rows_of_the_output_projection() -> None:
    """Weights 1/2, 1/2 (W_Q = 0); head i picks component i of V and W_O swaps the two heads."""
    V = np.array([[[2.0, 10.0], [4.0, 30.0]]])
    zero, pick = np.zeros((2, 2, 1)), np.eye(2)[:, :, None]
    got = multi_head_attention(V, V, V, zero, zero, pick, np.array([[0.0, 1.0], [1.0, 0.0]]))
    np.testing.assert_array_equal(got, [[[20.0, 3.0], [20.0, 3.0]]])
