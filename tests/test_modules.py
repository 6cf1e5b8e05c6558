"""Multi-head attention with projections: against a loop, against torch, and its gradients by complex steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refattn import multi_head_attention, scaled_dot_product_attention
from refattn.masks import Causal
from refattn.oracle import multi_head_attention_grad, split_qkv, stack_qkv

Array = np.ndarray[Any, Any]
ARRAYS = ("Q", "K", "V", "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")


def _draw(
    rng: np.random.Generator, *, B: int = 2, h: int = 4, h_kv: int = 2, Lq: int = 3, Lk: int = 5,
    widths: tuple[int, int, int] = (6, 5, 4), D: int = 3, Dv: int = 2, d_out: int = 7, biases: bool = True,
) -> dict[str, Any]:  # fmt: skip
    shapes = {"Q": (B, Lq, widths[0]), "K": (B, Lk, widths[1]), "V": (B, Lk, widths[2])}
    shapes |= {"W_Q": (h, widths[0], D), "W_K": (h_kv, widths[1], D), "W_V": (h_kv, widths[2], Dv)}
    shapes |= {"W_O": (h * Dv, d_out)}
    if biases:
        shapes |= {"b_Q": (h, D), "b_K": (h_kv, D), "b_V": (h_kv, Dv), "b_O": (d_out,)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def _loss(x: dict[str, Any], mask: Array | None, scale: float | None, dout: Array) -> Any:
    """sum(out * dout) by loops over batch, heads and queries, which take complex numbers."""
    (h, _, D), h_kv = x["W_Q"].shape, x["W_K"].shape[0]
    factor = scale if scale is not None else (D**-0.5 if D else 1.0)
    loss: Any = 0.0
    for b in range(x["Q"].shape[0]):
        heads = []
        for i in range(h):
            g = i // (h // h_kv)
            q = x["Q"][b] @ x["W_Q"][i] + x.get("b_Q", np.zeros((h, 1)))[i]
            k = x["K"][b] @ x["W_K"][g] + x.get("b_K", np.zeros((h_kv, 1)))[g]
            v = x["V"][b] @ x["W_V"][g] + x.get("b_V", np.zeros((h_kv, 1)))[g]
            head = np.zeros((q.shape[0], v.shape[1]), dtype=np.result_type(q, k, v))
            for row in range(q.shape[0]):
                keys = np.arange(k.shape[0]) if mask is None else np.flatnonzero(mask[b, i, row])
                if keys.size:
                    s = factor * (k[keys] @ q[row])
                    e = np.exp(s - s.real.max())
                    head[row] = (e / e.sum()) @ v[keys]
            heads.append(head)
        out = np.concatenate([np.zeros((x["Q"].shape[1], 0)), *heads], axis=-1) @ x["W_O"] + x.get("b_O", 0.0)
        loss = loss + (out * dout[b]).sum()
    return loss


@st.composite
def _problems(draw: st.DrawFn) -> tuple[dict[str, Any], Array | None, float | None, Array]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    h_kv, group = draw(st.integers(0, 2)), draw(st.integers(1, 3))
    n = {name: draw(st.integers(0, 3)) for name in ("B", "Lq", "Lk", "D", "Dv", "d_out")}
    widths = tuple(draw(st.integers(0, 3)) for _ in range(3))
    x = _draw(rng, h=h_kv * group, h_kv=h_kv, widths=widths, biases=draw(st.booleans()), **n)
    x["Q"] *= draw(st.sampled_from([1.0, 1.0, 20.0]))
    shape = (n["B"], h_kv * group, n["Lq"], n["Lk"])
    mask = rng.random(shape) < draw(st.sampled_from([0.0, 0.6])) if draw(st.booleans()) else None
    return x, mask, draw(st.sampled_from([None, 0.0, -0.5])), rng.standard_normal((n["B"], n["Lq"], n["d_out"]))


@given(_problems())
def test_gradients_by_complex_step(problem: tuple[dict[str, Any], Array | None, float | None, Array]) -> None:
    """One random direction for each argument: Im loss(x + i h u) / h = <gradient, u>, with nothing subtracted."""
    x, mask, scale, dout = problem
    out = multi_head_attention(**x, mask=mask, scale=scale)
    size = 1 + np.abs(out * dout).sum()
    assert abs((out * dout).sum() - _loss(x, mask, scale, dout)) <= 1e-10 * size
    g = multi_head_attention_grad(**x, dout=dout, mask=mask, scale=scale)
    rng = np.random.default_rng(0)
    for name in ARRAYS:
        gradient = getattr(g, "d" + name)
        if name not in x:
            assert gradient is None
            continue
        assert gradient.shape == x[name].shape and gradient.dtype == np.float64
        u = rng.standard_normal(x[name].shape)
        slope = np.imag(_loss(x | {name: x[name] + 1e-100j * u}, mask, scale, dout)) / 1e-100
        size = 1 + np.abs(gradient * u).sum()
        assert abs((gradient * u).sum() - slope) <= 1e-10 * size, f"d{name}"


def test_against_a_loop_over_heads() -> None:
    """Query head i reads key head i // 2; the textbook function does each head."""
    x = _draw(np.random.default_rng(1))
    mask = np.tril(np.ones((3, 5), dtype=bool))
    for m in (None, mask):
        expected = []
        for b in range(2):
            heads = [
                scaled_dot_product_attention(
                    x["Q"][b] @ x["W_Q"][i] + x["b_Q"][i],
                    x["K"][b] @ x["W_K"][i // 2] + x["b_K"][i // 2],
                    x["V"][b] @ x["W_V"][i // 2] + x["b_V"][i // 2],
                    m,
                )[0]
                for i in range(4)
            ]
            expected.append(np.concatenate(heads, axis=-1) @ x["W_O"] + x["b_O"])
        np.testing.assert_allclose(multi_head_attention(**x, mask=m), expected, rtol=1e-12, atol=1e-12)


def test_fewer_key_heads_are_key_heads_repeated() -> None:
    x = _draw(np.random.default_rng(2), h=6, h_kv=2)
    repeated = x | {name: np.repeat(x[name], 3, axis=0) for name in ("W_K", "W_V", "b_K", "b_V")}
    np.testing.assert_array_equal(multi_head_attention(**x), multi_head_attention(**repeated))
    dout = np.random.default_rng(3).standard_normal((2, 3, 7))
    few, many = (multi_head_attention_grad(**y, dout=dout)._asdict() for y in (x, repeated))
    for name in ("dW_K", "dW_V", "db_K", "db_V"):
        summed = many[name].reshape(2, 3, *many[name].shape[1:]).sum(1)
        np.testing.assert_allclose(few[name], summed, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["packed", "other widths", "no biases"])
@pytest.mark.parametrize("causal", [False, True])
def test_against_torch(kind: str, causal: bool) -> None:
    """torch.nn.MultiheadAttention: in_proj_weight packed, or q_proj_weight and so on where widths differ."""
    torch = pytest.importorskip("torch", reason="torch has a module to compare with")
    torch.manual_seed(0)
    h, D, width, Lq, Lk = 3, 4, 12, 5, 6
    widths = {"kdim": 7, "vdim": 10} if kind == "other widths" else {}
    module = torch.nn.MultiheadAttention(
        width, h, bias=kind != "no biases", batch_first=True, dtype=torch.float64, **widths
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    inputs = [torch.randn(2, n, w, dtype=torch.float64) for n, w in ((Lq, width), (Lk, widths.get("kdim", width)))]
    inputs.append(torch.randn(2, Lk, widths.get("vdim", width), dtype=torch.float64))
    for tensor in inputs:
        tensor.requires_grad_()
    mask = np.tril(np.ones((Lq, Lk), dtype=bool)) if causal else None
    hidden = None if mask is None else torch.tensor(~mask)  # torch's True hides
    out, _ = module(*inputs, attn_mask=hidden)
    dout = torch.randn_like(out)
    out.backward(dout)

    def ours(y: Any) -> Array:
        """(heads * D, d_model), for x @ W.T, as (heads, D, d_model) swapped."""
        y = y.detach().numpy()
        return y.reshape(-1, D, y.shape[1]).swapaxes(1, 2)

    def grad(name: str) -> Any:
        return getattr(module, name).grad

    x: dict[str, Any] = dict(zip("QKV", (y.detach().numpy() for y in inputs), strict=True))
    if kind == "other widths":
        x |= {f"W_{n}": ours(getattr(module, f"{n.lower()}_proj_weight")) for n in "QKV"}
    else:
        x |= dict(zip(("W_Q", "W_K", "W_V"), split_qkv(ours(module.in_proj_weight), h), strict=True))
    x["W_O"] = module.out_proj.weight.detach().numpy().T
    if kind != "no biases":
        packed = module.in_proj_bias.detach().numpy().reshape(-1, D)
        x |= dict(zip(("b_Q", "b_K", "b_V"), split_qkv(packed, h), strict=True))
        x["b_O"] = module.out_proj.bias.detach().numpy()
    close: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}
    np.testing.assert_allclose(multi_head_attention(**x, mask=mask), out.detach().numpy(), **close)
    g = multi_head_attention_grad(**x, dout=dout.numpy(), mask=mask)
    for got, tensor in zip((g.dQ, g.dK, g.dV), inputs, strict=True):
        np.testing.assert_allclose(got, tensor.grad.numpy(), **close)
    if kind == "other widths":
        for n in "QKV":
            np.testing.assert_allclose(getattr(g, f"dW_{n}"), ours(grad(f"{n.lower()}_proj_weight")), **close)
    else:
        np.testing.assert_allclose(stack_qkv(g.dW_Q, g.dW_K, g.dW_V), ours(grad("in_proj_weight")), **close)
    np.testing.assert_allclose(g.dW_O, module.out_proj.weight.grad.numpy().T, **close)
    if kind != "no biases":
        assert g.db_Q is not None and g.db_K is not None and g.db_V is not None and g.db_O is not None
        np.testing.assert_allclose(
            stack_qkv(g.db_Q, g.db_K, g.db_V), grad("in_proj_bias").numpy().reshape(-1, D), **close
        )
        np.testing.assert_allclose(g.db_O, module.out_proj.bias.grad.numpy(), **close)


def test_a_query_that_sees_nothing_gives_the_output_bias() -> None:
    x = _draw(np.random.default_rng(4), Lq=3, Lk=2)
    mask = Causal("bottom_right")  # row 0 sees nothing
    out = multi_head_attention(**x, mask=mask)
    np.testing.assert_array_equal(out[:, 0], np.broadcast_to(x["b_O"], out[:, 0].shape))
    g = multi_head_attention_grad(**x, dout=np.ones_like(out), mask=mask)
    assert (g.dQ[:, 0] == 0).all()
    np.testing.assert_array_equal(g.db_O, np.full(7, 6.0))  # it is an output all the same


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.nan, np.inf]))
def test_tokens_that_are_not_seen_do_not_matter(seed: int, bad: float) -> None:
    """To no output and no gradient, those of the weights included: there 0 * NaN would be summed over tokens."""
    rng = np.random.default_rng(seed)
    x = _draw(rng)
    mask = rng.random((2, 1, 3, 5)) < 0.4
    hidden, dead = ~mask.any((1, 2)), ~mask.any((1, 3))
    poisoned = {name: np.array(x[name]) for name in "QKV"}
    poisoned["Q"][dead], poisoned["K"][hidden], poisoned["V"][hidden] = bad, bad, bad
    dout = rng.standard_normal((2, 3, 7))
    np.testing.assert_array_equal(multi_head_attention(**x | poisoned, mask=mask), multi_head_attention(**x, mask=mask))
    expected, got = (multi_head_attention_grad(**y, dout=dout, mask=mask) for y in (x, x | poisoned))
    for name, g in got._asdict().items():
        np.testing.assert_array_equal(g, getattr(expected, name), err_msg=name)


def test_a_token_spoils_the_heads_that_see_it_only() -> None:
    """Key 4 is NaN, and query head 0, of key head 0, alone sees it: key head 1 has the gradients it had."""
    x = _draw(np.random.default_rng(5))
    mask = np.ones((4, 1, 5), dtype=bool)
    mask[1:, :, 4] = False
    dout = np.ones((2, 3, 7))
    expected = multi_head_attention_grad(**x, dout=dout, mask=mask)
    x["K"] = np.array(x["K"])
    x["K"][:, 4] = np.nan
    got = multi_head_attention_grad(**x, dout=dout, mask=mask)
    for name in ("dW_K", "dW_V"):
        np.testing.assert_array_equal(getattr(got, name)[1], getattr(expected, name)[1])
        assert np.isnan(getattr(got, name)[0]).any()
    np.testing.assert_array_equal(got.dW_Q[1:], expected.dW_Q[1:])


@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2))
def test_packing_is_by_kind(h_kv: int, group: int, width: int) -> None:
    """All heads of q, then of k, then of v; and back."""
    h = h_kv * group
    packed = np.arange(float((h + 2 * h_kv) * width * 3)).reshape(h + 2 * h_kv, width, 3)
    W_Q, W_K, W_V = split_qkv(packed, h, h_kv)
    assert (len(W_Q), len(W_K), len(W_V)) == (h, h_kv, h_kv)
    np.testing.assert_array_equal(np.concatenate([W_Q, W_K, W_V]), packed)
    np.testing.assert_array_equal(stack_qkv(W_Q, W_K, W_V), packed)
    if group == 1:
        np.testing.assert_array_equal(split_qkv(packed, h)[2], W_V)


def test_self_attention_has_the_sum_of_three_gradients() -> None:
    """Along x, by a complex step: dQ + dK + dV."""
    rng = np.random.default_rng(6)
    x = _draw(rng, Lq=4, Lk=4, widths=(5, 5, 5)) | {n: None for n in "QKV"}
    one, u, dout = rng.standard_normal((2, 4, 5)), rng.standard_normal((2, 4, 5)), rng.standard_normal((2, 4, 7))
    g = multi_head_attention_grad(**x | dict.fromkeys("QKV", one), dout=dout)
    slope = np.imag(_loss(x | dict.fromkeys("QKV", one + 1e-100j * u), None, None, dout)) / 1e-100
    assert abs(((g.dQ + g.dK + g.dV) * u).sum() - slope) <= 1e-10


GIVEN: dict[str, Any] = {"Q": np.ones((1, 3, 8)), "K": np.ones((1, 5, 8)), "V": np.ones((1, 5, 8))}
GIVEN |= {"W_Q": np.ones((4, 8, 3)), "W_K": np.ones((2, 8, 3)), "W_V": np.ones((2, 8, 6)), "W_O": np.ones((24, 8))}
GIVEN |= {"b_Q": np.ones((4, 3)), "b_K": np.ones((2, 3)), "b_V": np.ones((2, 6)), "b_O": np.ones(8)}

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"Q": np.ones((3, 8))}, ["Q.shape=(3, 8)", "(B, length, d_model)"]),
    ({"Q": np.ones((2, 3, 8))}, ["K.shape=(1, 5, 8)", "(B, Lk)=(2, 5)"]),
    ({"K": np.ones((1, 6, 8))}, ["K.shape=(1, 6, 8)", "(B, Lk)=(1, 5)", "V.shape=(1, 5, 8)"]),
    ({"V": np.ones((1, 5, 7))}, ["W_V.shape=(2, 8, 6)", "(h_kv, d_model)=(2, 7)"]),
    ({"W_Q": np.ones((8, 8))}, ["W_Q.shape=(8, 8)", "(h, d_model, d_head)"]),
    ({"W_Q": np.ones((4, 7, 3))}, ["W_Q.shape=(4, 7, 3)", "(h, d_model)=(4, 8)"]),
    ({"W_Q": np.ones((3, 8, 3))}, ["h=3 heads", "multiple of the h_kv=2"]),
    ({"W_K": np.ones((1, 8, 3))}, ["W_K.shape=(1, 8, 3)", "(h_kv, d_model)=(2, 8)", "W_V.shape=(2, 8, 6)"]),
    ({"W_K": np.ones((2, 8, 4))}, ["W_K.shape=(2, 8, 4)", "D=3"]),
    ({"W_V": np.ones((2, 7, 6))}, ["W_V.shape=(2, 7, 6)", "(h_kv, d_model)=(2, 8)"]),
    ({"W_O": np.ones((25, 8))}, ["W_O.shape=(25, 8)", "h * d_v = 24"]),
    ({"b_Q": np.ones((2, 3))}, ["b_Q.shape=(2, 3)", "must be (4, 3)"]),
    ({"b_K": np.ones(6)}, ["b_K.shape=(6,)", "must be (2, 3)"]),
    ({"b_V": np.ones((2, 3))}, ["b_V.shape=(2, 3)", "must be (2, 6)"]),
    ({"b_O": np.ones((1, 8))}, ["b_O.shape=(1, 8)", "must be (8,)"]),
    ({"mask": np.ones((5, 5), dtype=bool)}, ["mask.shape=(5, 5)", "(1, 4, 3, 5)"]),
    ({"scale": np.nan}, ["scale=nan", "finite"]),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED, ids=lambda x: str(x[0]) if isinstance(x, list) else "")
def test_refusals(changed: dict[str, Any], words: list[str]) -> None:
    assert multi_head_attention(**GIVEN).shape == (1, 3, 8)
    for call in (multi_head_attention, lambda **x: multi_head_attention_grad(**x, dout=np.ones((1, 3, 8)))):
        with pytest.raises(ValueError) as error:
            call(**GIVEN | changed)
        assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("name", [*GIVEN, "dout"])
def test_every_array_is_checked_under_its_name(name: str) -> None:
    x = GIVEN | {"dout": np.ones((1, 3, 8))}
    with pytest.raises(TypeError, match=rf"^{name}\.dtype=int64 is not a supported dtype; use one of"):
        multi_head_attention_grad(**x | {name: x[name].astype(np.int64)})


def test_refusals_of_dout_and_of_packing() -> None:
    with pytest.raises(ValueError, match=r"dout\.shape=\(1, 3, 7\) must be \(1, 3, 8\)"):
        multi_head_attention_grad(**GIVEN, dout=np.ones((1, 3, 7)))
    packed = np.ones((6, 8, 3))
    for call, message in (
        (lambda: split_qkv(packed, 3, 2), r"W_QKV\.shape=\(6, 8, 3\) must begin with h \+ 2 h_kv = 7"),
        (lambda: split_qkv(packed, -1), r"h=-1 must be an int >= 0"),
        (lambda: split_qkv(packed, 2, True), r"h_kv=True must be an int >= 0; pass None for h"),
        (lambda: stack_qkv(packed, packed, packed[..., :2]), r"W_V\.shape=\(6, 8, 2\) must be that of W_Q"),
        (lambda: stack_qkv(packed, packed[:2], packed[:3]), r"W_V has 3 heads, which must be the 2 of W_K"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"W_QKV\.dtype=int64"):
        split_qkv(packed.astype(int), 2)
    with pytest.raises(TypeError, match=r"W_K\.dtype=bool"):
        stack_qkv(packed, packed.astype(bool), packed)
