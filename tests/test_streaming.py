"""`streaming` against `oracle`, which it shares no code with; and its arithmetic in low precision, by hand."""

import dataclasses
import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from apriori import (
    SCORES,
    bounds,
    random_problem,
    shape_of,
    solve,
    visible_of,
    worst_ratio,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import oracle, streaming
from refattn.cases import CASES
from refattn.conform import run
from refattn.dropout import keep_tile
from refattn.dtypes import FORMATS, round_to
from refattn.masks import Causal, Visibility, Window
from refattn.precision import Precision, eager, preset
from refattn.score_mods import SCORE_MODS
from refattn.streaming import Schedule
from refattn.streaming.arguments import Arguments
from refattn.streaming.matrices import matrices
from refattn.streaming.rules import Rules

EXACT = preset("float64")
SCHEDULES = (
    Schedule(),
    Schedule(16, 16),
    Schedule(5, 17, order="reverse", exp="exp2"),
    Schedule(32, 16, order="random", splits=3, seed=5),
    Schedule(1, 64, splits=7, exp="exp2"),
)


def scores_of(x, schedule=SCHEDULES[0]):
    """scores, capped, biased and weights as `streaming` has them."""
    options = {name: x[name] for name in SCORES}
    return matrices(Arguments(x["q"], x["k"], x["v"], **options, dtype=np.dtype(float)), Rules(EXACT, schedule))


def tiles_of(keep, shape):
    """`keep` as a function of tiles."""
    return None if keep is None else lambda b, h, rows, keys: np.broadcast_to(keep, shape)[b, h, rows, keys]


@given(st.integers(0, 2**32 - 1), st.sampled_from(SCHEDULES), st.booleans())
@settings(max_examples=400, deadline=None)
def test_equals_the_oracle(seed, schedule, by_tiles):
    x = random_problem(seed)
    more = {"keep": tiles_of(x["keep"], shape_of(x))} if by_tiles else {}
    got, expected, bound = solve(streaming, x, schedule=schedule, **more), solve(oracle, x), bounds(x)
    got |= scores_of(x, schedule)
    expected |= oracle.attention_scores(x["q"], x["k"], **{name: x[name] for name in SCORES})._asdict()
    assert got.keys() == expected.keys() == bound.keys()
    for name in expected:
        assert got[name].shape == expected[name].shape and got[name].dtype == np.float64, name
        assert worst_ratio(got[name], expected[name], bound[name]) <= 1, name


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv", "dscale", "dsoftcap", "dbias"])
def test_the_bound_can_fail(name):
    problems = map(random_problem, itertools.count())
    wanted = (x for x in problems if x["q"].size and x["k"].size > 50 and x["softcap"] and x["dropout"] in (0.1, 0.75))
    x = next(x for x in wanted if x["bias"] is not None and x["score_mod"] is not None and solve(oracle, x)[name].any())
    expected, bound = solve(oracle, x), bounds(x)
    assert worst_ratio(expected[name] * (1 + 1e-9), expected[name], bound[name]) > 1


@given(st.integers(0, 2**32 - 1), st.sampled_from(["q", "k", "v", "dout"]), st.sampled_from([np.nan, np.inf, -np.inf]))
@settings(max_examples=200, deadline=None)
def test_poison_reaches_what_sees_it_and_nothing_else(seed, where, poison):
    x = random_problem(seed)
    if 0 in x[where].shape[:3]:
        return
    clean, bound = solve(streaming, x), bounds(x)
    seen = visible_of(x)
    rng = np.random.default_rng(seed + 1)
    bad = rng.random(x[where].shape[:3]) < 0.3
    dirty = x | {where: np.where(bad[..., None], poison, x[where])}
    got = solve(streaming, dirty, schedule=Schedule(8, 16))

    group = x["q"].shape[1] // x["k"].shape[1]
    if where in ("k", "v"):
        row = (seen & np.repeat(bad, group, 1)[:, :, None, :]).any(-1)
    else:
        row = bad & seen.any(-1)
    reached_row = row if x[where].shape[-1] else np.zeros_like(row)
    key = (seen & reached_row[..., None]).any(2)
    key = key.reshape(key.shape[0], key.shape[1] // group, group, key.shape[2]).any(2)
    forward = np.zeros_like(reached_row) if where == "dout" else reached_row
    lse_row = forward if where != "v" else np.zeros_like(forward)
    reached = {"out": forward[..., None], "lse": lse_row, "dq": reached_row[..., None], "dk": key[..., None]}
    reached["dv"] = key[..., None] if where != "v" else np.zeros_like(key)[..., None]
    for name, touched in reached.items():
        kept = np.where(touched, clean[name], got[name])
        assert worst_ratio(kept, clean[name], bound[name]) <= 1, name
        # (a weight that is dropped may be 0 whatever it was)
        spreads = np.isnan(poison) and where != "v" and x["dropout"] is None
        if spreads and name in ("out", "dq") and got[name].shape[-1]:
            assert not np.isfinite(got[name][np.broadcast_to(touched, got[name].shape)]).any(), name
    if where == "v" and np.isnan(poison) and x["dropout"] is None:
        assert np.isnan(got["out"][forward]).all()


def test_visible_infinities_never_look_like_an_empty_row():
    q, k = np.ones((1, 1, 1, 2)), np.full((1, 1, 3, 2), -np.inf)
    out, lse = streaming.attention(q, k, np.ones((1, 1, 3, 1)))
    assert not np.isfinite(out).any() and np.isnan(lse).all()


@pytest.mark.parametrize("sinks", [None, np.array([0.5])])
def test_rows_that_see_nothing(sinks):
    q, k = np.ones((1, 1, 2, 3)), np.ones((1, 1, 4, 3))
    x = {"mask": np.zeros((2, 4), bool), "sinks": sinks}
    out, lse = streaming.attention(q, k, k, **x)
    assert np.all(out == 0) and np.all(lse == (-np.inf if sinks is None else 0.5))
    nan = np.full_like(q, np.nan)
    dlse = np.full((1, 1, 2), 3.0 if sinks is not None else np.nan)
    g = streaming.attention_grad(q, k, k, nan, dlse, **x)
    assert all(np.all(d == 0) for d in (g.dq, g.dk, g.dv))
    assert sinks is None or g.dsinks == pytest.approx([6.0])


def test_huge_logits_keep_their_ties():
    q, k, v = (np.reshape(x, (1, 1, -1, 1)) for x in ([1e300], [1.0, 1.0, 0.5], [0.0, 1.0, 2.0]))
    out, lse = streaming.attention(q, k, v)
    g = streaming.attention_grad(q, k, v, np.ones_like(q))
    assert out.item() == 0.5 and lse.item() == 1e300
    assert g.dv.ravel().tolist() == [0.5, 0.5, 0.0]


def dropped_by_counter(shape):
    """dropout and keep, of which a tile at a time is ever made."""
    return {"dropout": 0.25, "keep": lambda b, h, rows, keys: keep_tile(1, 0, 0.25, shape, rows, keys, b, h)}


def peak_of(run, *args, **options):
    tracemalloc.start()
    run(*args, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("score_mod", [None, "parabola"])
def test_memory_does_not_grow_with_the_scores(score_mod):
    rng = np.random.default_rng(0)
    peaks = []
    for Lk in (4096, 16384):
        q, k, v = (rng.standard_normal((1, 1, L, 16)) for L in (2048, Lk, Lk))
        options = {"mask": Window(2000, 0, "bottom_right"), "bias": np.zeros(Lk)}
        if score_mod is not None:
            options |= {"score_mod": SCORE_MODS[score_mod], **dropped_by_counter((1, 1, 2048, Lk))}
        peaks.append(peak_of(streaming.attention, q, k, v, **options))
    assert peaks[1] <= 25e6, peaks  # 2048 x 16384 scores would be 268e6 bytes, and booleans 34e6
    assert peaks[1] <= peaks[0] + 1e6, peaks


def test_backward_memory_is_linear():
    q = np.random.default_rng(0).standard_normal((1, 1, 4096, 16))
    plain = {"mask": Causal("top_left")}
    every = {"mask": Window(600, 0, "top_left"), "softcap": 5.0, "score_mod": SCORE_MODS["softsign"]}
    every |= dropped_by_counter((1, 1, 4096, 4096))
    for options, limit in ((plain, 25e6), (every, 45e6)):
        peak = peak_of(streaming.attention_grad, q, q, q, q, **options)
        assert peak <= limit, peak  # 4096 x 4096 scores would be 134e6 bytes


def test_hidden_tiles_are_skipped():
    class Counting(Rules):
        asked = 0

        def products(self, q, k, scale):
            Counting.asked += 1
            return super().products(q, k, scale)

    q = np.ones((1, 1, 256, 2))
    streaming.attention(q, q, q, mask=Causal("top_left"), schedule=Schedule(64, 64), rules=Counting)
    assert Counting.asked == 4 + 3 + 2 + 1


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"q": np.ones((2, 3, 4))}, ValueError, "4 dimensions"),
        ({"k": np.ones((1, 2, 5, 4))}, ValueError, "k.shape"),
        ({"v": np.ones((2, 2, 5, 3))}, ValueError, "v.shape|k.shape"),
        ({"k": np.ones((1, 4, 5, 3)), "v": np.ones((1, 4, 5, 3))}, ValueError, "multiple of the Hkv=4"),
        ({"q": np.ones((1, 2, 4, 3), complex)}, TypeError, "q.dtype=complex128"),
        ({"bias": np.ones((4, 5), bool)}, TypeError, "bias.dtype=bool"),
        ({"mask": np.ones((4, 5))}, TypeError, "must be bool"),
        ({"mask": np.ones((3, 5), bool)}, ValueError, "must broadcast"),
        ({"mask": Visibility(None, 1, 2, 4, 6)}, ValueError, "must be of"),
        ({"softcap": 0.0}, ValueError, "softcap=0"),
        ({"softcap": "30"}, TypeError, "softcap='30' must be a real number; pass None"),
        ({"scale": [0.1]}, TypeError, r"scale=\[0.1\] must be a real number; pass None for D"),
        ({"mask": Causal}, TypeError, "mask=Causal is a class; make one"),
        ({"scale": np.inf}, ValueError, "scale=inf"),
        ({"sinks": np.ones(3)}, ValueError, "sinks.shape"),
        ({"q": np.ma.masked_array(np.ones((1, 2, 4, 3)))}, TypeError, "masked array"),
        ({"dropout": 0.1}, ValueError, "dropout=0.1 needs keep"),
        ({"keep": np.ones(5, bool)}, ValueError, "keep needs dropout"),
        ({"dropout": 1.5, "keep": np.ones(5, bool)}, ValueError, "dropout=1.5 must be from 0 to 1"),
        ({"dropout": np.nan, "keep": np.ones(5, bool)}, ValueError, "dropout=nan"),
        ({"dropout": 0.1, "keep": np.ones(5)}, TypeError, "keep.dtype=float64 must be bool"),
        ({"dropout": 0.1, "keep": np.ones(4, bool)}, ValueError, r"keep.shape=\(4,\) must broadcast"),
        ({"score_mod": "tilt"}, TypeError, "score_mod='tilt' must be callable"),
        ({"score_mod": lambda s, *_: s[..., :2]}, ValueError, "score_mod"),
    ],
)
def test_refused_by_name(change, error, words):
    x = {"q": np.ones((1, 2, 4, 3)), "k": np.ones((1, 2, 5, 3)), "v": np.ones((1, 2, 5, 3))} | change
    with pytest.raises(error, match=words):
        streaming.attention(**x)
    with pytest.raises(error):
        oracle.attention(**x)


def test_tiles_of_keep_are_checked():
    x = np.ones((1, 1, 4, 3))
    for keep, error, words in (
        (lambda b, h, rows, keys: np.ones((4, 4)), TypeError, "keep.dtype=float64 must be bool"),
        (lambda b, h, rows, keys: np.ones((1, 1, 4, 4), bool), ValueError, r"keep.shape=\(1, 1, 4, 4\) must broadcast"),
    ):
        with pytest.raises(error, match=words):
            streaming.attention(x, x, x, dropout=0.5, keep=keep)


def test_a_backward_wants_the_slope():
    x = np.ones((1, 1, 4, 3))
    with pytest.raises(TypeError, match=r"must have slope\(s, b, h, i, j\)"):
        streaming.attention_grad(x, x, x, x, score_mod=lambda s, *_: s)


# low precision

HALF = preset("bfloat16")


def two_keys(precision, **more):
    """One query and two keys of scores 0 and -0.3 and values 0 and 1: out is the second weight."""
    x = np.ones((1, 1, 1, 1), np.float32)
    k = np.array([0.0, -0.3], np.float32).reshape(1, 1, 2, 1)
    v = np.array([0.0, 1.0], np.float32).reshape(1, 1, 2, 1)
    out, lse = streaming.attention(x, k, v, precision=precision, **more)
    return out, lse


def f32(x):
    return np.float64(np.float32(x))


def bf16(x):
    return float(round_to(x, "bfloat16"))


E = float(np.exp(f32(-0.3)))


@pytest.mark.parametrize(
    "fields, weight",
    [
        ({}, bf16(E) / (1 + E)),
        ({"weights": None}, E / (1 + E)),
        ({"sum_rounded_weights": True}, bf16(E) / (1 + bf16(E))),
        ({"weights_normalised": True}, bf16(E / (1 + E))),
        ({"scores": "bfloat16"}, bf16(np.exp(bf16(-0.3))) / (1 + np.exp(bf16(-0.3)))),
        ({"scaled_q": "bfloat16", "weights": None}, 1 / (1 + np.exp(f32(0.3) * bf16(0.7)))),
    ],
)
def test_each_field_of_the_contract_rounds_where_it_says(fields, weight):
    precision = dataclasses.replace(HALF, out="float32", **fields)
    more = {"scale": 0.7} if "scaled_q" in fields else {}
    for schedule in (Schedule(), Schedule(exp="exp2"), Schedule(exp="numpy")):
        out, lse = two_keys(precision, schedule=schedule, **more)
        assert out.dtype == lse.dtype == np.float32
        # what is not rounded to 16 bits is float32's: 8 roundings of it
        assert abs(out.item() - weight) <= 8 * 2.0**-24


def test_out_and_lse_are_rounded_once_to_their_dtypes():
    exact = streaming.attention(*(np.float32(x) for x in half_problem()), precision=preset("float32"))
    for out_dtype, lse_dtype in (("bfloat16", "float32"), ("float16", "bfloat16")):
        precision = Precision("float32", out_dtype, lse=lse_dtype)
        out, lse = streaming.attention(*(np.float32(x) for x in half_problem()), precision=precision)
        assert out.dtype == FORMATS[out_dtype].dtype and lse.dtype == FORMATS[lse_dtype].dtype
        assert np.array_equal(out.astype(np.float64), round_to(exact.out, out_dtype))
        assert np.array_equal(lse.astype(np.float64), round_to(exact.lse, lse_dtype))


def half_problem(L=150, D=16):
    rng = np.random.default_rng(3)
    return tuple(rng.standard_normal((1, 2, L, D)).astype(ml_dtypes.bfloat16) for _ in range(3))


@pytest.mark.parametrize(
    "precision, weights, other",
    [
        (HALF, 2.0**-8, 2.0**-8),
        (dataclasses.replace(HALF, sum_rounded_weights=True), 2.0**-7, 2.0**-8),
        (eager("bfloat16"), 2.0**-8, 2.0**-8 + 2 * 6 * 2.0**-8),
        (dataclasses.replace(HALF, weights=None, out="float32"), 0.0, 2.0**-18),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_honest_half_kernel_is_as_far_off_as_its_roundings(precision, weights, other, schedule):
    """Roughly: weights off by u_P each, the output by u, stored scores (below 6) by 6 u, float32 by 2**-18."""
    q, k, v = half_problem()
    exact, bound = oracle.attention(q, k, v), oracle.attention(q, k, np.abs(v.astype(np.float64))).out
    out, lse = streaming.attention(q, k, v, precision=precision, schedule=schedule)
    error = np.abs(out.astype(np.float64) - exact.out)
    assert np.all(error <= (weights + other + 2.0**-16) * bound)
    assert precision.weights is None or error.max() > 2.0**-12  # it does round
    assert out.dtype == FORMATS[precision.out].dtype


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_half_gradients_are_as_far_off_as_their_roundings(schedule):
    q, k, v = half_problem()
    dout = half_problem(L=150)[2][:, :, ::-1]
    exact = oracle.attention_grad(q, k, v, dout)
    got = streaming.attention_grad(q, k, v, dout, precision=HALF, schedule=schedule)
    for name in ("dq", "dk", "dv"):
        x, y = getattr(got, name), getattr(exact, name)
        assert x.dtype == ml_dtypes.bfloat16
        error = np.abs(x.astype(np.float64) - y)
        assert error.max() <= 0.02 * np.abs(y).max(), name
        assert error.max() >= 2.0**-10 * np.abs(y).max(), name


def test_gradients_accumulated_in_the_output_dtype_per_block():
    """Adding ones in bfloat16 stops at 256; in blocks of 100 it does not, and float32 is exact."""
    L = 400
    q, one = np.zeros((1, 1, L, 1)), np.ones((1, 1, 1, 1))
    dout = np.ones((1, 1, L, 1))
    for block, total in ((0, 400), (1, 256), (100, 400)):
        precision = dataclasses.replace(HALF, grad_q_block=block)
        assert streaming.attention_grad(q, one, one, dout, precision=precision).dv.item() == total
    # dq = sum over 512 keys of p k = 1/512 each; beyond 1/2 bfloat16 loses them
    k = np.ones((1, 1, 512, 1))
    for block, total in ((0, 1.0), (1, 0.5), (512, 1.0)):
        precision = dataclasses.replace(HALF, grad_k_block=block)
        zero = np.zeros((1, 1, 1, 1))
        g = streaming.attention_grad(zero, k, k, zero, np.ones((1, 1, 1)), precision=precision, scale=1.0)
        assert g.dq.item() == total


def test_group_gradients_are_summed_before_they_are_rounded():
    one, dout = np.ones((1, 1, 1, 1)), np.array([1.0, 2.0**-8, 2.0**-8]).reshape(1, 3, 1, 1)
    q = np.ones((1, 3, 1, 1))
    g = streaming.attention_grad(q, one, one, dout, precision=HALF)
    assert float(g.dv.item()) == 1 + 2.0**-7  # in bfloat16, 1 + 2**-8 is 1 and stays so


def test_casts_round_as_round_to_does():
    rules = Rules(HALF, Schedule())
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(20000) * 2.0 ** rng.integers(-30, 18, 20000)).astype(np.float32)
    x[::2] = x[::2].view(np.uint32).__and__(0xFFFF8000).view(np.float32)  # ties of bfloat16
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        np.testing.assert_array_equal(rules.round(x, name), round_to(x, name).astype(np.float32))


def test_subnormal_outputs_are_flushed_where_the_contract_says_so():
    q, k = np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    v = np.full((1, 1, 1, 1), 2.0**-20)
    for flush, value in ((False, 2.0**-20), (True, 0.0)):
        precision = dataclasses.replace(preset("float16"), flush_subnormal=flush)
        assert float(streaming.attention(q, k, v, precision=precision).out.item()) == value


def test_a_schedule_that_breaks_its_contract_is_refused():
    with pytest.raises(ValueError, match="tile_k=8 rescales more often than precision.tile=16"):
        two_keys(HALF, schedule=Schedule(tile_k=8))
    with pytest.raises(ValueError, match="order='sideways'"):
        Schedule(order="sideways")


def test_a_score_mod_hides_with_minus_infinity() -> None:
    rng = np.random.default_rng(5)
    q, k, v, dout = (rng.standard_normal((1, 2, n, 4)) for n in (3, 5, 5, 3))
    v[:, :, 4] = np.nan
    mod = SCORE_MODS["staircase"]
    mask = np.arange(5) < 2 * np.arange(3)[:, None]
    for module in (oracle, streaming):
        got = module.attention(q, k, v, score_mod=mod)
        np.testing.assert_array_equal(got.out, module.attention(q, k, v, mask=mask).out)
        g, h = (
            module.attention_grad(q, k, v, dout, **options) for options in ({"score_mod": mod}, {"mask": mask})
        )
        for name in ("dq", "dk", "dv", "dscale"):
            np.testing.assert_array_equal(getattr(g, name), getattr(h, name), err_msg=name)
        nothing = module.attention(q, k, v, score_mod=lambda s, b, h, i, j: np.full_like(s, -np.inf))
        assert (nothing.out == 0).all() and (nothing.lse == -np.inf).all()


def test_dsoftcap_where_the_quotient_overflows() -> None:
    one = np.full((1, 1, 1, 1), 1e150)
    for module in (oracle, streaming):
        g = module.attention_grad(one, np.full((1, 1, 2, 1), 1e150), one.repeat(2, 2), one, softcap=1e-10)
        assert g.dsoftcap is not None and g.dsoftcap == 0 and (g.dq == 0).all()


@pytest.mark.parametrize("splits", [1, 2])
def test_a_maximum_near_the_lowest_number_overflows_in_no_base(splits: int) -> None:
    cases = [c for c in CASES if c.id == "mask-lowest-bf16"]
    kernel = streaming.Streaming(schedule=Schedule(tile_q=16, tile_k=16, exp="exp2", splits=splits))
    assert run(kernel, cases).counts()["passed"] == len(cases) == 1


def test_exp2_of_rows_whose_logits_are_all_near_the_lowest_number() -> None:
    low = np.finfo(np.float32).min
    x = np.array([[low, low], [low, np.float32(0.999) * low]], np.float32)
    exp = Rules(preset("float32"), Schedule(exp="exp2")).exp
    np.testing.assert_array_equal(exp(x, x.max(1, keepdims=True)), [[1, 1], [0, 1]])
