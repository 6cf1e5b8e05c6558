"""What a row does not see never reaches it, NaN and infinity included, forward and backward.

Selection is per pair (i, j): a poisoned key, value, query, dout, bias or sink spoils what depends
on it through a visible pair, and nothing else changes by a single bit.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from refattn import attention, attention_grad

Array = np.ndarray[Any, Any]
B, H, HKV, LQ, LK, D, DV = 2, 4, 2, 5, 6, 3, 2
POISONS = [np.nan, np.inf, -np.inf]


def _clean(softcap: float | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arguments, and a mask in which key 5 is seen by nobody, row 4 sees nothing, key 2 only row 3."""
    rng = np.random.default_rng(5)
    x = {
        "q": rng.standard_normal((B, H, LQ, D)),
        "k": rng.standard_normal((B, HKV, LK, D)),
        "v": rng.standard_normal((B, HKV, LK, DV)),
        "bias": rng.standard_normal((B, H, LQ, LK)),
        "sinks": rng.standard_normal(H),
        "dout": rng.standard_normal((B, H, LQ, DV)),
        "dlse": rng.standard_normal((B, H, LQ)),
    }
    mask = np.ones((LQ, LK), dtype=bool)
    mask[:, 5] = mask[4] = mask[:, 2] = False
    mask[3, 2] = True
    mask[1, :2] = False
    return x, {"mask": mask, "softcap": softcap}


def _run(x: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    options = options | {"bias": x["bias"], "sinks": x["sinks"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = attention(x["q"], x["k"], x["v"], **options)._asdict()
        made |= attention_grad(x["q"], x["k"], x["v"], x["dout"], x["dlse"], **options)._asdict()
    return {name: y for name, y in made.items() if y is not None}


def _compare(x: dict[str, Array], options: dict[str, Any], spoilt: dict[str, Any], strict: bool = True) -> None:
    """Elements of `spoilt` (name -> index) are not finite; all others are bit for bit those of clean inputs."""
    clean, got = _run(*_clean(options["softcap"])), _run(x, options)
    for name, y in got.items():
        if y.ndim == 0:  # dscale and dsoftcap, to which every visible pair adds
            assert np.array_equal(y, clean[name]) if not spoilt else not strict or not np.isfinite(y), name
            continue
        expected_bad = np.zeros(y.shape, dtype=bool)
        for index in spoilt.get(name, []):
            expected_bad[index] = True
        np.testing.assert_array_equal(y[~expected_bad], clean[name][~expected_bad], err_msg=name)
        assert not strict or not np.isfinite(y[expected_bad]).any(), f"{name} stays finite"


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("poison", POISONS)
def test_hidden_things_never_show(poison: float, softcap: float | None) -> None:
    x, options = _clean(softcap)
    x["k"][:, :, 5] = x["v"][:, :, 5] = poison
    x["q"][:, :, 4] = x["dout"][:, :, 4] = poison
    x["bias"][..., ~options["mask"]] = poison
    _compare(x, options, {})


def test_hidden_by_a_bias_of_minus_infinity() -> None:
    x, options = _clean()
    clean = _run(x, options)
    hidden = ~options["mask"]
    x["bias"][..., hidden] = -np.inf
    x["k"][:, :, 5] = x["v"][:, :, 5] = np.nan
    got = _run(x, {"mask": None, "softcap": None})
    for name, y in got.items():
        np.testing.assert_array_equal(y, clean[name], err_msg=name)


def test_gradients_of_hidden_things_are_zero() -> None:
    x, options = _clean()
    x["k"][:, :, 5] = np.nan
    got = _run(x, options)
    for name in ("dk", "dv"):
        assert (got[name][:, :, 5] == 0).all() and (got[name][:, :, :5] != 0).all()
    assert (got["dq"][:, :, 4] == 0).all() and (got["dq"][:, :, :4] != 0).all()
    assert (got["dbias"][..., ~options["mask"]] == 0).all()


ROW = (0, slice(2, 4), 3)  # row 3 of batch entry 0 and of the heads that read key head 1
SEEN = (0, 1, [0, 1, 2, 3, 4])  # the keys that row 3 sees


@pytest.mark.parametrize("poison", POISONS)
def test_a_value_that_one_row_sees(poison: float) -> None:
    """v_2 spoils out, dq, dbias of row 3, dk of the keys that row 3 sees and the sinks; not dv, not row 1."""
    x, options = _clean()
    x["v"][0, 1, 2] = poison
    np.testing.assert_array_equal(_run(x, options)["out"][ROW], poison)
    pairs = (*ROW, [0, 1, 2, 3, 4])
    _compare(x, options, {"out": [ROW], "dq": [ROW], "dk": [SEEN], "dbias": [pairs], "dsinks": [slice(2, 4)]})


def test_a_key_that_one_row_sees() -> None:
    """k_2 spoils whatever row 3 is part of."""
    x, options = _clean()
    x["k"][0, 1, 2] = np.nan
    spoilt = {"out": [ROW], "lse": [ROW], "dq": [ROW], "dk": [SEEN], "dv": [SEEN]}
    _compare(x, options, spoilt | {"dbias": [(*ROW, [0, 1, 2, 3, 4])], "dsinks": [slice(2, 4)]})


def test_a_query() -> None:
    """q_1 of head 3 spoils its row, and the dk and dv of the keys 3 and 4 that it sees, no other's."""
    x, options = _clean()
    x["q"][1, 3, 1] = np.nan
    row, seen = (1, 3, 1), (1, 1, [3, 4])
    spoilt = {"out": [row], "lse": [row], "dq": [row], "dk": [seen], "dv": [seen]}
    _compare(x, options, spoilt | {"dbias": [(*row, [3, 4])], "dsinks": [3]})


def test_a_bias_that_is_seen() -> None:
    x, options = _clean()
    x["bias"][1, 3, 1, 3] = np.nan
    row, seen = (1, 3, 1), (1, 1, [3, 4])
    spoilt = {"out": [row], "lse": [row], "dq": [row], "dk": [seen], "dv": [seen]}
    _compare(x, options, spoilt | {"dbias": [(*row, [3, 4])], "dsinks": [3]})


@pytest.mark.parametrize("poison", POISONS)
def test_a_dout(poison: float) -> None:
    """dout_1 leaves the forward alone and spoils what row 1 of head 3 hands back."""
    x, options = _clean()
    x["dout"][1, 3, 1] = poison
    row, seen = (1, 3, 1), (1, 1, [3, 4])
    spoilt = {"dq": [row], "dk": [seen], "dv": [seen], "dbias": [(*row, [3, 4])], "dsinks": [3]}
    _compare(x, options, spoilt)


def test_a_sink() -> None:
    """A sink of NaN spoils every row of its head; keys that the head does not see keep dk = dv = 0."""
    x, options = _clean()
    x["sinks"][0] = np.nan
    rows, seen = (slice(None), 0), (slice(None), 0, slice(0, 5))
    spoilt = {"lse": [rows], "dsinks": [0], "dk": [seen], "dv": [seen]}
    spoilt |= {name: [(slice(None), 0, slice(0, 4))] for name in ("out", "dq")}
    spoilt["dbias"] = [(slice(None), 0, *np.nonzero(options["mask"]))]
    _compare(x, options, spoilt)


@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_one_poisoned_component(name: str) -> None:
    """One element of a vector is enough for its row; the other columns of out, dv stay as they were."""
    x, options = _clean()
    if name in ("q", "dout"):
        x[name][0, 0, 4, 1] = np.nan
    else:
        x[name][0, 0, 5, 1] = np.nan
    _compare(x, options, {})
    x, options = _clean()
    x["v"][0, 0, 2, 1] = np.nan
    got, clean = _run(x, options), _run(*_clean())
    assert np.isnan(got["out"][0, :2, 3, 1]).all()
    np.testing.assert_array_equal(got["out"][0, :2, 3, 0], clean["out"][0, :2, 3, 0])


def test_an_infinite_key_with_its_limit() -> None:
    """A key of -inf against a positive query has weight 0 in the limit, but 0 * inf is no number: any answer
    that is not finite, or the limit, would do; the rows that do not see it are the same to the bit."""
    x, options = _clean()
    x["k"][0, 1, 2] = np.inf
    spoilt = {"out": [ROW], "lse": [ROW], "dq": [ROW], "dk": [SEEN], "dv": [SEEN]}
    spoilt |= {"dbias": [(*ROW, [0, 1, 2, 3, 4])], "dsinks": [slice(2, 4)]}
    _compare(x, options, spoilt, strict=False)
