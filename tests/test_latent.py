"""Multi-head latent attention: both forms against ball arithmetic and each other, and their gradients.

Bounds.  Whatever the order, each term of a score passes n = Dn + R + Dr + 3 roundings at most, so that a score
whose terms sum to S in absolute value is off by n u S; subtracting the maximum and exp add 2 u S and a few u.  A
weight is a quotient of two such: off by 2 (n + 2) S + 2 Lk + 8 units of u relatively.  In any result a weight
stands twice at most (p, and out in delta), beside sums over each of the sizes once.  Altogether

    4 (n + 2) S + 4 (B + Lq + Lk + Dn + Dr + R + Dv + H) + 40

units of u = 2**-53 times the sum of the absolute values that make the element, to first order in u.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import attention
from refattn.masks import Causal
from refattn.oracle import LatentGradients, latent_attention, latent_attention_grad

Array = np.ndarray[Any, Any]
U = 2.0**-53
ARRAYS = ("q_nope", "q_rope", "c", "k_rope", "W_UK", "W_UV")
FORMS = (False, True)


def _draw(
    rng: np.random.Generator, *, B: int = 2, H: int = 3, Lq: int = 3, Lk: int = 5,
    Dn: int = 4, Dr: int = 2, R: int = 7, Dv: int = 6,
) -> dict[str, Array]:  # fmt: skip
    shapes = {"q_nope": (B, H, Lq, Dn), "q_rope": (B, H, Lq, Dr), "c": (B, Lk, R), "k_rope": (B, Lk, Dr)}
    shapes |= {"W_UK": (H, Dn, R), "W_UV": (H, R, Dv)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@st.composite
def _problems(draw: st.DrawFn) -> tuple[dict[str, Array], dict[str, Any], Array, Array]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = {name: draw(st.integers(0, 3)) for name in ("B", "H", "Lq", "Lk", "Dn", "Dr", "R", "Dv")}
    x = _draw(rng, **n)
    x["q_nope"] *= (spread := draw(st.sampled_from([1.0, 1.0, 30.0, 1e3])))
    x["q_rope"] *= spread
    shape = (n["B"], n["H"], n["Lq"], n["Lk"])
    mask = rng.random(shape) < draw(st.sampled_from([0.0, 0.6])) if draw(st.booleans()) else None
    options = {"mask": mask, "scale": draw(st.sampled_from([None, 0.0, -0.5]))}
    return x, options, rng.standard_normal((*shape[:3], n["Dv"])), rng.standard_normal(shape[:3])


def _scale(x: dict[str, Array], scale: float | None) -> float:
    size = x["q_nope"].shape[-1] + x["q_rope"].shape[-1]
    return scale if scale is not None else (size**-0.5 if size else 1.0)


def _visible(x: dict[str, Array], mask: Array | None) -> Array:
    shape = (*x["q_nope"].shape[:3], x["c"].shape[1])
    return np.broadcast_to(True if mask is None else mask, shape)


def _out_lse(x: dict[str, Any], options: dict[str, Any]) -> tuple[Array, Array, Array]:
    """out, lse and p by the formula of a score, in numbers that may be complex."""
    visible = _visible(x, options["mask"])
    t = np.einsum("bhid,hdr,bjr->bhij", x["q_nope"], x["W_UK"], x["c"])
    t = _scale(x, options["scale"]) * (t + np.einsum("bhid,bjd->bhij", x["q_rope"], x["k_rope"]))
    top = np.where(visible, t.real, -np.inf).max(-1, initial=-1e300, keepdims=True)
    e = np.where(visible, np.exp(np.where(visible, t - top, 0.0)), 0.0)
    total = np.where(visible.any(-1, keepdims=True), e.sum(-1, keepdims=True), 1.0)
    lse = np.where(visible.any(-1), (top + np.log(total))[..., 0], 0.0)
    return np.einsum("bhij,bjr,hrv->bhiv", e / total, x["c"], x["W_UV"]), lse, (e / total).real


def _sizes(
    x: dict[str, Array], options: dict[str, Any], dout: Array, dlse: Array
) -> tuple[dict[str, Array], float]:  # fmt: skip
    """Sums of absolute values of the terms of each result, and the limit of the docstring."""
    p = _out_lse(x, options)[2]
    p = np.where(_visible(x, options["mask"]), p + 2.0**-1022, 0.0)
    a = {name: np.abs(array) for name, array in x.items()} | {"dout": np.abs(dout)}
    scale = abs(_scale(x, options["scale"]))
    key, value = np.einsum("hdr,bjr->bhjd", a["W_UK"], a["c"]), np.einsum("bjr,hrv->bhjv", a["c"], a["W_UV"])
    terms = scale * (a["q_nope"] @ key.swapaxes(-1, -2) + np.einsum("bhid,bjd->bhij", a["q_rope"], a["k_rope"]))
    S = float(np.where(_visible(x, options["mask"]), terms, 0.0).max(initial=0.0))
    out = p @ value
    dt = scale * p * (a["dout"] @ value.swapaxes(-1, -2) + ((a["dout"] * out).sum(-1) + np.abs(dlse))[..., None])
    dkey, dvalue = np.einsum("bhij,bhid->bhjd", dt, a["q_nope"]), np.einsum("bhij,bhiv->bhjv", p, a["dout"])
    dc = np.einsum("bhjd,hdr->bjr", dkey, a["W_UK"]) + np.einsum("bhjv,hrv->bjr", dvalue, a["W_UV"])
    sizes = {"out": out, "dq_nope": dt @ key, "dq_rope": np.einsum("bhij,bjd->bhid", dt, a["k_rope"]), "dc": dc}
    sizes["dk_rope"] = np.einsum("bhij,bhid->bjd", dt, a["q_rope"])
    sizes |= {"dW_UK": np.einsum("bhjd,bjr->hdr", dkey, a["c"]), "dW_UV": np.einsum("bjr,bhjv->hrv", a["c"], dvalue)}
    (B, H, Lq, Dn), (_, Lk, R), Dr, Dv = x["q_nope"].shape, x["c"].shape, x["k_rope"].shape[2], x["W_UV"].shape[2]
    return sizes, 4 * (Dn + R + Dr + 5) * S + 4 * (B + Lq + Lk + Dn + Dr + R + Dv + H) + 40


def _units(got: Array, expected: Array, size: Array) -> float:
    """The largest error in units of u times the size; NaN is infinite."""
    assert got.shape == expected.shape == size.shape
    error = np.maximum(np.abs(got - expected) - 2.0**-1060, 0.0) / np.where(size == 0, 1.0, size * U)
    error = np.where((size == 0) & (got != expected), np.inf, error)
    return float(np.where(np.isnan(error), np.inf, error).max(initial=0.0))


@settings(max_examples=200)
@given(_problems())
def test_both_forms_are_equal(problem: tuple[dict[str, Array], dict[str, Any], Array, Array]) -> None:
    """Output, lse and all gradients, within twice the bound, sizes of 0 and 1 and dead rows included."""
    x, options, dout, dlse = problem
    (out, lse), (out2, lse2) = (latent_attention(**x, **options, absorbed=form) for form in FORMS)
    sizes, limit = _sizes(x, options, dout, dlse)
    assert _units(out, out2, sizes["out"]) <= 2 * limit
    dead = ~_visible(x, options["mask"]).any(-1)
    assert (out[dead] == 0).all() and (out2[dead] == 0).all()
    assert (lse[dead] == -np.inf).all() and (lse2[dead] == -np.inf).all()
    assert _units(lse[~dead], lse2[~dead], 1 + np.abs(lse[~dead])) <= 2 * limit
    expanded, absorbed = (
        latent_attention_grad(**x, dout=dout, dlse=dlse, **options, absorbed=form)._asdict() for form in FORMS
    )
    for name, g in expanded.items():
        assert _units(g, absorbed[name], sizes[name]) <= 2 * limit, name


@settings(max_examples=100)
@given(_problems())
def test_gradients_by_complex_step(problem: tuple[dict[str, Array], dict[str, Any], Array, Array]) -> None:
    """One random direction for each argument: Im loss(x + i h u) / h = <gradient, u>, with nothing subtracted."""
    x, options, dout, dlse = problem
    rng, sizes = np.random.default_rng(0), _sizes(x, options, dout, dlse)[0]
    gradients = [latent_attention_grad(**x, dout=dout, dlse=dlse, **options, absorbed=form) for form in FORMS]
    for name in ARRAYS:
        u = rng.standard_normal(x[name].shape)
        out, lse, _ = _out_lse(x | {name: x[name] + 2.0**-100 * 1j * u}, options)
        slope = float(np.imag((out * dout).sum() + (lse * dlse).sum())) * 2.0**100
        for g in gradients:
            got = getattr(g, "d" + name)
            assert got.shape == x[name].shape
            assert abs((got * u).sum() - slope) <= 1e-10 * (sizes["d" + name] * np.abs(u)).sum(), name


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("absorbed", FORMS)
def test_within_the_bound_of_ball_arithmetic(absorbed: bool, spread: float) -> None:
    """The definition, element by element, in balls of 128 bits."""
    flint = pytest.importorskip("flint", reason="python-flint (extra `test`) makes the balls")
    rng = np.random.default_rng(7)
    x = _draw(rng, B=1, H=2)
    x["q_nope"] *= spread
    mask = np.array([[True, True, False, True, True], [False] * 5, [False, False, True, False, True]])
    out, lse = latent_attention(**x, mask=mask, absorbed=absorbed)
    sizes, limit = _sizes(x, {"mask": mask, "scale": None}, out, np.zeros_like(lse))
    (_, H, Lq, Dn), R, Dr, Dv = x["q_nope"].shape, 7, 2, 6
    worst = 0.0
    with flint.ctx.workprec(300):
        balls: dict[str, Any] = {}
        for name, array in x.items():
            balls[name] = np.empty(array.shape, dtype=object)
            for index in np.ndindex(array.shape):
                balls[name][index] = flint.arb(float(array[index]))
        for h, i in np.ndindex(H, Lq):
            weights = {}
            for j in np.flatnonzero(mask[i]):
                s = flint.arb(0)
                for d in range(Dn):
                    key = sum((balls["W_UK"][h, d, r] * balls["c"][0, j, r] for r in range(R)), flint.arb(0))
                    s += balls["q_nope"][0, h, i, d] * key
                for d in range(Dr):
                    s += balls["q_rope"][0, h, i, d] * balls["k_rope"][0, j, d]
                weights[j] = (s / flint.arb(Dn + Dr).sqrt()).exp()
            if not weights:
                assert (out[0, h, i] == 0).all() and lse[0, h, i] == -np.inf
                continue
            total = sum(weights.values(), flint.arb(0))
            error = float((total.log() - float(lse[0, h, i])).abs_upper())
            assert error <= limit * U * (1 + abs(lse[0, h, i]))
            for e in range(Dv):
                exact = flint.arb(0)
                for j, w in weights.items():
                    value = sum((balls["c"][0, j, r] * balls["W_UV"][h, r, e] for r in range(R)), flint.arb(0))
                    exact += w / total * value
                error = float((exact - float(out[0, h, i, e])).abs_upper())
                worst = max(worst, error / (U * float(sizes["out"][0, h, i, e])))
    assert worst <= limit, f"{worst:.3g} units, limit {limit:.3g}"


@pytest.mark.parametrize("absorbed", FORMS)
def test_the_default_scale_is_that_of_the_expanded_head(absorbed: bool) -> None:
    """(Dn + Dr)**-0.5 = 6**-0.5 in both forms; (R + Dr)**-0.5 = 9**-0.5 would be another function."""
    x = _draw(np.random.default_rng(8))
    default = latent_attention(**x, absorbed=absorbed)
    np.testing.assert_array_equal(default.out, latent_attention(**x, absorbed=absorbed, scale=6**-0.5).out)
    assert np.abs(default.lse - latent_attention(**x, absorbed=absorbed, scale=9**-0.5).lse).max() > 0.1


def test_it_is_attention_with_what_was_written_out() -> None:
    """Head by head, with keys and values made by a loop over tokens."""
    x = _draw(np.random.default_rng(9))
    mask = Causal("bottom_right")
    for h in range(3):
        k, v = np.zeros((2, 1, 5, 6)), np.zeros((2, 1, 5, 6))
        for b, j in np.ndindex(2, 5):
            k[b, 0, j] = [*(x["W_UK"][h] @ x["c"][b, j]), *x["k_rope"][b, j]]
            v[b, 0, j] = x["c"][b, j] @ x["W_UV"][h]
        q = np.concatenate([x["q_nope"], x["q_rope"]], axis=-1)[:, h : h + 1]
        expected = attention(q, k, v, mask=mask)
        for form in FORMS:
            got = latent_attention(**x, mask=mask, absorbed=form)
            np.testing.assert_allclose(got.out[:, h : h + 1], expected.out, rtol=1e-11, atol=1e-13)
            np.testing.assert_allclose(got.lse[:, h : h + 1], expected.lse, rtol=1e-12)


@pytest.mark.parametrize("absorbed", FORMS)
@given(seed=st.integers(0, 2**32 - 1), bad=st.sampled_from([np.nan, np.inf]))
def test_tokens_that_are_not_seen_do_not_matter(absorbed: bool, seed: int, bad: float) -> None:
    """Unused cache slots, and rows that see nothing; to no gradient either, those of the weights included."""
    rng = np.random.default_rng(seed)
    x = _draw(rng)
    mask = rng.random((2, 1, 3, 5)) < 0.4
    hidden, dead = ~mask.any((1, 2)), np.broadcast_to(~mask.any(-1), (2, 3, 3))
    dout, dlse = rng.standard_normal((2, 3, 3, 6)), rng.standard_normal((2, 3, 3))
    poisoned = {name: np.array(array) for name, array in (x | {"dout": dout, "dlse": dlse}).items()}
    for name in ("c", "k_rope"):
        poisoned[name][hidden] = bad
    for name in ("q_nope", "q_rope", "dout", "dlse"):
        poisoned[name][dead] = bad
    options: dict[str, Any] = {"mask": mask, "absorbed": absorbed}
    expected = latent_attention_grad(**x, dout=dout, dlse=dlse, **options)
    got = latent_attention_grad(**poisoned, **options)
    for name in LatentGradients._fields:
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
    arrays = {name: poisoned[name] for name in ARRAYS}
    np.testing.assert_array_equal(latent_attention(**arrays, **options).out, latent_attention(**x, **options).out)


@pytest.mark.parametrize("absorbed", FORMS)
def test_a_token_spoils_the_heads_that_see_it_only(absorbed: bool) -> None:
    x = _draw(np.random.default_rng(10))
    mask = np.ones((3, 1, 5), dtype=bool)
    mask[1:, :, 4] = False
    dout = np.ones((2, 3, 3, 6))
    expected = latent_attention_grad(**x, dout=dout, mask=mask, absorbed=absorbed)
    x["c"][:, 4] = np.nan
    got = latent_attention_grad(**x, dout=dout, mask=mask, absorbed=absorbed)
    for name in ("dW_UK", "dW_UV"):
        np.testing.assert_array_equal(getattr(got, name)[1:], getattr(expected, name)[1:])
        assert np.isnan(getattr(got, name)[0]).any()


GIVEN = _draw(np.random.default_rng(11))
REFUSED: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"q_nope": np.ones((3, 3, 4))}, ValueError, ["q_nope.shape=(3, 3, 4)", "4 dimensions, (B, H, Lq, Dn)"]),
    ({"q_rope": np.ones((3, 3, 2))}, ValueError, ["q_rope.shape=(3, 3, 2)", "4 dimensions, (B, H, Lq, Dr)"]),
    ({"q_rope": np.ones((2, 1, 3, 2))}, ValueError, ["q_rope.shape=(2, 1, 3, 2)", "(B, H, Lq)=(2, 3, 3)"]),
    ({"c": np.ones((2, 1, 5, 7))}, ValueError, ["c.shape=(2, 1, 5, 7)", "3 dimensions, (B, Lk, R)"]),
    ({"c": np.ones((1, 5, 7))}, ValueError, ["c.shape=(1, 5, 7)", "B=2"]),
    ({"k_rope": np.ones((2, 3, 5, 2))}, ValueError, ["k_rope.shape=(2, 3, 5, 2)", "must be (2, 5, 2)"]),
    ({"W_UK": np.ones((3, 7, 4))}, ValueError, ["W_UK.shape=(3, 7, 4)", "must be (3, 4, 7)"]),
    ({"W_UV": np.ones((3, 6, 7))}, ValueError, ["W_UV.shape=(3, 6, 7)", "(H, R)=(3, 7)"]),
    ({"W_UV": np.ones((7, 6))}, ValueError, ["W_UV.shape=(7, 6)", "3 dimensions, (H, R, Dv)"]),
    ({"dout": np.ones((2, 3, 3, 7))}, ValueError, ["dout.shape=(2, 3, 3, 7)", "must be (2, 3, 3, 6)"]),
    ({"dlse": np.ones((2, 3))}, ValueError, ["dlse.shape=(2, 3)", "must be (2, 3, 3)"]),
    ({"mask": np.ones((5, 5), dtype=bool)}, ValueError, ["mask.shape=(5, 5)", "(2, 3, 3, 5)"]),
    ({"scale": np.inf}, ValueError, ["scale=inf", "finite"]),
    ({"absorbed": 1}, TypeError, ["absorbed=1", "must be True or False"]),
    *(
        ({name: np.ones(GIVEN[name].shape, dtype=np.int32)}, TypeError, [f"{name}.dtype=int32", "use one of float64"])
        for name in ARRAYS
    ),
    ({"dout": np.ones((2, 3, 3, 6), dtype=bool)}, TypeError, ["dout.dtype=bool", "use one of float64"]),
    ({"dlse": np.ones((2, 3, 3), dtype=complex)}, TypeError, ["dlse.dtype=complex128", "use one of float64"]),
]


@pytest.mark.parametrize("absorbed", FORMS)
@pytest.mark.parametrize(("changed", "kind", "words"), REFUSED, ids=lambda x: str(x[0]) if isinstance(x, list) else "")
def test_refusals(changed: dict[str, Any], kind: type[Exception], words: list[str], absorbed: bool) -> None:
    given: dict[str, Any] = GIVEN | {"dout": np.ones((2, 3, 3, 6)), "dlse": np.ones((2, 3, 3)), "absorbed": absorbed}
    latent_attention_grad(**given)
    with pytest.raises(kind) as error:
        latent_attention_grad(**given | changed)
    assert all(word in str(error.value) for word in words), error.value
    if not changed.keys() & {"dout", "dlse"}:
        with pytest.raises(kind):
            latent_attention(**{name: y for name, y in (given | changed).items() if name not in ("dout", "dlse")})
