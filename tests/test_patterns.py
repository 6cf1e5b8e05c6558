"""Patterns: each mask against a scalar definition, its identities, far positions and refusals; and that the cases
of the chapter notice the bugs they are for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import masks
from refattn.alibi import alibi, slopes
from refattn.case import Case
from refattn.cases import select
from refattn.inputs import make
from refattn.judge import judge
from refattn.masks import (
    Causal,
    Chunked,
    Dense,
    Dilated,
    Documents,
    Gathered,
    GlobalTokens,
    Mask,
    SinkTokens,
    Tree,
    Visibility,
    Window,
    mask_from_json,
    picture,
)
from refattn.streaming import implementation
from refattn.visibility import And, Not, Or
from tests.bare_verdicts import bare_verdicts  # noqa: F401

Array = np.ndarray[Any, Any]
B, H, LONGEST = 2, 3, 7
PATTERNS = (Chunked, Dilated, GlobalTokens, Tree, Gathered)
CASES = select(chapters=["patterns"])
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def sees(mask: Mask, b: int, h: int, i: int, j: int, lq: int, lk: int) -> bool:
    """May query i attend to key j?  Plain Python, one pair at a time."""
    if isinstance(mask, And):
        return sees(mask.left, b, h, i, j, lq, lk) and sees(mask.right, b, h, i, j, lq, lk)
    if isinstance(mask, Or):
        return sees(mask.left, b, h, i, j, lq, lk) or sees(mask.right, b, h, i, j, lq, lk)
    if isinstance(mask, Not):
        return not sees(mask.mask, b, h, i, j, lq, lk)
    if isinstance(mask, SinkTokens):
        return j < mask.n
    if isinstance(mask, Gathered):
        rows: Any = mask.indices
        for index in (b, h)[4 - depth(rows) :]:
            rows = rows[0 if len(rows) == 1 else index]
        return i < len(rows) and j in rows[i]
    q_left, k_left = lq - i, lk - j  # how many tokens there are from this one on
    if isinstance(mask, Tree):
        parents: Any = mask.parents[b] if depth(mask.parents) == 2 else mask.parents
        u, v = len(parents) - q_left, len(parents) - k_left
        if u < 0 or v < 0:
            return k_left >= q_left
        while u > v:
            u = parents[u]
        return u == v
    assert isinstance(mask, (Causal, Chunked, Dilated, GlobalTokens))
    position = i if mask.align == "top_left" else lk - q_left
    if isinstance(mask, Causal):
        return j <= position
    if isinstance(mask, Chunked):
        first = 0
        while first + mask.size <= j:
            first += mask.size
        return first <= position < first + mask.size
    if isinstance(mask, Dilated):
        step = mask.dilation[h] if isinstance(mask.dilation, tuple) else mask.dilation
        return j in [position + side * step * n for side in (-1, 1) for n in range(mask.window + 1)]
    tokens: Any = mask.tokens[b] if depth(mask.tokens) == 2 else mask.tokens
    return j in tokens or position in tokens


def depth(x: Any) -> int:
    return 1 + max(map(depth, x), default=0) if isinstance(x, tuple) else 0


def drafted(n: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(-1, node - 1) for node in range(n)])


def lists(rows: int, k: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    some = st.lists(st.integers(0, LONGEST + 1), min_size=0, max_size=k, unique=True)
    row = some.flatmap(lambda keys: st.permutations(keys + [-1] * (k - len(keys)))).map(tuple)
    return st.tuples(*[row] * rows)


aligns = st.sampled_from(["top_left", "bottom_right"])
positions = st.lists(st.integers(0, LONGEST), max_size=3).map(tuple)
tree = st.integers(0, LONGEST + 1).flatmap(drafted)
KINDS: dict[str, st.SearchStrategy[Mask]] = {
    "chunks": st.builds(Chunked, st.integers(1, LONGEST), aligns),
    "dilated": st.builds(Dilated, st.integers(0, 4), st.integers(1, 4) | st.tuples(*[st.integers(1, 3)] * H), aligns),
    "global": st.builds(GlobalTokens, positions | st.tuples(*[positions] * B), aligns),
    "tree": st.builds(Tree, tree | st.tuples(*[tree] * B)),
    "gathered": st.builds(
        Gathered,
        lists(LONGEST, 3) | st.tuples(*[lists(4, 2)] * H) | st.tuples(*[st.tuples(*[lists(5, 4)] * H)] * B),
    ),
}
kinds = st.one_of(*KINDS.values())
lengths = st.sampled_from((5, 7, 4, 6, 3, 2, 1, 0))


def joined(kind: st.SearchStrategy[Mask]) -> st.SearchStrategy[Mask]:
    return st.one_of(
        kind,
        st.builds(lambda m: ~m, kind),
        st.builds(lambda m, align: m & Causal(align), kind, aligns),
        st.builds(lambda m, n: m | SinkTokens(n), kind, st.integers(0, 2)),
        st.builds(lambda m, n: (m | n) & Causal("bottom_right"), kind, kinds),
    )


@st.composite
def visibilities(draw: st.DrawFn, kind: st.SearchStrategy[Mask]) -> Visibility:
    Lq, Lk = draw(lengths), draw(lengths)
    q_lens, k_lens = (draw(st.none() | st.tuples(*[st.integers(0, most)] * B)) for most in (Lq, Lk))
    return Visibility(draw(joined(kind)), B, H, Lq, Lk, q_lens, k_lens)


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(st.data())
def test_each_pair_against_the_scalar_definition(kind: str, data: st.DataObject) -> None:
    seen = data.draw(visibilities(KINDS[kind]))
    assert seen.mask is not None
    got = seen.tile()
    assert got.shape == (B, H, seen.Lq, seen.Lk) and got.dtype == np.bool_
    for b, h, i, j in np.ndindex(got.shape):
        lq = seen.Lq if seen.q_lens is None else seen.q_lens[b]
        lk = seen.Lk if seen.k_lens is None else seen.k_lens[b]
        expected = i < lq and j < lk and sees(seen.mask, b, h, i, j, lq, lk)
        assert got[b, h, i, j] == expected, f"[b={b}, h={h}, i={i}, j={j}] of {seen}"


@quick
@given(visibilities(kinds), st.data())
def test_a_tile_is_a_slice_of_the_whole(seen: Visibility, data: st.DataObject) -> None:
    cuts = [slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in (seen.Lq, seen.Lk)]
    b, h = data.draw(st.integers(0, B - 1)), data.draw(st.integers(0, H - 1))
    whole = seen.tile()
    np.testing.assert_array_equal(seen.tile(*cuts), whole[:, :, cuts[0], cuts[1]])
    np.testing.assert_array_equal(seen.tile(*cuts, b, h), whole[b, h, cuts[0], cuts[1]])


@quick
@given(joined(kinds))
def test_repr_and_json_round_trip(mask: Mask) -> None:
    assert eval(repr(mask), vars(masks)) == mask
    again = mask_from_json(json.loads(json.dumps(mask.to_json())))
    assert again == mask and hash(again) == hash(mask) and repr(again) == repr(mask)


def test_arrays_and_lists_become_values() -> None:
    made = Gathered(np.array([[1, -1], [0, 2]]))  # type: ignore[arg-type]
    assert made == Gathered(((1, -1), (0, 2))) and hash(made) and json.dumps(made.to_json())
    assert Tree([np.int64(-1), 0]) == Tree((-1, 0))  # type: ignore[arg-type]
    assert set(PATTERNS) <= {getattr(masks, name) for name in masks.__all__}


PICTURES: list[tuple[Mask, str]] = [
    (Chunked(3, "top_left") & Causal("top_left"), "x.... xx... xxx.. ...x. ...xx"),
    (Chunked(2, "bottom_right"), "... ... xx. xx. ..x"),
    (Dilated(2, 3, "bottom_right"), "..x..x.. x..x..x. .x..x..x"),
    (Dilated(9, 2, "top_left") & Causal("top_left"), "x... .x.. x.x. .x.x"),
    (Window(0, 0, "top_left") | GlobalTokens((1,), "top_left"), "xx.. xxxx .xx. .x.x"),
    (GlobalTokens((3,), "bottom_right"), "...x ...x xxxx"),
    (GlobalTokens((0,), "bottom_right"), "x.. x.. xxx x.. x.."),
    (GlobalTokens(((), (0, 2)), "bottom_right"), ".. .. .. .."),
    (Tree((-1, -1, 0, 2, 1)), "xxx.... xx.x... xxx.x.. xxx.xx. xx.x..x"),
    (Tree((-1, 0, 0)), "xx... xxx.. xxxx. xxx.x"),
    (Tree((-1, 0, 0)), "xx. x.x"),
    (Gathered(((2, -1, 0), (-1, -1, -1))), "x.x. .... ...."),
]


@pytest.mark.parametrize(("mask", "drawn"), PICTURES, ids=lambda x: repr(x) if isinstance(x, Mask) else "")
def test_pictures(mask: Mask, drawn: str) -> None:
    rows = drawn.split()
    assert picture(mask, len(rows), len(rows[0])).split() == rows


@pytest.mark.parametrize("sizes", [(5, 7), (7, 5), (6, 6), (1, 9), (9, 1)])
@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_identities(align: Any, sizes: tuple[int, int]) -> None:
    Lq, Lk = sizes
    picks = np.random.default_rng(Lq).random((B, H, Lq, Lk)) < 0.4
    order = np.argsort(~picks, axis=-1, kind="stable")
    indices = np.where(np.take_along_axis(picks, order, -1), order, -1)
    last = Causal("bottom_right")
    ids = tuple(n // 3 for n in range(max(sizes)))
    for one, other in (
        (Dilated(2, 1, align), Window(2, 2, align)),
        (Dilated(0, 3, align), Window(0, 0, align)),
        (Tree(()), last),
        (Tree(tuple(range(-1, 3))), last),
        (Tree((-1, 0, 1)) & last, Tree((-1, 0, 1))),
        (Chunked(3, "top_left"), Documents(ids)),
        (Chunked(1, align), Window(0, 0, align)),
        (GlobalTokens((), align), ~SinkTokens(Lk)),
        (GlobalTokens((1, 1, 0), align), GlobalTokens((0, 1), align)),
        (Gathered(indices), Dense.of(picks)),  # type: ignore[arg-type]
        (Gathered(indices[..., ::-1]), Dense.of(picks)),  # type: ignore[arg-type]
    ):
        np.testing.assert_array_equal(one.dense(B, H, Lq, Lk), other.dense(B, H, Lq, Lk), err_msg=f"{one} and {other}")


@pytest.mark.parametrize("start", [3 << 16, 3 << 31, 3 << 40, 3 << 60])
def test_far_positions(start: int) -> None:
    """Behind `start` more keys all is as behind none: no index is cut to 32 bits, and nothing needs the whole."""
    lq, lk = 5, 9
    b, h, i, j = (np.arange(n) for n in (B, H, lq, lk))
    grid = b.reshape(-1, 1, 1, 1), h.reshape(-1, 1, 1), i.reshape(-1, 1), j

    def shift(x: Any) -> Any:
        return tuple(map(shift, x)) if isinstance(x, tuple) else x + start if x >= 0 else x

    keys = ((8, -1, 1), (3, 0, -1), (-1, -1, -1), (5, 8, 2), (7, 6, 4))
    for near, far in (
        (Chunked(3, "bottom_right"), None),
        (Dilated(2, (1, 2, 3), "bottom_right"), None),
        (Tree(((-1, 0, 0, 1), (-1, -1))), None),
        (GlobalTokens(((6,), (1, 8)), "bottom_right"), GlobalTokens(shift(((6,), (1, 8))), "bottom_right")),
        (Gathered(keys), Gathered(shift(keys))),
    ):
        expected = near(*grid, np.array(lq), np.array(lk))
        assert 0 < expected.mean() < 1
        got = (far or near)(*grid[:3], j + start, np.array(lq), np.array(lk + start))
        np.testing.assert_array_equal(got, expected, err_msg=repr(near))


BAD: list[tuple[Any, str]] = [
    (lambda: Chunked(0, "top_left"), r"size=0 must be an int >= 1"),
    (lambda: Chunked(2.0, "top_left"), r"size=2.0 must be an int >= 1"),  # type: ignore[arg-type]
    (lambda: Chunked(2, "left"), r"align='left' must be 'top_left' or 'bottom_right'"),  # type: ignore[arg-type]
    (lambda: Dilated(-1, 1, "top_left"), r"window=-1 must be an int >= 0"),
    (lambda: Dilated(2, 0, "top_left"), r"dilation=0 must be an int >= 1; 1 is a window without gaps"),
    (lambda: Dilated(2, (1, True), "top_left"), r"dilation=True must be an int >= 1"),
    (lambda: Dilated(2, None, "top_left"), r"dilation=None must be an int >= 1"),  # type: ignore[arg-type]
    (lambda: Dilated(2, 2, None), r"align=None must be"),  # type: ignore[arg-type]
    (lambda: Dilated(1, (1, 2), "top_left").dense(1, 3, 2, 2), r"dilation=\(1, 2\) is for 2 head entries .* head 2"),
    (lambda: GlobalTokens((0, -1), "top_left"), r"token=-1 must be an int >= 0"),
    (lambda: GlobalTokens(3, "top_left"), r"tokens=3 must be a tuple of ints, or one such tuple"),  # type: ignore[arg-type]
    (lambda: GlobalTokens((0, (1,)), "top_left"), r"tokens=\(0, \(1,\)\) must be a tuple of ints"),
    (lambda: GlobalTokens((0,), "center"), r"align='center' must be"),  # type: ignore[arg-type]
    (lambda: GlobalTokens(((0,),), "top_left").dense(2, 1, 2, 2), r"tokens=.* is for 1 batch .* none for batch 1"),
    (lambda: Tree((-1, 1)), r"parents\[1\]=1 must be a node before 1; pass -1 for none"),
    (lambda: Tree((0,)), r"parents\[0\]=0 must be a node before 0; pass -1 for none"),
    (lambda: Tree((-1, -2)), r"parents\[1\]=-2 must be a node before 1"),
    (lambda: Tree((-1, None)), r"parents=\(-1, None\) must be a tuple of ints"),
    (lambda: Tree(((-1,), 0)), r"parents=\(\(-1,\), 0\) must be a tuple of ints, or one such tuple for each batch"),
    (lambda: Tree(((-1,), (-1,))).dense(3, 1, 2, 2), r"parents=.* is for 2 batch entries and has none for batch 2"),
    (lambda: Gathered(((0, 1), (2,))), r"must be rows of ints, all of one length; fill short ones up with -1"),
    (lambda: Gathered(((0, 1.0),)), r"indices=\(\(0, 1.0\),\) must be rows of ints"),
    (lambda: Gathered((True,)), r"indices=\(True,\) must be rows of ints"),
    (lambda: Gathered((0, 1)), r"indices=\(0, 1\) must have rows of ints, \[heads, \[batch\]\] levels, not 0"),
    (lambda: Gathered((((((0,),),),),)), r"levels, not 4"),
    (lambda: Gathered(((0, -2),)), r"index=-2 must be a key; pass -1 for none"),
    (lambda: Gathered(((5, 0, 5),)), r"index=5 must be given once in a row; fill the row up with -1"),
    (lambda: Gathered((((0,),), ((1,),))).dense(1, 3, 1, 1), r"is for 2 head entries and has none for head 2"),
    (lambda: Gathered(((((0,),),), (((1,),),))).dense(3, 1, 1, 1), r"is for 2 batch entries and has none for batch 2"),
]


@pytest.mark.parametrize(("bad", "message"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_arguments(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bad()


# the cases of the chapter


def test_the_chapter_covers_what_it_promises() -> None:
    for kind in PATTERNS:
        its = [case for case in CASES if f"{kind.__name__}(" in repr(case.mask)]
        assert len({case.dtype for case in its}) >= 3, kind
        assert any(case.backward for case in its) and any(case.k_lens or kind is Dilated for case in its), kind
        assert any(case.H != case.Hkv for case in its) or kind is GlobalTokens, kind
    text = " ".join(repr(case.mask) for case in CASES)
    assert all(sign in text for sign in ("&", "|", "~", "Causal", "SinkTokens", "Window"))
    assert any(case.D != case.Dv for case in CASES if case.backward) and len(CASES) >= 25


def geometry(change: Callable[[Any], Mask]) -> Callable[[Case, dict[str, Any]], tuple[Case, dict[str, Any]]]:
    """A kernel that takes the leaves of a mask for others."""

    def rewritten(mask: Mask) -> Mask:
        if isinstance(mask, Not):
            return ~rewritten(mask.mask)
        if isinstance(mask, (And, Or)):
            return type(mask)(rewritten(mask.left), rewritten(mask.right))
        return change(mask)

    return lambda case, given: (replace(case, mask=rewritten(case.mask)), given)  # type: ignore[arg-type]


def biased(change: Callable[[Case, Array], Array]) -> Callable[[Case, dict[str, Any]], tuple[Case, dict[str, Any]]]:
    def changed(case: Case, given: dict[str, Any]) -> tuple[Case, dict[str, Any]]:
        bias = np.asarray(change(case, given["bias"].astype(np.float64)), dtype=given["bias"].dtype)
        return case, {**given, "bias": np.broadcast_to(bias, given["bias"].shape)}

    return changed


class _Seen(GlobalTokens):
    """Global tokens are seen by all, and see no more than others."""

    def __call__(self, b: Any, h: Any, i: Any, j: Any, lq: Any, lk: Any) -> Any:
        return super().__call__(b, h, np.full_like(i, -LONGEST), j, lq, lq)


class _See(GlobalTokens):
    """Global tokens see all, and are seen by no more than others."""

    def __call__(self, b: Any, h: Any, i: Any, j: Any, lq: Any, lk: Any) -> Any:
        return super().__call__(b, h, i, np.full_like(j, -LONGEST), lq, lk)


class _Truncated(Chunked):
    """The quotient of a position before key 0 is rounded to 0, as C does it."""

    def __call__(self, b: Any, h: Any, i: Any, j: Any, lq: Any, lk: Any) -> Any:
        position = i + (lk - lq)
        return np.trunc(position / self.size) == j // self.size


class _LastKey(Gathered):
    """-1 is the last key, as in Python."""

    def __call__(self, b: Any, h: Any, i: Any, j: Any, lq: Any, lk: Any) -> Any:
        none = np.array([-1 in row for row in self.indices])
        return super().__call__(b, h, i, j, lq, lk) | (none[i] & (j == lk - 1))


def padded(m: Any) -> Mask:
    """Trees filled up to the largest: the prefix then seems shorter."""
    if not isinstance(m, Tree):
        return m  # type: ignore[no-any-return]
    trees = m.parents if isinstance(m.parents[0], tuple) else (m.parents,)
    most = 1 + max(map(len, trees))
    made = tuple(t + (-1,) * (most - len(t)) for t in trees)
    return Tree(made if isinstance(m.parents[0], tuple) else made[0])


def of(kind: type, change: Callable[[Any], Mask]) -> Any:
    return geometry(lambda m: change(m) if isinstance(m, kind) else m)


WRONG: dict[str, list[Any]] = {
    "chunk_boundary": [
        of(Chunked, lambda m: replace(m, size=m.size + 1)),
        of(Chunked, lambda m: Window(m.size - 1, m.size - 1, m.align)),
        of(Chunked, lambda m: _Truncated(m.size, m.align)),
    ],
    "dilation_ignored": [of(Dilated, lambda m: replace(m, dilation=1))],
    "global_lost": [of(GlobalTokens, lambda m: replace(m, tokens=()))],
    "global_one_way": [
        of(GlobalTokens, lambda m: _Seen(m.tokens, m.align)),
        of(GlobalTokens, lambda m: _See(m.tokens, m.align)),
    ],
    "global_not_causal": [of(Causal, lambda m: SinkTokens(1000))],
    "tree_as_causal": [of(Tree, lambda m: Causal("bottom_right"))],
    "tree_mask_stale": [of(Causal, lambda m: next(case.mask for case in CASES if case.id == "tree-f32"))],
    "tree_prefix": [of(Tree, padded)],
    "gathered_none": [of(Gathered, lambda m: _LastKey(m.indices))],
    "alibi_slopes": [
        biased(lambda case, bias: alibi(2.0 ** (-8 * np.arange(1, case.H + 1) / case.H), case.Lq, case.Lk)),
        biased(lambda case, bias: alibi(2 * slopes(case.H), case.Lq, case.Lk)),
    ],
    "alibi_distance": [
        biased(lambda case, bias: bias - slopes(case.H)[:, None, None]),
        biased(lambda case, bias: bias * 0),
    ],
    "finite_value_hides": [biased(lambda case, bias: np.where(bias < -9000, -np.inf, bias))],
}


@pytest.mark.parametrize("flag", WRONG)
def test_cases_notice_what_they_are_for(flag: str) -> None:
    """A kernel that is right but for the bug fails each case with the flag that it computes another mask for."""
    its = [case for case in CASES if flag in case.flags]
    noticed = np.zeros((len(WRONG[flag]), len(its)), dtype=bool)
    for n, case in enumerate(its):
        problem = make(case)

        def status(case: Case, given: dict[str, Any], problem: Any = problem) -> str:
            answer = {name: x for name, x in implementation(case, given).items() if name in problem.case.want}
            precision = implementation.precision(problem.case)
            return judge(problem, answer, precision, implementation.conventions).status

        assert status(case, problem.fresh()) == "passed", case.id
        for m, wrong in enumerate(WRONG[flag]):
            other, changed = wrong(case, problem.fresh())
            same = other != case and np.array_equal(other.visibility.tile(), case.visibility.tile())
            noticed[m, n] = not same and status(other, changed) == "failed"
            assert same or noticed[m, n], f"{case.id} does not notice form {m}"
    assert noticed.any(0).all() and noticed.any(1).all()


@pytest.mark.parametrize("kind", [lambda x: Gathered(((1, x),)), lambda x: Tree((-1, x)), lambda x: Documents((1, x))])
def test_a_good_mask_does_not_let_its_bad_equal_in(kind: Callable[[Any], Mask]) -> None:
    """0 == 0.0 == False, so a cache of tables answers for all three."""
    kind(0).dense(1, 1, 2, 2)
    for bad in (0.0, False):
        with pytest.raises(ValueError, match="must be"):
            kind(bad)
