"""What the oracle refuses: the message names the argument, shows its value and says the cure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import attention, attention_grad, scaled_dot_product_attention
from refattn.masks import Documents, Padding, Visibility
from refattn.oracle import attention_scores

Q, K, V = np.ones((2, 4, 3, 8)), np.ones((2, 2, 5, 8)), np.ones((2, 2, 5, 6))

DTYPES: list[tuple[Any, list[str]]] = [
    (np.ones(Q.shape, dtype=np.int64), ["q.dtype=int64", "use one of float64"]),
    (np.ones(Q.shape, dtype=bool), ["q.dtype=bool", "use one of float64"]),
    (np.ones(Q.shape, dtype=np.complex128), ["q.dtype=complex128", "use one of float64"]),
    (np.ones(Q.shape, dtype=object), ["q.dtype=object", "use one of float64"]),
    (np.ones(Q.shape, dtype=Q.dtype.newbyteorder()), ["q.dtype=", "other byte order", "x.astype('float64')"]),
    (np.ma.masked_greater(Q, 0), ["q is a masked array", "q.filled()", "mask="]),
    ([[1, 2], [3, 4]], ["q.dtype=int64", "use one of float64"]),
    (None, ["q.dtype=object", "use one of float64"]),
]


@pytest.mark.parametrize(("q", "words"), DTYPES, ids=lambda x: str(x[0]) if isinstance(x, list) else "")
def test_dtypes(q: Any, words: list[str]) -> None:
    for call in (lambda: attention(q, K, V), lambda: attention_grad(q, K, V, np.ones((2, 4, 3, 6)))):
        with pytest.raises(TypeError) as error:
            call()
        assert all(word in str(error.value) for word in words), error.value


@pytest.mark.skipif(np.finfo(np.longdouble).nmant == 52, reason="long double is float64 on this machine")
def test_long_double() -> None:
    with pytest.raises(TypeError, match=r"v\.dtype=(longdouble|float\d+) is not a supported dtype; use one of"):
        attention(Q, K, V.astype(np.longdouble))


@pytest.mark.parametrize("name", ["k", "v", "dout", "dlse", "bias", "sinks"])
def test_every_array_is_checked_under_its_name(name: str) -> None:
    given: dict[str, Any] = {"q": Q, "k": K, "v": V, "dout": np.ones((2, 4, 3, 6)), "dlse": np.ones((2, 4, 3))}
    given |= {"bias": np.ones(5), "sinks": np.ones(4)}
    attention_grad(**given)
    with pytest.raises(TypeError, match=rf"{name}\.dtype=complex128 is not a supported dtype"):
        attention_grad(**given | {name: given[name].astype(complex)})
    with pytest.raises(ValueError, match=rf"{name}\.shape=\S.*must"):
        attention_grad(**given | {name: np.ones((7, 7, 7))})


KEEP = np.ones((3, 5), dtype=bool)


class _Mod:
    """A score_mod, or its slope, of the scores alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, s: Any, *place: Any) -> Any:
        return self.value(s)

    slope = __call__


REFUSED: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"q": Q[0]}, ValueError, ["q.shape=(4, 3, 8)", "4 dimensions (B, heads, length, size)"]),
    ({"k": K[:1]}, ValueError, ["k.shape=(1, 2, 5, 8)", "B=2"]),
    ({"k": K[..., :7]}, ValueError, ["k.shape=(2, 2, 5, 7)", "D=8"]),
    ({"v": V[:, :1]}, ValueError, ["v.shape=(2, 1, 5, 6)", "(2, 2, 5)"]),
    ({"v": V[:, :, :4]}, ValueError, ["v.shape=(2, 2, 4, 6)", "(2, 2, 5)"]),
    ({"q": Q[:, :3]}, ValueError, ["H=3", "multiple of the Hkv=2"]),
    ({"k": K[:, :0], "v": V[:, :0]}, ValueError, ["H=4", "multiple of the Hkv=0"]),
    ({"mask": np.ones((3, 5))}, TypeError, ["mask.dtype=float64", "bool", "True = may attend", "bias="]),
    ({"mask": np.ones((3, 5), dtype=np.int64)}, TypeError, ["mask.dtype=int64", "bool"]),
    ({"mask": np.ma.array(np.ones((3, 5), dtype=bool))}, TypeError, ["mask is a masked array", "mask.filled(False)"]),
    ({"mask": np.ones((3, 4), dtype=bool)}, ValueError, ["mask.shape=(3, 4)", "broadcast", "(2, 4, 3, 5)"]),
    ({"mask": np.ones((1, 1, 1, 1, 1), dtype=bool)}, ValueError, ["mask.shape=(1, 1, 1, 1, 1)", "(2, 4, 3, 5)"]),
    ({"mask": Padding((5,))}, ValueError, ["lengths=(5,)", "B=2"]),
    ({"mask": Documents((0, 0, 1))}, ValueError, ["k_ids of shape (1, 3)", "(1, 5)"]),
    ({"mask": Visibility(None, 2, 4, 3, 6)}, ValueError, ["(2, 4, 3, 5)", "must be (2, 4, 3, 6)"]),
    ({"bias": np.ones((3, 5), dtype=bool)}, TypeError, ["bias.dtype=bool"]),
    ({"bias": np.ones((4, 5))}, ValueError, ["bias.shape=(4, 5)", "(2, 4, 3, 5)"]),
    ({"sinks": np.ones((4, 1))}, ValueError, ["sinks.shape=(4, 1)", "must be (4,)"]),
    ({"softcap": 0.0}, ValueError, ["softcap=0.0", "> 0", "None"]),
    ({"softcap": -1.0}, ValueError, ["softcap=-1.0", "> 0", "None"]),
    ({"softcap": np.nan}, ValueError, ["softcap=nan", "> 0", "None"]),
    ({"softcap": np.inf}, ValueError, ["softcap=inf", "finite", "None"]),
    ({"scale": np.nan}, ValueError, ["scale=nan", "finite", "None for D**-0.5"]),
    ({"scale": -np.inf}, ValueError, ["scale=-inf", "finite", "None for D**-0.5"]),
    ({"softcap": True}, TypeError, ["softcap=True", "real number", "None for no softcap"]),
    ({"scale": "1"}, TypeError, ["scale='1'", "real number", "None for D**-0.5"]),
    ({"dropout": 0.1}, ValueError, ["dropout=0.1 needs keep"]),
    ({"keep": KEEP}, ValueError, ["keep needs dropout"]),
    ({"dropout": -0.1, "keep": KEEP}, ValueError, ["dropout=-0.1", "from 0 to 1", "None for no dropout"]),
    ({"dropout": 1.5, "keep": KEEP}, ValueError, ["dropout=1.5", "from 0 to 1", "None for no dropout"]),
    ({"dropout": np.nan, "keep": KEEP}, ValueError, ["dropout=nan", "finite", "None for no dropout"]),
    ({"dropout": False, "keep": KEEP}, TypeError, ["dropout=False", "real number", "None for no dropout"]),
    ({"dropout": 0.1, "keep": KEEP + 0.0}, TypeError, ["keep.dtype=float64", "bool", "True = kept"]),
    ({"dropout": 0.1, "keep": lambda *_: KEEP}, TypeError, ["keep.dtype=object", "bool"]),
    ({"dropout": 0.1, "keep": KEEP[:, :4]}, ValueError, ["keep.shape=(3, 4)", "broadcast", "(2, 4, 3, 5)"]),
    ({"score_mod": "relative"}, TypeError, ["score_mod='relative'", "f(s, b, h, i, j)", "SCORE_MODS has relative, "]),
    ({"score_mod": _Mod(lambda s: s[..., :2])}, ValueError, ["score_mod.shape=(2, 4, 3, 2)", "(2, 4, 3, 5)"]),
    ({"score_mod": _Mod(lambda s: s > 0)}, TypeError, ["score_mod.dtype=bool"]),
]


@pytest.mark.parametrize(("changed", "kind", "words"), REFUSED, ids=lambda x: str(x[0]) if isinstance(x, list) else "")
def test_arguments(changed: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    given = {"q": Q, "k": K, "v": V} | changed
    with pytest.raises(kind) as error:
        attention(**given)
    assert all(word in str(error.value) for word in words), error.value
    with pytest.raises(kind):
        attention_grad(**given, dout=np.ones((2, given["q"].shape[-3], 3, 6)))


def test_a_backward_wants_the_slope() -> None:
    attention(Q, K, V, score_mod=lambda s, *_: s)
    with pytest.raises(TypeError, match=r"score_mod=<function .* must have slope\(s, b, h, i, j\), its derivative"):
        attention_grad(Q, K, V, np.ones((2, 4, 3, 6)), score_mod=lambda s, *_: s)


def test_a_slope_that_does_not_fit() -> None:
    mod = _Mod(lambda s: s)
    mod.slope = lambda s, *_: s[..., :2]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"score_mod.*\.shape=\(2, 4, 3, 2\) must broadcast"):
        attention_grad(Q, K, V, np.ones((2, 4, 3, 6)), score_mod=mod)


def test_scores_refuse_alike() -> None:
    for changed, kind, words in REFUSED:
        if changed.keys() <= {"mask", "bias", "scale", "softcap", "sinks", "score_mod"}:
            with pytest.raises(kind) as error:
                attention_scores(Q, K, **changed)
            assert all(word in str(error.value) for word in words), error.value


def test_the_textbook_functions_refuse_dtypes_too() -> None:
    with pytest.raises(TypeError, match=r"K\.dtype=int64 is not a supported dtype"):
        scaled_dot_product_attention(np.ones((2, 2)), np.ones((2, 2), dtype=np.int64), np.ones((2, 2)))
