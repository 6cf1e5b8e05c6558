"""The oracle's gradients are derivatives: of a few lines of complex NumPy, and of its own outputs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from refattn import attention, attention_grad
from refattn.score_mods import SCORE_MODS

Array = np.ndarray[Any, Any]
FEATURES = list(itertools.product([None, 0.8], [False, True], [False, True], [False, True], [None, -0.7]))
MODS: dict[str, Any] = {  # anew, for complex s
    "relative": lambda s, b, h, i, j: s + (j - i) / 16,
    "distance": lambda s, b, h, i, j: s - abs(i - j) * 0.5 ** (h + 1),
    "checkerboard": lambda s, b, h, i, j: s * np.where((i + j) % 2, 0.5, 1),
    "tilt": lambda s, b, h, i, j: s * (1 + 0.25 * h + 0.125 * b),
    "softsign": lambda s, b, h, i, j: s / (1 + np.sign(s.real) * s / 8),
    "parabola": lambda s, b, h, i, j: s * (1 + s / 16),
}


def _draw(
    softcap: float | None, bias: bool, sinks: bool, mask: bool, scale: float | None,
    score_mod: str | None = None, dropout: float | None = None,
) -> tuple[dict[str, Array], dict[str, Any]]:  # fmt: skip
    """Arrays to differentiate by, and the rest: B = 2, H = 4, Hkv = 2, Lq = 3, Lk = 4, D = 2, Dv = 3."""
    rng = np.random.default_rng(4)
    x = {"q": rng.standard_normal((2, 4, 3, 2)) * 2, "k": rng.standard_normal((2, 2, 4, 2))}
    x["v"] = rng.standard_normal((2, 2, 4, 3))
    rest: dict[str, Any] = {"default scale": scale is None, "mask": None, "score_mod": score_mod}
    x["scale"] = np.array(2**-0.5 if scale is None else scale)
    if softcap is not None:
        x["softcap"] = np.array(softcap)
    if bias:
        x["bias"] = rng.standard_normal((4, 1, 4))
    if sinks:
        x["sinks"] = rng.standard_normal(4)
    if mask:
        rest["mask"] = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=bool)
    rest["dout"], rest["dlse"] = rng.standard_normal((2, 4, 3, 3)), rng.standard_normal((2, 4, 3))
    rest["dropout"], rest["keep"] = dropout, None if dropout is None else rng.random((4, 3, 4)) >= dropout
    return x, rest


def _loss(x: dict[str, Any], rest: dict[str, Any]) -> Any:
    """sum(out * dout) + sum(lse * dlse), a few lines of NumPy that take complex numbers."""
    q, k, v = x["q"], np.repeat(x["k"], 2, axis=1), np.repeat(x["v"], 2, axis=1)
    t = x["scale"] * np.einsum("bhid,bhjd->bhij", q, k)
    if "softcap" in x:
        t = x["softcap"] * np.tanh(t / x["softcap"])
    if rest["score_mod"] is not None:
        t = MODS[rest["score_mod"]](t, *np.ogrid[tuple(slice(n) for n in t.shape)])
    t = t + x.get("bias", 0.0)
    e = np.exp(t) * (1.0 if rest["mask"] is None else rest["mask"])
    z = e.sum(-1) + (np.exp(x["sinks"])[:, None] if "sinks" in x else 0.0)
    z = np.where(z == 0, 1.0, z)  # a row that sees nothing: lse of log 1, which no input changes
    p = e / z[..., None] * (1.0 if rest["dropout"] is None else rest["keep"] / (1 - rest["dropout"]))
    return (np.einsum("bhij,bhjd->bhid", p, v) * rest["dout"]).sum() + (np.log(z) * rest["dlse"]).sum()


def _options(x: dict[str, Array], rest: dict[str, Any]) -> dict[str, Any]:
    options = {name: rest[name] for name in ("mask", "dropout", "keep")}
    options |= {name: x.get(name) for name in ("bias", "sinks")}
    options["scale"] = None if rest["default scale"] else float(x["scale"])
    options["softcap"] = float(x["softcap"]) if "softcap" in x else None
    return options | {"score_mod": None if rest["score_mod"] is None else SCORE_MODS[rest["score_mod"]]}


def _gradients(x: dict[str, Array], rest: dict[str, Any]) -> dict[str, Array]:
    made = attention_grad(x["q"], x["k"], x["v"], rest["dout"], rest["dlse"], **_options(x, rest))
    return {name[1:]: np.asarray(g) for name, g in made._asdict().items() if g is not None}


def _complex_step(x: dict[str, Array], rest: dict[str, Any], tolerance: float = 1e-13) -> None:
    gradients = _gradients(x, rest)
    assert set(gradients) == set(x)
    for name, index in [(name, index) for name, array in x.items() for index in np.ndindex(array.shape)]:
        moved = x[name].astype(np.complex128)
        moved[index] += 1e-100j
        slope = _loss(x | {name: moved}, rest).imag / 1e-100
        assert abs(gradients[name][index] - slope) <= tolerance, f"d{name}{list(index)}"


@pytest.mark.parametrize(("softcap", "bias", "sinks", "mask", "scale"), FEATURES)
def test_gradients_by_complex_step(
    softcap: float | None, bias: bool, sinks: bool, mask: bool, scale: float | None
) -> None:
    """Im loss(x + 1e-100 i) / 1e-100 is the derivative to the last digits: nothing is subtracted."""
    _complex_step(*_draw(softcap, bias, sinks, mask, scale))


@pytest.mark.parametrize("score_mod", [None, *MODS])
@pytest.mark.parametrize(("softcap", "scale"), [(None, None), (0.8, -0.7)])
@pytest.mark.parametrize("dropout", [None, 0.25])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "with bias, sinks and mask"])
def test_gradients_of_modifiers_and_dropout_by_complex_step(
    score_mod: str | None, softcap: float | None, scale: float | None, dropout: float | None, others: bool
) -> None:
    _complex_step(*_draw(softcap, others, others, others, scale, score_mod, dropout), 1e-12)


@pytest.mark.parametrize(("softcap", "scale"), [(None, None), (0.8, -0.7)])
def test_gradients_by_central_differences(softcap: float | None, scale: float | None) -> None:
    """Of the oracle's own out and lse, with h = 1e-5: h² of Taylor and u / h of rounding, about 1e-10."""
    x, rest = _draw(softcap, True, True, True, scale, "parabola", 0.25)

    def loss(y: dict[str, Array]) -> float:
        out, lse = attention(y["q"], y["k"], y["v"], **_options(y, rest))
        return float((out * rest["dout"]).sum() + (lse * rest["dlse"]).sum())

    gradients = _gradients(x, rest)
    moved = x.keys() - ({"scale"} if rest["default scale"] else set())
    for name, index in [(n, index) for n in sorted(moved) for index in np.ndindex(x[n].shape)]:
        step = np.zeros_like(x[name])
        step[index] = 1e-5
        slope = (loss(x | {name: x[name] + step}) - loss(x | {name: x[name] - step})) / 2e-5
        assert abs(gradients[name][index] - slope) <= 5e-9, f"d{name}{list(index)}"
