"""Partial results, their merge and its gradients, and the ring: all of them are whole attention in pieces."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import attention, attention_grad
from refattn.masks import Causal, Documents, Padding, SinkTokens, Window
from refattn.oracle import (
    Attention,
    merge_state,
    merge_states,
    merge_states_grad,
    ring_attention,
    ring_attention_grad,
    shards,
    split_kv,
)

Array = np.ndarray[Any, Any]
U = 2.0**-53
ORDERS: tuple[Any, ...] = ("contiguous", "zigzag")
MASKS: tuple[Any, ...] = (
    None,
    Causal("top_left"),
    Causal("bottom_right"),
    Window(1, 0, "bottom_right"),
    Window(0, 2, "top_left") | SinkTokens(1),
)


@st.composite
def _problems(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """q, k, v, dout, dlse and options; sizes from 0, dead rows, huge logits; NaN where nothing looks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    b, hkv, group = draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    lq, lk, d, dv = draw(st.integers(0, 6)), draw(st.integers(0, 7)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    h, spread = hkv * group, draw(st.sampled_from([1.0, 1.0, 30.0, 1e3]))
    x: dict[str, Any] = {
        "q": spread * rng.standard_normal((b, h, lq, d)),
        "k": rng.standard_normal((b, hkv, lk, d)),
        "v": rng.standard_normal((b, hkv, lk, dv)),
        "dout": rng.standard_normal((b, h, lq, dv)),
        "dlse": rng.standard_normal((b, h, lq)),
    }
    options: dict[str, Any] = {"scale": draw(st.sampled_from([None, -0.5]))}
    options["softcap"] = draw(st.sampled_from([None, 2.0]))
    mask = draw(st.sampled_from([*MASKS, "drawn"]))
    visible = np.ones((b, h, lq, lk), dtype=bool)
    if mask == "drawn":
        mask = rng.random((h, lq, lk)) < 0.4
        visible = np.broadcast_to(mask, visible.shape)
    elif mask is not None:
        visible = mask.dense(b, h, lq, lk)
    options["mask"] = mask
    if draw(st.booleans()):
        options["bias"] = np.where(rng.random((h, 1, lk)) < 0.2, -np.inf, rng.standard_normal((h, 1, lk)))
        visible = visible & ~np.isneginf(options["bias"])
    if draw(st.booleans()):
        options["sinks"] = np.where(rng.random(h) < 0.2, -np.inf, rng.standard_normal(h))
    unread, dead = ~visible.reshape(b, hkv, group, lq, lk).any((2, 3)), ~visible.any(-1)
    x["k"][unread], x["v"][unread] = np.nan, np.inf
    x["q"][dead], x["dout"][dead] = np.inf, np.nan
    return x, options


def _judge(x: dict[str, Any], options: dict[str, Any], got: dict[str, Array | None]) -> None:
    """Within 24 + 6 S units of the balls of the whole, as the oracle is within 16 + 3 S; S = largest sum of |terms|.

    A merge rounds lse, which is at most about S, and weighs by what is left: as much as the scores' own error again.
    """
    pytest.importorskip("flint", reason="python-flint (extra `test`) makes the certified balls")
    from certified import certify

    arguments = {name: options.get(name) for name in ("bias", "scale", "softcap", "sinks")}
    shape = (*x["q"].shape[:3], x["k"].shape[2])
    mask = options.get("mask")
    visible = mask.dense(*shape) if hasattr(mask, "dense") else mask
    made = certify(**x, **arguments, visible=visible)
    bend = 1 + (2 / options["softcap"] if options.get("softcap") else 0)
    for name, y in got.items():
        if name not in made.balls:
            assert y is None, name
            continue
        assert y is not None, name
        units = made.units(name, y)
        assert units <= 24 + 6 * bend * made.logit, f"{name} is {units:.3g} units off"


@settings(max_examples=100)
@given(_problems(), st.integers(1, 9), st.data())
def test_split_and_merged_is_whole(problem: tuple[dict[str, Any], dict[str, Any]], parts: int, data: Any) -> None:
    """However many parts, equal or not, in whatever order; the gradients through the merge are those of the whole."""
    x, options = problem
    sinks = options.pop("sinks", None)
    Lk = x["k"].shape[2]
    if data.draw(st.booleans(), label="sizes"):
        cuts = sorted(data.draw(st.lists(st.integers(0, Lk), max_size=4), label="cuts"))
        sizes: Any = [b - a for a, b in zip([0, *cuts], [*cuts, Lk], strict=True)]
    else:
        sizes = [len(piece) for piece in np.array_split(np.arange(Lk), parts)]
    states = split_kv(x["q"], x["k"], x["v"], sizes, **options)
    assert states.out.shape == (len(sizes), *x["q"].shape[:3], x["v"].shape[3])
    merged = merge_states(*states, sinks=sinks)
    got: dict[str, Any] = merged._asdict()

    g = merge_states_grad(*states, x["dout"], x["dlse"], sinks=sinks)
    assert g.douts.shape == states.out.shape and g.dlses.shape == states.lse.shape
    shape = (*x["q"].shape[:3], Lk)
    mask, bias = options["mask"], options.get("bias")
    visible = np.broadcast_to(True if mask is None else mask.dense(*shape) if hasattr(mask, "dense") else mask, shape)
    of_parts, start = [], 0
    for n, size in enumerate(sizes):
        keys = slice(start, start + size)
        start += size
        of_parts.append(
            attention_grad(
                x["q"], x["k"][:, :, keys], x["v"][:, :, keys], g.douts[n], g.dlses[n],
                **options | {"mask": visible[..., keys], "bias": None if bias is None else bias[..., keys]},
            )
        )  # fmt: skip
    got["dq"] = np.sum([part.dq for part in of_parts], axis=0)
    got |= {name: np.concatenate([getattr(part, name) for part in of_parts], axis=2) for name in ("dk", "dv")}
    got["dsinks"] = g.dsinks
    if bias is not None:
        got["dbias"] = np.concatenate([part.dbias for part in of_parts], axis=-1)
    _judge(x, options | {"sinks": sinks}, got)

    order = data.draw(st.permutations(range(len(sizes))), label="order")
    again = merge_states(states.out[order], states.lse[order], sinks=sinks)
    one_by_one: Any = (np.zeros(shape[:3] + x["v"].shape[3:]), np.full(shape[:3], -np.inf))
    for n in order:
        one_by_one = merge_state(*one_by_one, states.out[n], states.lse[n])
    again_two = merge_states(one_by_one[0][None], one_by_one[1][None], sinks=sinks)
    _judge(x, options | {"sinks": sinks}, again._asdict())
    _judge(x, options | {"sinks": sinks}, again_two._asdict())


@settings(max_examples=120)
@given(_problems(), st.integers(1, 5), st.sampled_from(ORDERS))
def test_the_ring_is_whole(problem: tuple[dict[str, Any], dict[str, Any]], ranks: int, order: Any) -> None:
    """Forward and backward, more ranks than tokens included."""
    x, options = problem
    ring: dict[str, Any] = {"ranks": ranks, "order": order}
    got = ring_attention(x["q"], x["k"], x["v"], **ring, **options)._asdict()
    _judge(x, options, got | ring_attention_grad(**x, **ring, **options)._asdict())


def test_the_ring_sees_masks_at_global_positions() -> None:
    """Documents and padding, lq != lk: whatever shard a token is in, and not as the shard alone would have it."""
    rng = np.random.default_rng(1)
    shapes = {"q": (2, 2, 8, 3), "k": (2, 1, 8, 3), "v": (2, 1, 8, 2)}
    x = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    mask = Documents((0, 0, 0, 1, 1, 1, 1, 2)) & Causal("top_left") & Padding((8, 5))
    whole = attention(**x, mask=mask)
    for ranks, order in itertools.product((1, 2, 3, 4), ORDERS):
        got = ring_attention(**x, mask=mask, ranks=ranks, order=order)
        np.testing.assert_allclose(got.out, whole.out, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(got.lse, whole.lse, rtol=1e-13, atol=1e-15)
    # a rank's tokens under a mask of their own: another answer
    first, tokens = shards(8, 2, "zigzag"), slice(None)
    local = attention(*(x[n][:, :, first[0]] for n in ("q", "k", "v")), mask=Causal("top_left"))
    assert np.abs(local.out - attention(**x, mask=Causal("top_left")).out[:, tokens, first[0]]).max() > 0.1


@given(st.integers(0, 20), st.integers(1, 8), st.sampled_from(ORDERS))
def test_shards_hold_each_token_once(L: int, ranks: int, order: Any) -> None:
    held = shards(L, ranks, order)
    assert len(held) == ranks
    assert sorted(np.concatenate(held).tolist()) == list(range(L))
    assert max(map(len, held)) - min(map(len, held)) <= (1 if order == "contiguous" else 2)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_zigzag_shares_the_work_of_a_causal_mask(ranks: int) -> None:
    """Where 2 ranks divides L each rank has as many visible pairs; contiguous shards do not."""
    visible = np.tril(np.ones((16, 16), dtype=bool))
    work = {order: [int(visible[rows].sum()) for rows in shards(16, ranks, order)] for order in ORDERS}
    assert len(set(work["zigzag"])) == 1
    assert ranks == 1 or len(set(work["contiguous"])) == ranks


# --- the merge alone ------------------------------------------------------------------------------


def _states(rng: np.random.Generator, N: int, shape: tuple[int, ...] = (2, 3, 4), Dv: int = 2) -> tuple[Array, Array]:
    """N parts, a third of whose rows are empty and hold garbage; row (0, 0, 0) is empty in all."""
    outs, lses = rng.standard_normal((N, *shape, Dv)), 3 * rng.standard_normal((N, *shape))
    lses[rng.random(lses.shape) < 0.3] = -np.inf
    if lses.size:
        lses[:, 0, 0, 0] = -np.inf
    outs[np.isneginf(lses)] = np.nan
    return outs, lses


def _merged(outs: Any, lses: Any, sinks: Any) -> tuple[Any, Any]:
    """out and lse from exp(lse), with no maximum subtracted, in numbers that may be complex; 0 for an empty row."""
    some = ~np.isneginf(lses.real)
    e = np.where(some, np.exp(np.where(some, lses, 0.0)), 0.0)
    total = e.sum(0) + (0.0 if sinks is None else np.exp(sinks)[:, None])
    total = np.where(total == 0, 1.0, total)
    return (np.where(some[..., None], e[..., None] * outs, 0.0)).sum(0) / total[..., None], np.log(total)


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.booleans())
def test_gradients_of_the_merge_by_complex_step(seed: int, N: int, with_sinks: bool) -> None:
    rng = np.random.default_rng(seed)
    outs, lses = _states(rng, N)
    sinks = rng.standard_normal(3) if with_sinks else None
    dout, dlse = rng.standard_normal((2, 3, 4, 2)), rng.standard_normal((2, 3, 4))
    out, lse = merge_states(outs, lses, sinks=sinks)
    expected = _merged(outs, lses, sinks)
    np.testing.assert_allclose(out, expected[0], rtol=1e-13, atol=1e-14)
    nothing = np.isneginf(lse)
    assert nothing[0, 0, 0] != with_sinks and (out[0, 0, 0] == 0).all()
    np.testing.assert_allclose(np.where(nothing, 0.0, lse), expected[1], rtol=1e-13, atol=1e-14)
    if sinks is not None:
        np.testing.assert_array_equal(lse[0, 0, 0], sinks[0])

    g = merge_states_grad(outs, lses, dout, dlse, sinks=sinks)
    given_ = {"douts": outs, "dlses": lses} | ({"dsinks": sinks} if with_sinks else {})
    assert with_sinks or g.dsinks is None
    for name, array in given_.items():
        u = rng.standard_normal(array.shape)
        moved = given_ | {name: np.where(np.isfinite(array), array + 1e-100j * u, array)}
        made = _merged(moved["douts"], moved["dlses"], moved.get("dsinks"))
        slope = np.imag((made[0] * dout).sum() + (made[1] * dlse).sum()) / 1e-100
        assert abs((getattr(g, name) * u).sum() - slope) <= 1e-12 * (1 + np.abs(getattr(g, name) * u).sum()), name


def test_what_is_empty_is_the_identity_whatever_it_holds() -> None:
    rng = np.random.default_rng(3)
    out, lse = rng.standard_normal((1, 2, 3, 4)), rng.standard_normal((1, 2, 3))
    garbage, nothing = np.full_like(out, np.nan), np.full_like(lse, -np.inf)
    for got in (merge_state(out, lse, garbage, nothing), merge_state(garbage, nothing, out, lse)):
        np.testing.assert_array_equal(got.out, out)
        np.testing.assert_array_equal(got.lse, lse)
    both = merge_state(garbage, nothing, garbage, nothing)
    assert (both.out == 0).all() and (both.lse == -np.inf).all()
    none = merge_states(np.zeros((0, 1, 2, 3, 4)), np.zeros((0, 1, 2, 3)))
    assert (none.out == 0).all() and (none.lse == -np.inf).all()
    sinks = np.array([1.5, -np.inf])
    alone = merge_state(garbage, nothing, garbage, nothing, sinks=sinks)
    assert (alone.out == 0).all()
    np.testing.assert_array_equal(alone.lse, np.broadcast_to(sinks[:, None], (1, 2, 3)))
    # dout and dlse of what is empty are not looked at, but a sink alone has lse = sink
    g = merge_states_grad(garbage[None], nothing[None], garbage, np.ones_like(lse), sinks=sinks)
    assert (g.douts == 0).all() and (g.dlses == 0).all()
    np.testing.assert_array_equal(g.dsinks, [3.0, 0.0])


def test_plus_infinity_is_not_empty() -> None:
    """An lse of +inf, as some kernels give for an empty row, must not pass for one."""
    out, lse = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1))
    assert np.isnan(merge_state(out, lse, 0 * out, lse + np.inf).out).all()
    assert np.isnan(merge_state(out, lse, 0 * out, lse * np.nan).lse).all()


def test_a_sink_enters_once_and_not_in_each_part() -> None:
    """Two keys of score 0 and a sink of 0 weigh 1/3 each; a sink in each part would make it 1/4."""
    q, k, v, sinks = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 2, 1)), np.ones((1, 1, 2, 1)), np.zeros(1)
    states = split_kv(q, k, v, 2)
    assert merge_states(*states, sinks=sinks).out.item() == pytest.approx(2 / 3, rel=4 * U)
    parts = [attention(q, k[:, :, n : n + 1], v[:, :, n : n + 1], sinks=sinks) for n in range(2)]
    assert merge_state(*parts[0], *parts[1]).out.item() == pytest.approx(1 / 2, rel=4 * U)
    for order in ORDERS:
        assert ring_attention(q, k, v, ranks=2, order=order, sinks=sinks).out.item() == pytest.approx(2 / 3, rel=4 * U)


@pytest.mark.parametrize("largest", [1e3, 1e16, 1e300])
def test_huge_lse(largest: float) -> None:
    """No overflow, the larger part wins, and equal ones share."""
    outs, lses = np.array([2.0, 4.0, 8.0]).reshape(3, 1, 1, 1, 1), largest * np.array([-1, 1, 1]).reshape(3, 1, 1, 1)
    sinks = np.array([-largest])
    merged = merge_states(outs, lses, sinks=sinks)
    assert merged.out.item() == 6 and merged.lse.item() == pytest.approx(largest + np.log(2), rel=2 * U)
    g = merge_states_grad(outs, lses, np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1)), sinks=sinks)
    np.testing.assert_array_equal(g.dlses.ravel(), [0, -1, 1])
    np.testing.assert_array_equal(g.dsinks, [0])


def test_what_lse_cannot_carry() -> None:
    """Beyond 2**53 the lse of two equal keys is that of one: parts that tie then weigh alike, as documented."""
    q, k, v = np.full((1, 1, 1, 1), 1e10), np.full((1, 1, 3, 1), 1e10), np.array([0.0, 3.0, 3.0]).reshape(1, 1, 3, 1)
    assert attention(q, k, v).out.item() == pytest.approx(2.0)
    assert merge_states(*split_kv(q, k, v, [1, 2])).out.item() == 1.5


# --- what is refused ------------------------------------------------------------------------------

OUTS, LSES = np.ones((2, 1, 4, 3, 6)), np.ones((2, 1, 4, 3))
STATE = {"out_a": OUTS[0], "lse_a": LSES[0], "out_b": OUTS[1], "lse_b": LSES[1]}
QKV = {"q": np.ones((1, 4, 3, 8)), "k": np.ones((1, 2, 5, 8)), "v": np.ones((1, 2, 5, 6))}
MERGE = {"outs": OUTS, "lses": LSES}
MERGE_GRAD = MERGE | {"dout": OUTS[0], "dlse": LSES[0]}
RING: dict[str, Any] = QKV | {"ranks": 2}
RING_GRAD = RING | {"dout": OUTS[0], "dlse": LSES[0]}

REFUSED: list[tuple[Any, dict[str, Any], dict[str, Any], type[Exception], list[str]]] = [
    (merge_state, STATE, {"out_a": OUTS}, ValueError, ["out_a.shape=(2, 1, 4, 3, 6)", "4 dimensions (B, H, Lq, Dv)"]),
    (merge_state, STATE, {"lse_a": LSES}, ValueError, ["lse_a.shape=(2, 1, 4, 3)", "must be (1, 4, 3)"]),
    (merge_state, STATE, {"out_b": OUTS[1][..., :5]}, ValueError, ["out_b.shape=(1, 4, 3, 5)", "must be (1, 4, 3, 6)"]),
    (merge_state, STATE, {"lse_b": LSES[1][:, :1]}, ValueError, ["lse_b.shape=(1, 1, 3)", "must be (1, 4, 3)"]),
    (merge_state, STATE, {"sinks": np.ones(3)}, ValueError, ["sinks.shape=(3,)", "must be (4,)"]),
    (merge_states, MERGE, {"outs": OUTS[0]}, ValueError, ["outs.shape=(1, 4, 3, 6)", "5 dimensions (N, B, H, Lq, Dv)"]),
    (merge_states, MERGE, {"lses": LSES[:1]}, ValueError, ["lses.shape=(1, 1, 4, 3)", "must be (2, 1, 4, 3)"]),
    (merge_states, MERGE, {"sinks": np.ones((4, 1))}, ValueError, ["sinks.shape=(4, 1)", "must be (4,)"]),
    (merge_states_grad, MERGE_GRAD, {"dout": OUTS}, ValueError, ["dout.shape=(2, 1, 4, 3, 6)", "must be (1, 4, 3, 6)"]),
    (merge_states_grad, MERGE_GRAD, {"dlse": LSES}, ValueError, ["dlse.shape=(2, 1, 4, 3)", "must be (1, 4, 3)"]),
    (split_kv, QKV | {"parts": 2}, {"parts": 0}, ValueError, ["parts=0", "int >= 1"]),
    (split_kv, QKV | {"parts": 2}, {"parts": 2.5}, ValueError, ["parts=2.5", "int >= 1", "list of the sizes"]),
    (split_kv, QKV | {"parts": 2}, {"parts": np.array([2, 3])}, ValueError, ["parts=array([2, 3])", "a list"]),
    (split_kv, QKV | {"parts": 2}, {"parts": True}, ValueError, ["parts=True", "int >= 1"]),
    (split_kv, QKV | {"parts": 2}, {"parts": (2, 2)}, ValueError, ["parts=(2, 2)", "sum to Lk=5"]),
    (split_kv, QKV | {"parts": 2}, {"parts": (6, -1)}, ValueError, ["size in parts=-1", "int >= 0"]),
    (split_kv, QKV | {"parts": 2}, {"k": QKV["k"][:, :, :4]}, ValueError, ["v.shape=(1, 2, 5, 6)", "(1, 2, 4)"]),
    (ring_attention, RING, {"ranks": 0}, ValueError, ["ranks=0", "int >= 1"]),
    (ring_attention, RING, {"ranks": 2.0}, ValueError, ["ranks=2.0", "int >= 1"]),
    (ring_attention, RING, {"order": "striped"}, ValueError, ["order='striped'", "'contiguous' or 'zigzag'"]),
    (ring_attention, RING, {"mask": np.ones((2, 5), dtype=bool)}, ValueError, ["mask.shape=(2, 5)", "(1, 4, 3, 5)"]),
    (ring_attention, RING, {"bias": np.ones((2, 5))}, ValueError, ["bias.shape=(2, 5)", "(1, 4, 3, 5)"]),
    (ring_attention, RING, {"scale": np.nan}, ValueError, ["scale=nan", "finite"]),
    (ring_attention, RING, {"softcap": -1.0}, ValueError, ["softcap=-1.0", "> 0"]),
    (ring_attention, RING, {"sinks": np.ones(2)}, ValueError, ["sinks.shape=(2,)", "must be (4,)"]),
    (ring_attention_grad, RING_GRAD, {"order": "zig-zag"}, ValueError, ["order='zig-zag'", "'zigzag'"]),
    (ring_attention_grad, RING_GRAD, {"dout": OUTS}, ValueError, ["dout.shape=(2, 1, 4, 3, 6)", "(1, 4, 3, 6)"]),
    (ring_attention_grad, RING_GRAD, {"dlse": LSES}, ValueError, ["dlse.shape=(2, 1, 4, 3)", "(1, 4, 3)"]),
    (shards, {"L": 3, "ranks": 2}, {"L": -1}, ValueError, ["L=-1", "int >= 0"]),
    (shards, {"L": 3, "ranks": 2}, {"ranks": 0}, ValueError, ["ranks=0", "int >= 1"]),
]


@pytest.mark.parametrize(("call", "given_", "changed", "kind", "words"), REFUSED)
def test_refusals(
    call: Any, given_: dict[str, Any], changed: dict[str, Any], kind: type[Exception], words: list[str]
) -> None:
    call(**given_)
    with pytest.raises(kind) as error:
        call(**given_ | changed)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("call", "given_"),
    [(merge_state, STATE), (merge_states, MERGE), (merge_states_grad, MERGE_GRAD), (split_kv, QKV | {"parts": 2})]
    + [(ring_attention, RING), (ring_attention_grad, RING_GRAD)],
)
def test_every_array_is_checked_under_its_name(call: Any, given_: dict[str, Any]) -> None:
    for name in given_:
        if isinstance(given_[name], np.ndarray):
            with pytest.raises(TypeError, match=rf"^{name}\.dtype=int64 is not a supported dtype; use one of"):
                call(**given_ | {name: given_[name].astype(np.int64)})


def test_results_are_states() -> None:
    assert isinstance(split_kv(**QKV, parts=2), Attention) and isinstance(ring_attention(**RING), Attention)
