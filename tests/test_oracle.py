"""The oracle: values worked by hand."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from refattn import attention, attention_grad
from refattn.dtypes import FORMATS
from refattn.masks import Causal, Padding, Visibility
from refattn.oracle import attention_scores
from refattn.score_mods import SCORE_MODS

Array = np.ndarray[Any, Any]
LOG3, LOG4, LOG8 = math.log(3), math.log(4), math.log(8)


def column(*values: float) -> Array:
    """(1, 1, L, 1): one number for each token of one head."""
    return np.array(values, dtype=np.float64).reshape(1, 1, -1, 1)


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-14)


# --- by hand: scores 0 and log 3 weigh 1 : 3 ---------------------------------------------------

ONE, KEYS, VALUES = column(1), column(0, LOG3), column(4, 8)


def test_two_keys() -> None:
    out, lse = attention(ONE, KEYS, VALUES)
    close(out.item(), (1 * 4 + 3 * 8) / 4)  # = 7
    close(lse.item(), LOG4)  # exp(0) + exp(log 3) = 4
    # dp = dout v = (4, 8), delta = 7, ds = p (dp - delta) = (1/4 (4 - 7), 3/4 (8 - 7)) = (-3/4, 3/4)
    g = attention_grad(ONE, KEYS, VALUES, column(1))
    close(g.dv.ravel(), [1 / 4, 3 / 4])
    close(g.dk.ravel(), [-3 / 4, 3 / 4])  # ds q, q = 1
    close(g.dq.ravel(), [3 / 4 * LOG3])  # -3/4 * 0 + 3/4 * log 3
    assert g.dbias is None and g.dsinks is None and g.dsoftcap is None
    close(g.dscale, 3 / 4 * LOG3)  # sum of ds q k
    # dlse = 1 alone: ds = p
    g = attention_grad(ONE, KEYS, VALUES, column(0), np.ones((1, 1, 1)))
    close(g.dk.ravel(), [1 / 4, 3 / 4])
    close(g.dv.ravel(), [0, 0])


def test_two_query_heads_share_a_key_head() -> None:
    """H = 4, Hkv = 2: heads 0 and 1 read key head 0, heads 2 and 3 read key head 1."""
    q = np.ones((1, 4, 1, 1))
    k = np.concatenate([column(0, LOG3), column(LOG3, 0)], axis=1)
    v = np.concatenate([column(4, 8), column(40, 80)], axis=1)
    # head 0: (4 + 3 * 8) / 4 = 7;  head 2: (3 * 40 + 80) / 4 = 50
    close(attention(q, k, v).out.ravel(), [7, 7, 50, 50])
    g = attention_grad(q, k, v, np.ones((1, 4, 1, 1)))
    # each key head collects from its two query heads: 2 * (1/4, 3/4) and 2 * (3/4, 1/4)
    close(g.dv.ravel(), [1 / 2, 3 / 2, 3 / 2, 1 / 2])
    # ds of key head 1: 3/4 (40 - 50) = -7.5 and 1/4 (80 - 50) = 7.5, again twice
    close(g.dk.ravel(), [-3 / 2, 3 / 2, -15, 15])
    close(g.dq.ravel(), [3 / 4 * LOG3, 3 / 4 * LOG3, -7.5 * LOG3, -7.5 * LOG3])


def test_softcap() -> None:
    """softcap c = 2 log 3 and score c atanh(1/2) = log 3 * log 3 give c tanh = log 3 with slope 1 - 1/4."""
    c, k = 2 * LOG3, column(0, LOG3 * LOG3)
    out, lse = attention(ONE, k, VALUES, softcap=c)
    close([out.item(), lse.item()], [7, LOG4])
    g = attention_grad(ONE, k, VALUES, column(1), softcap=c)
    close(g.dk.ravel(), [-3 / 4 * 1, 3 / 4 * 3 / 4])  # at score 0 the slope is 1
    close(g.dq.ravel(), [9 / 16 * LOG3 * LOG3])
    close(g.dscale, 9 / 16 * LOG3 * LOG3)
    # z = atanh(1/2) = log(3) / 2: d(c tanh(s/c))/dc = tanh z - z / cosh² z = 1/2 - log(3)/2 * 3/4
    close(g.dsoftcap, 3 / 4 * (1 / 2 - LOG3 / 2 * 3 / 4))


class Squared:
    """s², and log 3 on top where h, i, j are 1, 0, 1 in batch entry 0."""

    def __call__(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * s + LOG3 * ((b == 0) & (h == 1) & (i == 0) & (j == 1))

    def slope(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 2 * s


def test_score_mod() -> None:
    """Scores 0 and -sqrt(log 3) become 0 and log 3, of slope -2 sqrt(log 3)."""
    root = LOG3**0.5
    k = column(0, -root)
    out, lse = attention(ONE, k, VALUES, score_mod=Squared())
    close([out.item(), lse.item()], [7, LOG4])
    g = attention_grad(ONE, k, VALUES, column(1), score_mod=Squared(), bias=np.zeros(2))
    assert g.dbias is not None
    close(g.dbias, [-3 / 4, 3 / 4])
    close(g.dk.ravel(), [0, 3 / 4 * -2 * root])
    close([g.dq.item(), g.dscale], [3 / 4 * 2 * LOG3] * 2)


def test_score_mod_knows_its_place() -> None:
    """Weights 1 : 1 but in batch entry 0, head 1, row 0, where key 1 weighs 3."""
    zeros, values = np.zeros((2, 2, 2, 1)), np.broadcast_to(VALUES, (2, 2, 2, 1))
    out = attention(zeros, zeros, values, score_mod=Squared()).out
    close(out.ravel(), [6, 6, 7, 6, 6, 6, 6, 6])


def test_softcap_then_score_mod_then_bias() -> None:
    """tanh caps 100 to 1/2, of which the modifier makes 4, and the bias log(3) - 4 log 3."""
    k, mod = column(0, 100), SCORE_MODS["tilt"]
    scores = attention_scores(ONE, k, softcap=0.5, score_mod=lambda s, *_: 8 * s, bias=np.array([0, LOG3 - 4]))
    close(scores.scores.ravel(), [0, 100])
    close(scores.capped.ravel(), [0, 4])
    close(scores.biased.ravel(), [0, LOG3])
    close(scores.weights.ravel(), [1 / 4, 3 / 4])
    close(attention_scores(np.ones((2, 4, 1, 1)), np.ones((2, 2, 1, 1)), score_mod=mod).capped[1, 3], 1 + 3 / 4 + 1 / 8)


def test_scores_where_keys_are_hidden() -> None:
    """Hidden keys have scores, and no weight; the sink takes its share."""
    mask = np.array([[False, True], [False, False]])
    made = attention_scores(column(1, 1), KEYS, mask=mask, sinks=[LOG3])
    close(made.scores[0, 0], [[0, LOG3], [0, LOG3]])
    close(made.biased[0, 0], [[-np.inf, LOG3], [-np.inf, -np.inf]])
    close(made.weights[0, 0], [[0, 1 / 2], [0, 0]])


def test_dropout() -> None:
    """Weights 1/4 and 3/4, the first dropped at p = 1/4: out = 3/4 * 4/3 * 8 = 8."""
    options: dict[str, Any] = {"dropout": 0.25, "keep": np.array([False, True])}
    out, lse = attention(ONE, KEYS, VALUES, **options)
    close([out.item(), lse.item()], [8, LOG4])
    # dp = (0, 4/3 * 8), delta = 8: dt = (1/4 (0 - 8), 3/4 (32/3 - 8)) = (-2, 2)
    g = attention_grad(ONE, KEYS, VALUES, column(1), **options)
    close(g.dv.ravel(), [0, 1])
    close(g.dk.ravel(), [-2, 2])
    close([g.dq.item(), g.dscale], [2 * LOG3] * 2)
    # dlse alone sees no dropout
    g = attention_grad(ONE, KEYS, VALUES, column(0), np.ones((1, 1, 1)), **options)
    close(g.dk.ravel(), [1 / 4, 3 / 4])


def test_dropout_of_all_and_of_none() -> None:
    every = attention_grad(ONE, KEYS, VALUES, column(1), dropout=1.0, keep=np.zeros(2, bool))
    assert attention(ONE, KEYS, VALUES, dropout=1.0, keep=np.zeros(2, bool)).out.item() == 0
    assert not any(np.any(d) for d in every if d is not None)
    close(attention(ONE, KEYS, VALUES, dropout=0.0, keep=np.ones(2, bool)).out.item(), 7)


def test_dropout_spares_sinks() -> None:
    """Weights 1 : 3 : 4, the keys dropped at p = 1/2: out = 2 * 3/8 * 16, the sink has its half of delta."""
    g = attention_grad(ONE, KEYS, column(8, 16), column(1), sinks=[LOG4], dropout=0.5, keep=np.array([False, True]))
    assert g.dsinks is not None
    close(g.dsinks, [-1 / 2 * 12])


def test_softcap_comes_before_bias() -> None:
    """Score 0 stays 0 under any cap, a bias of log 3 is not capped by 1/2."""
    out = attention(ONE, column(0, 0), VALUES, softcap=0.5, bias=np.array([0, LOG3])).out
    close(out.item(), 7)


def test_sink() -> None:
    """Scores 0, log 3 and a sink of log 4 weigh 1 : 3 : 4."""
    v, sinks = column(8, 16), np.array([LOG4])
    out, lse = attention(ONE, KEYS, v, sinks=sinks)
    close([out.item(), lse.item()], [(1 * 8 + 3 * 16) / 8, LOG8])  # = 7
    # dout = 2, dlse = 1: dp = (16, 32), delta = 14, dlse - delta = -13
    # dt = (1/8 (16 - 13), 3/8 (32 - 13)) = (3/8, 57/8);  the sink: 4/8 * -13
    g = attention_grad(ONE, KEYS, v, column(2), np.ones((1, 1, 1)), sinks=sinks, bias=np.zeros((1, 2)))
    assert g.dbias is not None and g.dsinks is not None
    close(g.dbias.ravel(), [3 / 8, 57 / 8])
    close(g.dsinks, [-6.5])
    close(g.dbias.sum() + g.dsinks.sum(), 1)  # shifting every logit by x adds x to lse
    close(g.dv.ravel(), [2 / 8, 6 / 8])


def test_bias_is_broadcast_and_its_gradient_summed() -> None:
    """Two equal rows share the bias (0, log 3, -inf); -inf hides the third key, NaN and all."""
    q, k, v = column(0, 0), column(0, 0, np.nan), column(4, 8, np.nan)
    bias = np.array([0, LOG3, -np.inf])
    close(attention(q, k, v, bias=bias).out.ravel(), [7, 7])
    g = attention_grad(q, k, v, column(1, 10), bias=bias)
    assert g.dbias is not None
    close(g.dbias, [-3 / 4 * 11, 3 / 4 * 11, 0])
    g = attention_grad(q, k, v, column(1, 10), bias=bias.reshape(1, 1, 1, 3))
    assert g.dbias is not None and g.dbias.shape == (1, 1, 1, 3)
    shared = attention_grad(q, k[:, :, :2], v[:, :, :2], column(1, 10), bias=np.array(5.0)).dbias
    assert shared is not None and shared.shape == ()
    close(shared, 0)  # a bias common to all keys changes no weight


@pytest.mark.parametrize("scale", [0.0, -1.0, 2.0, None])
def test_scale(scale: float | None) -> None:
    """q · k = (0, log 3) and D = 4: None is 1/2, 0 forgets the scores, -1 turns them round."""
    q, k = np.ones((1, 1, 1, 4)), np.zeros((1, 1, 2, 4))
    k[0, 0, 1, 0] = LOG3
    weight = math.exp((0.5 if scale is None else scale) * LOG3)
    out, lse = attention(q, k, VALUES, scale=scale)
    close([out.item(), lse.item()], [(4 + 8 * weight) / (1 + weight), math.log(1 + weight)])


def test_a_row_that_sees_nothing() -> None:
    """out 0, lse -inf, gradients 0, whatever arrives; with a sink: lse = sink, dsinks = dlse."""
    q, dout, dlse = column(np.nan, 1), column(np.nan, 1), np.array([[[np.nan, 0.0]]])
    mask = np.array([[False, False], [True, True]])
    out, lse = attention(q, KEYS, VALUES, mask=mask)
    close(out.ravel(), [0, 7])
    close(lse.ravel(), [-np.inf, LOG4])
    g, alone = attention_grad(q, KEYS, VALUES, dout, dlse, mask=mask), attention_grad(ONE, KEYS, VALUES, column(1))
    close(g.dq.ravel(), [0, alone.dq.item()])
    close(g.dk, alone.dk)
    close(g.dv, alone.dv)
    dlse[0, 0, 0] = 3
    out, lse = attention(q, KEYS, VALUES, mask=mask, sinks=np.array([LOG4]))
    close([out[0, 0, 0, 0], lse[0, 0, 0]], [0, LOG4])
    g = attention_grad(q, KEYS, VALUES, dout, dlse, mask=mask, sinks=np.array([LOG4]))
    close(g.dq[0, 0, 0], 0)
    # row 1: out = (4 + 24) / 8 = 3.5 = delta, so its sink gets 4/8 * -3.5
    close(g.dsinks, [3 - 1.75])
    none = attention(q, KEYS, VALUES, mask=mask, sinks=np.array([-np.inf]))
    close(none.lse.ravel(), [-np.inf, LOG4])  # a sink of -inf is none


@pytest.mark.parametrize("size", ["B", "H", "Lq", "Lk", "D", "Dv"])
def test_sizes_of_zero(size: str) -> None:
    n = {"B": 2, "H": 4, "Lq": 3, "Lk": 5, "D": 2, "Dv": 6} | {size: 0}
    rng = np.random.default_rng(0)
    q = rng.standard_normal((n["B"], n["H"], n["Lq"], n["D"]))
    k = rng.standard_normal((n["B"], n["H"] // 2, n["Lk"], n["D"]))
    v = rng.standard_normal((n["B"], n["H"] // 2, n["Lk"], n["Dv"]))
    sinks, bias = np.zeros(n["H"]), np.zeros((n["H"], 1, 1))
    every: dict[str, Any] = {"sinks": sinks, "bias": bias, "softcap": 2.0, "mask": Causal("bottom_right")}
    for options in ({}, every):
        out, lse = attention(q, k, v, **options)
        assert out.shape == (*q.shape[:3], n["Dv"]) and lse.shape == q.shape[:3]
        g = attention_grad(q, k, v, np.ones_like(out), np.ones_like(lse), **options)
        assert [g.dq.shape, g.dk.shape, g.dv.shape] == [q.shape, k.shape, v.shape]
        assert not options or (g.dbias is not None and g.dbias.shape == bias.shape)
        assert not options or (g.dsinks is not None and g.dsinks.shape == sinks.shape)
    if size == "Lk":
        assert (attention(q, k, v).out == 0).all() and (attention(q, k, v).lse == -np.inf).all()
    if size == "D":  # every score is 0, scale=None is 1
        close(attention(q, k, v).out, np.broadcast_to(np.repeat(v, 2, 1).mean(2, keepdims=True), (2, 4, 3, 6)))


@pytest.mark.parametrize("largest", [1e3, 1e16, 1e300])
def test_no_overflow_at_large_logits(largest: float) -> None:
    """Logits of +-largest: the largest wins, ties share, a sink of that size counts in full."""
    q, k = column(largest**0.5), column(*(largest**0.5 * np.array([1, -1, 1])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, lse = attention(q, k, column(4, 5, 8), scale=1.0)
        tied = attention_grad(q, k, column(4, 5, 8), column(1), scale=1.0)
        g = attention_grad(
            ONE, column(0, 0), VALUES, column(1), np.full((1, 1, 1), 9.0), bias=largest * np.ones(2), sinks=[largest]
        )
    close(out.item(), 6)
    close(lse.item(), largest + math.log(2))
    close(tied.dv.ravel(), [0.5, 0, 0.5])
    # weights 1/3 for each key and for the sink; out = 4, so the sink gets (9 - 4) / 3
    close(g.dsinks, [5 / 3])
    close(g.dbias, [(4 - 4 + 9) / 3, (8 - 4 + 9) / 3])


def test_softcap_far_in_saturation_keeps_its_slope() -> None:
    """tanh(30) is 1 in float64, its slope 4 exp(-60) is not 0."""
    g = attention_grad(ONE, column(30, 0), VALUES, column(1), scale=1.0, softcap=1.0)
    p = math.e / (math.e + 1)
    ds = p * (1 - p) * (4 - 8)
    np.testing.assert_allclose(g.dk.ravel(), [ds * 4 * math.exp(-60), -ds], rtol=1e-12)


def test_masks_that_are_objects() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 3, n, 4)) for n in (5, 7, 7))
    mask = Causal("bottom_right") & Padding((7, 4))
    for one, other in (
        (mask, mask.dense(2, 3, 5, 7)),
        (Visibility(mask, 2, 3, 5, 7, k_lens=(6, 5)), Visibility(mask, 2, 3, 5, 7, k_lens=(6, 5)).tile()),
    ):
        np.testing.assert_array_equal(attention(q, k, v, mask=one).out, attention(q, k, v, mask=other).out)
    by_head = rng.random((3, 1, 7)) < 0.5
    full = np.broadcast_to(by_head, (2, 3, 5, 7))
    np.testing.assert_array_equal(attention(q, k, v, mask=by_head).out, attention(q, k, v, mask=full).out)


@pytest.mark.parametrize("dtype", FORMATS)
def test_inputs_are_upcast_exactly_and_left_alone(dtype: str) -> None:
    rng = np.random.default_rng(2)
    q, k, v, dout, bias, sinks = (
        rng.standard_normal(s).astype(FORMATS[dtype].numpy)
        for s in ((1, 2, 3, 4), (1, 1, 5, 4), (1, 1, 5, 2), (1, 2, 3, 2), (3, 5), (2,))
    )
    given = (q, k, v, dout, bias, sinks)
    before = [x.tobytes() for x in given]
    wide = [x.astype(np.float64) for x in given]
    for x in given:
        x.setflags(write=False)
    got: list[Any] = [
        *attention(q, k, v, bias=bias, sinks=sinks, softcap=2.0),
        *attention_grad(q, k, v, dout, bias=bias, sinks=sinks, softcap=2.0),
    ]
    expected: list[Any] = [
        *attention(*wide[:3], bias=wide[4], sinks=wide[5], softcap=2.0),
        *attention_grad(*wide[:4], bias=wide[4], sinks=wide[5], softcap=2.0),
    ]
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == np.float64
        np.testing.assert_array_equal(x, y)
    assert before == [x.tobytes() for x in given]
