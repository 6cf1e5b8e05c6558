"""Double backward: against complex steps, ball arithmetic, torch, and the symmetry of second derivatives.

Errors are in units of u = 2**-53 times the sum of the absolute values that were added up to make an
element, each line of the definition with its terms taken absolutely; see `_sizes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import attention, attention_grad
from refattn.oracle import SecondGradients, attention_grad_grad

Array = np.ndarray[Any, Any]
U = 2.0**-53
STEP = 2.0**-100  # its square vanishes beside 1
FLOOR = 2.0**-800  # smaller weights and slopes, times the step, may underflow
DIRECTION = {"q": "ddq", "k": "ddk", "v": "ddv"}
OPTIONS = ("mask", "bias", "scale", "softcap", "sinks")


def _second(x: dict[str, Any]) -> SecondGradients:
    arrays = [x[name] for name in ("q", "k", "v", "dout", "ddq", "ddk", "ddv")]
    return attention_grad_grad(*arrays, **{name: x.get(name) for name in OPTIONS})


def _visible(x: dict[str, Any]) -> Array:
    shape = (*x["q"].shape[:3], x["k"].shape[2])
    mask = np.ones(shape, dtype=bool) if x.get("mask") is None else np.broadcast_to(x["mask"], shape)
    return mask if x.get("bias") is None else mask & ~np.isneginf(np.broadcast_to(x["bias"], shape))


def _first(x: dict[str, Any], step: complex | float = 0.0) -> dict[str, Array]:
    """out, dq, dk and dv at (q, k, v) + step * (ddq, ddk, ddv): a few lines of NumPy that take complex numbers."""
    q, k, v = (x[name] + step * x[DIRECTION[name]] for name in "qkv")
    H, Hkv = q.shape[1], k.shape[1]
    to_query_head = np.eye(Hkv).repeat(H // Hkv, axis=0)  # (H, Hkv)
    k_, v_ = (np.einsum("hg,bgjd->bhjd", to_query_head, y) for y in (k, v))
    scale = x["scale"] if x["scale"] is not None else (q.shape[-1] ** -0.5 if q.shape[-1] else 1.0)
    t, slope = scale * np.einsum("bhid,bhjd->bhij", q, k_), np.ones(())
    if x["softcap"] is not None:
        z = t / x["softcap"]
        small = np.exp(np.where(z.real < 0, 2 * z, -2 * z))
        t, slope = x["softcap"] * np.where(z.real < 0, -1, 1) * (1 - small) / (1 + small), 4 * small / (1 + small) ** 2
    visible = _visible(x)
    if x.get("bias") is not None:
        t = t + np.where(visible, x["bias"], 0.0)
    top = np.where(visible, t.real, -np.inf).max(-1, initial=-1e300, keepdims=True)
    if x.get("sinks") is not None:
        top = np.maximum(top, x["sinks"][:, None, None])
    e = np.where(visible, np.exp(np.where(visible, t - top, 0.0)), 0.0)
    total = e.sum(-1, keepdims=True)
    if x.get("sinks") is not None:
        total = total + np.exp(x["sinks"][:, None, None] - top)
    p = e / np.where(total == 0, 1.0, total)
    out = p @ v_
    dp = np.einsum("bhid,bhjd->bhij", x["dout"], v_)
    ds = scale * slope * p * (dp - (out * x["dout"]).sum(-1, keepdims=True))
    dk, dv = np.einsum("bhij,bhid->bhjd", ds, q), np.einsum("bhij,bhid->bhjd", p, x["dout"])
    dk, dv = (np.einsum("hg,bhjd->bgjd", to_query_head, y) for y in (dk, dv))
    return {"q": ds @ k_, "k": dk, "v": dv, "dout": out}


def _sizes(x: dict[str, Any]) -> tuple[dict[str, Array], float]:
    """Sums of absolute values of the terms of each result, and the largest such sum of a score."""
    group = x["q"].shape[1] // x["k"].shape[1]
    q, dout, q1 = (np.abs(x[name]) for name in ("q", "dout", "ddq"))
    k, v, k1, v1 = (np.abs(x[name]).repeat(group, axis=1) for name in ("k", "v", "ddk", "ddv"))
    D, visible, softcap = q.shape[-1], _visible(x), x["softcap"]
    scale = abs(x["scale"] if x["scale"] is not None else D**-0.5 if D else 1.0)

    def T(y: Array) -> Array:
        return y.swapaxes(-1, -2)

    Lk = k.shape[2]
    eye = np.broadcast_to(np.eye(Lk), (*x["k"].shape[:2], Lk, Lk))
    p = attention(x["q"], x["k"], eye, **{name: x.get(name) for name in OPTIONS}).out
    p = np.where(visible, p + FLOOR, 0.0)
    terms = scale * q @ T(k)
    w, w1 = np.ones_like(p), np.zeros_like(p)
    s1 = scale * (q1 @ T(k) + q @ T(k1))
    if softcap is not None:
        s = scale * x["q"] @ T(x["k"].repeat(group, axis=1))
        with np.errstate(over="ignore"):
            w = np.cosh(s / softcap) ** -2.0 + FLOOR
        w1 = 2 * w * s1 / softcap
    t1 = w * s1
    p1 = p * (t1 + (p * t1).sum(-1, keepdims=True))
    out, out1 = p @ v, p1 @ v + p @ v1
    above = dout @ T(v) + (dout * out).sum(-1, keepdims=True)
    above1 = dout @ T(v1) + (dout * out1).sum(-1, keepdims=True)
    dt, dt1 = p * above, p1 * above + p * above1
    ds, ds1 = w * dt, w1 * dt + w * dt1
    dk, dv = scale * (T(ds1) @ q + T(ds) @ q1), T(p1) @ dout
    dk, dv = (y.reshape(y.shape[0], y.shape[1] // group, group, *y.shape[2:]).sum(2) for y in (dk, dv))
    bias = 0.0 if x.get("bias") is None else np.where(visible, np.abs(x["bias"]), 0.0)
    logit = float(np.where(visible, terms + bias, 0.0).max(initial=0.0))
    return {"q": scale * (ds1 @ k + ds @ k1), "k": dk, "v": dv, "dout": out1}, logit


def _units(got: SecondGradients, expected: dict[str, Array], sizes: dict[str, Array]) -> dict[str, float]:
    """The largest error of each result in units of u times the size; NaN is infinite."""
    worst = {}
    for name, g in got._asdict().items():
        e, size = expected[name], sizes[name]
        assert g.shape == e.shape == size.shape, name
        error = np.maximum(np.abs(g - e) - 2.0**-1069, 0.0) / np.where(size == 0, 1.0, size * U)
        error = np.where((size == 0) & (g != e), np.inf, error)
        worst[name] = float(np.where(np.isnan(error), np.inf, error).max(initial=0.0))
    return worst


@st.composite
def _problems(draw: st.DrawFn) -> dict[str, Any]:
    """Any combination of features, sizes from 0, logits up to some thousands."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    b, hkv, group = draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    lq, lk, d, dv = draw(st.integers(0, 4)), draw(st.integers(0, 5)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    h, spread = hkv * group, draw(st.sampled_from([0.0, 1.0, 30.0, 1e3]))
    shapes = {"q": (b, h, lq, d), "k": (b, hkv, lk, d), "v": (b, hkv, lk, dv), "dout": (b, h, lq, dv)}
    shapes |= {"dd" + name: shapes[name] for name in "qkv"}
    x: dict[str, Any] = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    x["q"] *= spread
    x["scale"] = draw(st.sampled_from([None, 0.0, 1.0, -0.5]))
    x["softcap"] = draw(st.sampled_from([None, 0.5, 50.0]))
    if draw(st.booleans()):
        x["mask"] = np.asarray(rng.random((b, 1, lq, lk)) < draw(st.sampled_from([0.0, 0.5, 0.9])))
    if draw(st.booleans()):
        x["bias"] = np.where(rng.random((h, 1, lk)) < 0.2, -np.inf, rng.standard_normal((h, 1, lk)))
    if draw(st.booleans()):
        x["sinks"] = np.where(rng.random(h) < 0.2, -np.inf, rng.standard_normal(h))
    return x


def _limit(x: dict[str, Any], logit: float) -> float:
    """An error of a score of S u, S the sum of its |terms|, is inherent; a softcap bends it by up to 2 / softcap."""
    return 40 + 8 * logit * (1 + (2 / x["softcap"] if x["softcap"] else 0))


@settings(max_examples=400)
@given(_problems())
def test_is_the_derivative_of_the_gradients(x: dict[str, Any]) -> None:
    """Im f(x + i STEP u) / STEP is the derivative of f in direction u, with nothing subtracted."""
    expected = {name: y.imag / STEP for name, y in _first(x, STEP * 1j).items()}
    sizes, logit = _sizes(x)
    for name, units in _units(_second(x), expected, sizes).items():
        assert units <= _limit(x, logit), f"{name} is {units:.3g} units off"


@settings(max_examples=200)
@given(_problems(), st.integers(0, 2**32 - 1))
def test_second_derivatives_are_symmetric(x: dict[str, Any], seed: int) -> None:
    """<b, H a> = <a, H b>, which needs no reference; and <dout, out'> = <u, (dq, dk, dv)>, u = (ddq, ddk, ddv)."""
    rng = np.random.default_rng(seed)
    y = x | {"dd" + name: rng.standard_normal(x[name].shape) for name in "qkv"}
    (hx, hy), ((sx, logit), (sy, _)) = (_second(x), _second(y)), (_sizes(x), _sizes(y))
    one, other = (sum((a["dd" + n] * getattr(h, n)).sum() for n in "qkv") for a, h in ((y, hx), (x, hy)))
    size = sum((np.abs(a["dd" + n]) * s[n]).sum() for n in "qkv" for a, s in ((y, sx), (x, sy)))
    assert abs(one - other) <= _limit(x, logit) * U * size
    first = attention_grad(x["q"], x["k"], x["v"], x["dout"], **{name: x.get(name) for name in OPTIONS})
    along = sum((x["dd" + n] * getattr(first, "d" + n)).sum() for n in "qkv")
    size = (np.abs(x["dout"]) * sx["dout"]).sum()  # the terms of both sums, in another order
    assert abs((x["dout"] * hx.dout).sum() - along) <= 2 * _limit(x, logit) * U * size


@pytest.mark.parametrize("kind", ["plain", "masked", "softcap", "everything"])
def test_against_differences_of_certified_gradients(kind: str) -> None:
    """Central differences of balls of 200 bits with a step of 2**-30, which are off by Taylor alone, about 2**-60."""
    flint = pytest.importorskip("flint", reason="python-flint (extra `test`) makes the certified balls")
    from certified import certify

    rng = np.random.default_rng(5)

    def coarse(*shape: int) -> Array:
        return np.round(rng.standard_normal(shape) * 2**10) / 2**10  # so that x +- 2**-30 u is exact

    x: dict[str, Any] = {"q": coarse(1, 4, 3, 2), "k": coarse(1, 2, 4, 2), "v": coarse(1, 2, 4, 3)}
    x |= {"dd" + name: coarse(*x[name].shape) for name in "qkv"} | {"dout": coarse(1, 4, 3, 3)}
    x |= {"scale": None, "softcap": None}
    if kind in ("masked", "everything"):
        x["mask"] = np.array([[True, False, True, True], [False] * 4, [False, True, False, False]])
    if kind in ("softcap", "everything"):
        x["softcap"] = 0.75
    if kind == "everything":
        x |= {"bias": coarse(4, 1, 4), "sinks": coarse(4), "scale": -1.5}

    def gradients(step: float) -> dict[str, Array]:
        at = {name: x[name] + step * x[DIRECTION[name]] for name in "qkv"}
        options = {name: x.get(name) for name in ("bias", "scale", "softcap", "sinks")}
        balls = certify(**at, **options, visible=x.get("mask"), dout=x["dout"], bits=200).balls
        return {"q": balls["dq"], "k": balls["dk"], "v": balls["dv"], "dout": balls["out"]}

    got, (sizes, logit), plus, minus = _second(x)._asdict(), _sizes(x), gradients(2.0**-30), gradients(-(2.0**-30))
    for name, g in got.items():
        for index in np.ndindex(g.shape):
            with flint.ctx.workprec(300):
                error = flint.arb(float(g[index])) - (plus[name][index] - minus[name][index]) * 2**29
                error = float(error.abs_upper())
            assert error <= _limit(x, logit) * U * sizes[name][index], f"{name}{list(index)}"


@pytest.mark.parametrize("kind", ["plain", "masked", "bias"])
def test_against_torch(kind: str) -> None:
    """PyTorch's math backend is the one that can be differentiated twice (pytorch/pytorch#116350)."""
    torch = pytest.importorskip("torch", reason="torch differentiates its math backend twice")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rng = np.random.default_rng(9)
    x: dict[str, Any] = {"q": rng.standard_normal((2, 6, 5, 4)), "k": rng.standard_normal((2, 2, 7, 4))}
    x |= {"v": rng.standard_normal((2, 2, 7, 3)), "dout": rng.standard_normal((2, 6, 5, 3))}
    x |= {"dd" + name: rng.standard_normal(x[name].shape) for name in "qkv"} | {"softcap": None, "scale": 0.7}
    mask = None
    if kind == "masked":
        x["mask"] = np.tril(np.ones((5, 7), dtype=bool), 2)
        x["mask"][3] = False
        mask = torch.tensor(x["mask"])
    if kind == "bias":
        x["bias"] = np.where(rng.random((5, 7)) < 0.3, -np.inf, rng.standard_normal((5, 7)))
        mask = torch.tensor(x["bias"])
    leaves = [torch.tensor(x[name], requires_grad=True) for name in ("q", "k", "v", "dout")]
    with sdpa_kernel(SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(
            *leaves[:3], attn_mask=mask, scale=x["scale"], enable_gqa=True
        )
        first = torch.autograd.grad(out, leaves[:3], leaves[3], create_graph=True)
        loss = sum((torch.tensor(x["dd" + name]) * g).sum() for name, g in zip("qkv", first, strict=True))
        expected = torch.autograd.grad(loss, leaves)
    sizes, logit = _sizes(x)
    names = SecondGradients._fields
    units = _units(_second(x), {n: e.numpy() for n, e in zip(names, expected, strict=True)}, sizes)
    assert max(units.values()) <= _limit(x, logit), units


def test_by_hand() -> None:
    """q = 1, scores 0 and log 3 weigh 1/4 and 3/4; v = (4, 8), dout = 1, and ddv = (0, 1) alone.

    <ddv, dv> = p_2, whose derivative by t_2 is p_2 p_1 = 3/16; by q it is 3/16 (k_2 - k_1), and out' = p_2.
    """
    x = {"q": [1.0], "k": [0.0, np.log(3.0)], "v": [4.0, 8.0], "dout": [1.0], "ddv": [0.0, 1.0]}
    arrays = {name: np.array(value).reshape(1, 1, -1, 1) for name, value in x.items()}
    g = attention_grad_grad(**arrays)
    np.testing.assert_allclose(g.k.ravel(), [-3 / 16, 3 / 16], rtol=1e-14)
    np.testing.assert_allclose(g.q.item(), 3 / 16 * np.log(3.0), rtol=1e-14)
    np.testing.assert_allclose(g.dout.item(), 3 / 4, rtol=1e-14)
    assert (g.v == 0).all()  # dv does not depend on v
    alone = attention_grad_grad(**arrays | {"ddv": 0 * arrays["v"], "ddk": arrays["v"]})
    # <(4, 8), dk> = 3/4 (8 - 4), p_1 p_2 (v_2 - v_1) times the same: its derivative by v_2 is 3/16 (8 - 4)
    np.testing.assert_allclose(alone.v.ravel(), [-3 / 4, 3 / 4], rtol=1e-14)


def test_none_is_zero() -> None:
    rng = np.random.default_rng(11)
    q, k, v, dout = (rng.standard_normal(s) for s in ((1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 3), (1, 4, 3, 3)))
    ddk = rng.standard_normal(k.shape)
    for got, expected in zip(
        attention_grad_grad(q, k, v, dout, ddk=ddk), attention_grad_grad(q, k, v, dout, 0 * q, ddk, 0 * v), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    assert all((g == 0).all() for g in attention_grad_grad(q, k, v, dout))


@settings(max_examples=100)
@given(_problems(), st.sampled_from([np.nan, np.inf]))
def test_what_is_not_seen_does_not_matter(x: dict[str, Any], bad: float) -> None:
    """Of tokens that no query of their heads sees, and of rows that see nothing, nothing is read."""
    visible = _visible(x)
    group = x["q"].shape[1] // x["k"].shape[1]
    B, H, Lq, Lk = visible.shape
    unread, dead = ~visible.reshape(B, H // group, group, Lq, Lk).any((2, 3)), ~visible.any(-1)
    poisoned = {name: np.array(x[name]) for name in ("q", "k", "v", "dout", "ddq", "ddk", "ddv")}
    for name, array in poisoned.items():
        array[unread if name[-1] in "kv" else dead] = bad
    expected, got = _second(x), _second(x | poisoned)
    for name, g in got._asdict().items():
        np.testing.assert_array_equal(g, getattr(expected, name), err_msg=name)
    assert (got.q[dead] == 0).all() and (got.dout[dead] == 0).all()
    assert (got.k[unread] == 0).all() and (got.v[unread] == 0).all()


@pytest.mark.parametrize("name", ["k", "v", "ddk", "ddv", "q", "dout", "ddq"])
def test_a_pair_that_is_seen_spoils_its_own_row_and_keys_only(name: str) -> None:
    """Row 0 sees keys 0 and 1, row 1 keys 2 and 3: what is NaN in one half does not reach the other."""
    rng = np.random.default_rng(12)
    x: dict[str, Any] = {n: rng.standard_normal((1, 1, 2, 3)) for n in ("q", "dout", "ddq")}
    x |= {n: rng.standard_normal((1, 1, 4, 3)) for n in ("k", "v", "ddk", "ddv")} | {"scale": None, "softcap": 2.0}
    x["mask"] = np.array([[True, True, False, False], [False, False, True, True]])
    expected = _second(x)
    array = np.array(x[name])
    array[:, :, -1] = np.nan
    got = _second(x | {name: array})
    for n, rows in (("q", 1), ("dout", 1), ("k", 2), ("v", 2)):
        np.testing.assert_array_equal(getattr(got, n)[:, :, :rows], getattr(expected, n)[:, :, :rows], err_msg=n)
    assert np.isnan(got.dout if name not in ("dout", "v") else got.k).any()


@pytest.mark.parametrize("largest", [1e4, 1e16, 1e150])
def test_huge_logits(largest: float) -> None:
    """One key wins by far: all weights are 0 or 1, and so is out' = v' of the winner, with no NaN on the way."""
    q, k = np.full((1, 1, 1, 1), largest), np.array([0.0, 1.0, -1.0]).reshape(1, 1, 3, 1)
    v, dout = np.array([3.0, 5.0, 7.0]).reshape(1, 1, 3, 1), np.ones((1, 1, 1, 1))
    for softcap in (None, 1e3):
        g = attention_grad_grad(q, k, v, dout, dout, k, v, scale=1.0, softcap=softcap)
        assert g.dout.item() == 5 and (g.q == 0).all() and (g.k == 0).all() and (g.v == 0).all()


REFUSED: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"q": np.ones((4, 3, 8))}, ValueError, ["q.shape=(4, 3, 8)", "4 dimensions"]),
    ({"k": np.ones((2, 2, 5, 7))}, ValueError, ["k.shape=(2, 2, 5, 7)", "D=8"]),
    ({"v": np.ones((2, 1, 5, 6))}, ValueError, ["v.shape=(2, 1, 5, 6)", "(2, 2, 5)"]),
    ({"dout": np.ones((2, 4, 3, 8))}, ValueError, ["dout.shape=(2, 4, 3, 8)", "must be (2, 4, 3, 6)"]),
    ({"ddq": np.ones((2, 2, 3, 8))}, ValueError, ["ddq.shape=(2, 2, 3, 8)", "must be (2, 4, 3, 8)"]),
    ({"ddk": np.ones((2, 4, 5, 8))}, ValueError, ["ddk.shape=(2, 4, 5, 8)", "must be (2, 2, 5, 8)"]),
    ({"ddv": np.ones((2, 2, 5, 8))}, ValueError, ["ddv.shape=(2, 2, 5, 8)", "must be (2, 2, 5, 6)"]),
    ({"ddq": np.ones((2, 4, 3, 8), dtype=np.int64)}, TypeError, ["ddq.dtype=int64", "use one of float64"]),
    ({"ddk": np.ones((2, 2, 5, 8), dtype=bool)}, TypeError, ["ddk.dtype=bool", "use one of float64"]),
    ({"ddv": np.ones((2, 2, 5, 6), dtype=complex)}, TypeError, ["ddv.dtype=complex128", "use one of float64"]),
    ({"mask": np.ones((3, 5))}, TypeError, ["mask.dtype=float64", "bool"]),
    ({"bias": np.ones((4, 5))}, ValueError, ["bias.shape=(4, 5)", "(2, 4, 3, 5)"]),
    ({"scale": np.inf}, ValueError, ["scale=inf", "finite", "None for D**-0.5"]),
    ({"softcap": 0.0}, ValueError, ["softcap=0.0", "> 0", "None"]),
    ({"sinks": np.ones((4, 1))}, ValueError, ["sinks.shape=(4, 1)", "must be (4,)"]),
]


@pytest.mark.parametrize(("changed", "kind", "words"), REFUSED, ids=lambda x: str(x[0]) if isinstance(x, list) else "")
def test_refusals(changed: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    given = {"q": np.ones((2, 4, 3, 8)), "k": np.ones((2, 2, 5, 8)), "v": np.ones((2, 2, 5, 6))}
    given |= {"ddq": given["q"], "ddk": given["k"], "ddv": given["v"], "dout": np.ones((2, 4, 3, 6))}
    attention_grad_grad(**given)
    with pytest.raises(kind) as error:
        attention_grad_grad(**given | changed)
    assert all(word in str(error.value) for word in words), error.value
