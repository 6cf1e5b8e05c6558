"""Masks: each kind against a scalar definition, the algebra, tiles, effective lengths, JSON and repr."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import masks
from refattn.masks import (
    BlockSparse,
    Causal,
    Dense,
    Documents,
    Mask,
    Padding,
    Prefix,
    SinkTokens,
    Visibility,
    Window,
    mask_from_json,
    picture,
)
from refattn.visibility import And, Not, Or

Array = np.ndarray[Any, Any]
B, H, LQ, LK = 2, 3, 5, 7
quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def sees(mask: Mask, b: int, h: int, i: int, j: int, lq: int, lk: int) -> bool:
    """May query i attend to key j?  Plain Python, one pair at a time."""
    if isinstance(mask, And):
        return sees(mask.left, b, h, i, j, lq, lk) and sees(mask.right, b, h, i, j, lq, lk)
    if isinstance(mask, Or):
        return sees(mask.left, b, h, i, j, lq, lk) or sees(mask.right, b, h, i, j, lq, lk)
    if isinstance(mask, Not):
        return not sees(mask.mask, b, h, i, j, lq, lk)
    if isinstance(mask, Documents):
        q_ids: Any = mask.q_ids[b] if isinstance(mask.q_ids[0], tuple) else mask.q_ids
        k_ids: Any = mask.q_ids if mask.k_ids is None else mask.k_ids
        k_ids = k_ids[b] if isinstance(k_ids[0], tuple) else k_ids
        return bool(q_ids[i] == k_ids[j])
    if isinstance(mask, Padding):
        return j < mask.lengths[b]
    if isinstance(mask, SinkTokens):
        return j < mask.n
    if isinstance(mask, (BlockSparse, Dense)):
        rows: Any = mask.rows
        levels = 0
        while not isinstance(rows, str):
            rows, levels = rows[0], levels + 1
        rows = mask.rows
        for index in (b, h)[3 - levels :]:
            rows = rows[0 if len(rows) == 1 else index]
        i, j = (i // mask.block_q, j // mask.block_k) if isinstance(mask, BlockSparse) else (i, j)
        return i < len(rows) and j < len(rows[i]) and rows[i][j] == "x"
    assert isinstance(mask, (Causal, Window, Prefix))
    distance = j - i if mask.align == "top_left" else (j - lk) - (i - lq)  # from the diagonal, rightwards
    if isinstance(mask, Causal):
        return distance <= 0
    if isinstance(mask, Window):
        return (mask.left is None or -distance <= mask.left) and (mask.right is None or distance <= mask.right)
    length = mask.length if isinstance(mask.length, int) else mask.length[b]
    return j < length or distance <= 0


def draw_rows(rows: int, columns: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.tuples(*[st.text("x.", min_size=columns, max_size=columns)] * rows)


aligns = st.sampled_from(["top_left", "bottom_right"])
limits = st.none() | st.integers(0, 8)
ids = st.integers(0, 2)
per_batch = st.tuples(*[st.integers(0, LK)] * B)
drawings = draw_rows(3, 2) | st.tuples(*[draw_rows(3, 4)] * H) | st.tuples(*[st.tuples(draw_rows(6, 7))] * B)
kinds: st.SearchStrategy[Mask] = st.one_of(
    st.builds(Causal, aligns),
    st.builds(Window, limits, limits, aligns),
    st.builds(Prefix, st.integers(0, LK) | per_batch, aligns),
    st.builds(Documents, st.tuples(*[ids] * LK)),
    st.builds(Documents, st.tuples(*[ids] * LQ), st.tuples(*[st.tuples(*[ids] * LK)] * B)),
    st.builds(Padding, per_batch),
    st.builds(SinkTokens, st.integers(0, LK + 1)),
    st.builds(BlockSparse, drawings, st.integers(1, 3), st.integers(1, 3)),
    st.builds(Dense, drawings),
)
any_mask = st.recursive(
    kinds,
    lambda m: st.builds(lambda a, b: a & b, m, m) | st.builds(lambda a, b: a | b, m, m) | st.builds(lambda a: ~a, m),
    max_leaves=4,
)
lengths = st.none() | st.tuples(*[st.integers(0, LQ)] * B)
visibilities = st.builds(Visibility, any_mask, st.just(B), st.just(H), st.just(LQ), st.just(LK), lengths, per_batch)


def dense(mask: Mask) -> Array:
    return mask.dense(B, H, LQ, LK)


@quick
@given(visibilities)
def test_each_pair_against_the_scalar_definition(seen: Visibility) -> None:
    assert seen.mask is not None
    got = seen.tile()
    assert got.shape == (B, H, LQ, LK) and got.dtype == np.bool_
    for b, h, i, j in np.ndindex(got.shape):
        lq = LQ if seen.q_lens is None else seen.q_lens[b]
        lk = LK if seen.k_lens is None else seen.k_lens[b]
        expected = i < lq and j < lk and sees(seen.mask, b, h, i, j, lq, lk)
        assert got[b, h, i, j] == expected, f"[b={b}, h={h}, i={i}, j={j}] of {seen}"


@quick
@given(visibilities, st.data())
def test_a_tile_is_a_slice_of_the_whole(seen: Visibility, data: st.DataObject) -> None:
    cuts = [slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in (LQ, LK)]
    b, h = data.draw(st.none() | st.integers(0, B - 1)), data.draw(st.none() | st.integers(0, H - 1))
    expected = seen.tile()[slice(b, b + 1) if b is not None else slice(None)]
    expected = expected[:, slice(h, h + 1) if h is not None else slice(None), cuts[0], cuts[1]]
    got = seen.tile(cuts[0], cuts[1], b, h)
    np.testing.assert_array_equal(got, expected[0, 0] if b is not None and h is not None else expected)


@quick
@given(any_mask, any_mask, any_mask)
def test_algebra(a: Mask, b: Mask, c: Mask) -> None:
    A, C = dense(a), dense(b)
    np.testing.assert_array_equal(dense(a & b), A & C)
    np.testing.assert_array_equal(dense(a | b), A | C)
    np.testing.assert_array_equal(dense(~a), ~A)
    for one, other in (
        (~(a & b), ~a | ~b),
        (~(a | b), ~a & ~b),
        (~~a, a),
        (a & (b | c), a & b | a & c),
        (a | b & c, (a | b) & (a | c)),
        (a & b, b & a),
        (a & (b & c), a & b & c),
        (a & ~a, SinkTokens(0)),
        (a | ~a, SinkTokens(LK)),
    ):
        np.testing.assert_array_equal(dense(one), dense(other), err_msg=f"{one} and {other}")


@quick
@given(any_mask)
def test_repr_and_json_round_trip(mask: Mask) -> None:
    assert eval(repr(mask), vars(masks)) == mask
    again = mask_from_json(json.loads(json.dumps(mask.to_json())))
    assert again == mask and hash(again) == hash(mask) and repr(again) == repr(mask)
    assert mask_from_json(None) is None


@quick
@given(any_mask, per_batch, lengths)
def test_nothing_reveals_what_does_not_exist(mask: Mask, k_lens: tuple[int, ...], q_lens: Any) -> None:
    for m in (mask, ~mask, mask | ~mask):
        seen = Visibility(m, B, H, LQ, LK, q_lens, k_lens).tile()
        for b in range(B):
            assert not seen[b, :, :, k_lens[b] :].any()
            assert q_lens is None or not seen[b, :, q_lens[b] :].any()


def test_effective_lengths_shift_the_diagonal() -> None:
    """With 3 of 5 keys and 2 of 3 queries: the last query that exists sees the last key that exists."""
    seen = Visibility(Causal("bottom_right"), 2, 1, 3, 5, (2, 3), (3, 5)).tile()
    assert ["".join("x" if s else "." for s in row) for row in seen[0, 0]] == ["xx...", "xxx..", "....."]
    assert ["".join("x" if s else "." for s in row) for row in seen[1, 0]] == ["xxx..", "xxxx.", "xxxxx"]
    # Padding hides the same keys and leaves the diagonal where it was
    hidden = (Causal("bottom_right") & Padding((3, 5))).dense(2, 1, 3, 5)
    assert ["".join("x" if s else "." for s in row) for row in hidden[0, 0]] == ["xxx..", "xxx..", "xxx.."]
    # more queries than keys: the first ones see nothing
    assert picture(Causal("bottom_right"), 4, 2) == "..\n..\nx.\nxx"


def test_values() -> None:
    assert Causal("top_left") == Causal("top_left") != Causal("bottom_right")
    assert len({Window(1, 0, "top_left"), Window(1, 0, "top_left"), Window(0, 1, "top_left")}) == 2
    assert Causal("top_left") & SinkTokens(1) != SinkTokens(1) & Causal("top_left")
    # lists and NumPy's numbers are taken, and become what prints, hashes and goes to JSON
    made = Documents(np.array([[0, 1]]), [0, 1])  # type: ignore[arg-type]
    assert made == Documents(((0, 1),), (0, 1)) and hash(made)
    window = Window(np.int64(2), None, "top_left")
    assert repr(window) == "Window(2, None, 'top_left')" and json.dumps(window.to_json())


@pytest.mark.parametrize("shape", [(2, 3), (4, 2, 3), (2, 4, 2, 3), (1, 4, 2, 3), (0, 3), (2, 0), (0, 0)])
def test_dense_of_an_array(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape) < 0.5
    full = (1,) * (4 - len(shape)) + shape
    got = Dense.of(array).dense(2, 4, *shape[-2:])
    np.testing.assert_array_equal(got, np.broadcast_to(array.reshape(full), (2, 4, *shape[-2:])))
    assert not Dense.of(array).dense(2, 4, 5, 5)[..., shape[-2] :, :].any()  # hidden beyond the drawing
    assert not Dense.of(array).dense(2, 4, 5, 5)[..., shape[-1] :].any()


@pytest.mark.parametrize("sizes", [(0, 3, 5, 7), (2, 0, 5, 7), (2, 3, 0, 7), (2, 3, 5, 0)])
@pytest.mark.parametrize(
    "mask",
    [
        Causal("bottom_right"),
        Window(1, 1, "bottom_right"),
        Prefix((1, 2), "top_left"),
        Documents((0,) * 7),
        Padding((3, 4)),
        ~SinkTokens(2),
        BlockSparse(("x.", ".x"), 2, 2),
        Dense((("x.",), (".x",), ("xx",))),
    ],
    ids=repr,
)
def test_sizes_of_zero(mask: Mask, sizes: tuple[int, int, int, int]) -> None:
    assert mask.dense(*sizes).shape == sizes


BAD: list[tuple[Any, str]] = [
    (lambda: Causal("center"), r"align='center' must be 'top_left' or 'bottom_right'"),  # type: ignore[arg-type]
    (lambda: Causal(True), r"align=True must be"),  # type: ignore[arg-type]
    (lambda: Window(-1, 0, "top_left"), r"left=-1 must be an int >= 0; pass None for no limit"),
    (lambda: Window(0, -2, "top_left"), r"right=-2 must be an int >= 0; pass None"),
    (lambda: Window(False, 0, "top_left"), r"left=False must be an int >= 0"),
    (lambda: Window(1.5, 0, "top_left"), r"left=1.5 must be an int >= 0"),  # type: ignore[arg-type]
    (lambda: Window(1, 0, "left"), r"align='left'"),  # type: ignore[arg-type]
    (lambda: Prefix(-1, "top_left"), r"length=-1 must be an int >= 0"),
    (lambda: Prefix((1, -1), "top_left"), r"length=-1 must be an int >= 0"),
    (lambda: Prefix((1,), "top_left").dense(2, 1, 3, 3), r"length=\(1,\) must hold one value for each of B=2"),
    (lambda: Padding(3), r"lengths=3 must be a tuple, one length for each batch entry"),  # type: ignore[arg-type]
    (lambda: Padding((2, -1)), r"length=-1 must be an int >= 0"),
    (lambda: Padding((2,)).dense(2, 1, 3, 3), r"lengths=\(2,\) must hold one value for each of B=2"),
    (lambda: SinkTokens(-1), r"n=-1 must be an int >= 0"),
    (lambda: Documents(((0, 1), (0,))), r"q_ids=\(\(0, 1\), \(0,\)\) must be .* all of one length"),
    (lambda: Documents((0, 1.5)), r"q_ids=\(0, 1.5\) must be a tuple of ints"),
    (lambda: Documents((0, 1), ("a",)), r"k_ids=\('a',\) must be a tuple of ints"),
    (lambda: Documents((0, 1)).dense(1, 1, 2, 3), r"k_ids of shape \(1, 2\) is too small for .*=\(1, 3\)"),
    (lambda: Documents(((0, 1),)).dense(2, 1, 2, 2), r"q_ids of shape \(1, 2\) is too small for .*=\(2, 2\)"),
    (lambda: Documents(((0, 1),)).dense(2, 1, 0, 2), r"is too small"),
    (lambda: BlockSparse(("x",), 0, 1), r"block_q=0 must be an int >= 1"),
    (lambda: BlockSparse(("x",), 1, -1), r"block_k=-1 must be an int >= 1"),
    (lambda: BlockSparse(("x1",), 1, 1), r"'x1' .*only x and dot"),
    (lambda: Dense(("x.", "x")), r"strings of x and dot, all of one length"),
    (lambda: Dense("x."), r"not 0"),  # type: ignore[arg-type]
    (lambda: Dense((((("x",),),),)), r"not 4"),
    (lambda: Dense((("x",), (".",))).dense(1, 3, 1, 1), r"drawn for 2 head entries has none for head 2"),
    (lambda: BlockSparse(((("x",),), ((".",),)), 1, 1).dense(3, 1, 1, 1), r"drawn for 2 batch .* none for batch 2"),
    (lambda: Visibility(None, 2, 1, 3, 3, k_lens=(3,)).tile(), r"k_lens=\(3,\) must hold B=2 lengths from 0 to 3"),
    (lambda: Visibility(None, 1, 1, 3, 3, q_lens=(4,)).tile(), r"q_lens=\(4,\) must hold B=1 lengths from 0 to 3"),
    (lambda: Visibility(None, 1, 1, 3, 3, k_lens=(-1,)).tile(), r"k_lens=\(-1,\)"),
    (lambda: Visibility(None, 1, 1, 3, 3).dense(1, 1, 3, 4), r"\(1, 1, 3, 4\) must be \(1, 1, 3, 3\)"),
    (lambda: mask_from_json({"type": "Casual"}), r"type='Casual' of a mask is not one of .*Causal"),
    (lambda: mask_from_json({"align": "top_left"}), r"type=None of a mask is not one of"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_dense_of_takes_booleans_only() -> None:
    for array in (np.ones((2, 2)), np.ones(2, dtype=bool), np.ones((1, 1, 1, 2, 2), dtype=bool)):
        with pytest.raises(TypeError, match="must be bool with 2 to 4"):
            Dense.of(array)


def test_a_mask_combines_with_masks_only() -> None:
    for other in (True, None, np.True_, "x"):
        with pytest.raises(TypeError):
            Causal("top_left") & other  # type: ignore[operator]
        with pytest.raises(TypeError):
            Causal("top_left") | other  # type: ignore[operator]
