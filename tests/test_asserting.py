"""`refattn.assert_attention`, as a stranger's test calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from few_hypotheses import ask_few

import refattn
from refattn import assert_attention, attention, attention_grad
from refattn.dtypes import FORMATS
from refattn.masks import Causal
from refattn.precision import Conventions

pytest_plugins = ["pytester"]

RNG = np.random.default_rng(0)
Q, K, V, DOUT = (RNG.standard_normal((2, heads, 9, 16)).astype(np.float32) for heads in (4, 2, 2, 4))


def right(**options: Any) -> Any:
    return attention(Q, K, V, **options).out.astype(np.float32)


def test_what_is_right_passes_and_nothing_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_few(monkeypatch)
    mask = Causal("bottom_right")
    out, lse = (x.astype(np.float32) for x in attention(Q, K, V, mask=mask))
    g = attention_grad(Q, K, V, DOUT, mask=mask)
    gradients = {name: getattr(g, name).astype(np.float32) for name in ("dq", "dk", "dv")}
    assert assert_attention(out, Q, K, V, causal="bottom_right", lse=lse, dout=DOUT, **gradients) is None  # type: ignore[func-returns-value]
    assert_attention(out, Q, K, V, mask=mask)
    assert_attention(out, Q, K, V, mask=np.tril(np.ones((9, 9), bool)))
    assert_attention(None, Q, K, V, causal="top_left", dout=DOUT, dv=gradients["dv"])
    with pytest.raises(AssertionError, match=r"^dk\[.*\] = .*, should be .*, 2 of 576 elements") as failed:
        wrong = gradients["dk"].copy()
        wrong[1, 0, 2, 3:5] *= 1.01
        assert_attention(out, Q, K, V, mask=mask, dout=DOUT, dk=wrong)
    assert "FAIL" not in str(failed.value)


def test_the_text_says_where_by_how_much_and_which_bug() -> None:
    q, k, v = Q[:1], K[:1, :, :5], V[:1, :, :5]
    out = attention(q, k, v, mask=Causal("top_left")).out.astype(np.float32)
    with pytest.raises(AssertionError) as failed:
        assert_attention(out, q, k, v, causal="bottom_right")
    text = str(failed.value)
    assert text.startswith("out[0, ") and "should be" in text and "(limit 1; rigorous" in text
    assert "looks like (its output is within bound of yours): " in text and "top left" in text


def test_wider_storage() -> None:
    """float32 arrays that hold bfloat16 numbers, judged as bfloat16."""
    narrow = FORMATS["bfloat16"].dtype
    q, k, v = (x.astype(narrow) for x in (Q, K, V))
    out = attention(*(x.astype(np.float64) for x in (q, k, v))).out.astype(narrow)
    wide = [x.astype(np.float32) for x in (out, q, k, v)]
    assert_attention(*wide, dtype="bfloat16")
    with pytest.raises(AssertionError, match="if it was computed in that, say so: dtype=bfloat16"):
        assert_attention(*wide)


def test_a_cure_that_can_be_passed() -> None:
    mask = np.tril(np.ones((9, 9), bool))
    mask[3] = False
    out = right(mask=mask)
    out[:, :, 3] = np.nan
    with pytest.raises(AssertionError) as failed:
        assert_attention(out, Q, K, V, mask=mask)
    assert "pass conventions=refattn.precision.Conventions(empty_rows='nan')" in str(failed.value)
    assert_attention(out, Q, K, V, mask=mask, conventions=Conventions(empty_rows="nan"))


def eager(q: Any, k: Any, v: Any) -> Any:
    """As frameworks compute it step by step: scores and weights are stored in 16 bits."""
    narrow, wide = FORMATS["bfloat16"].dtype, np.float32
    keys, values = (np.repeat(x.astype(wide), 2, axis=1) for x in (k, v))
    s = ((q.astype(wide) @ keys.swapaxes(-1, -2)).astype(narrow).astype(wide) * wide(0.25)).astype(narrow).astype(wide)
    p = np.exp(s - s.max(-1, keepdims=True))
    return ((p / p.sum(-1, keepdims=True)).astype(narrow).astype(wide) @ values).astype(narrow)


def test_the_eager_contract_is_named_and_can_be_passed() -> None:
    q, k, v = (x.astype(FORMATS["bfloat16"].dtype) for x in (Q, K, V))
    with pytest.raises(AssertionError, match='the eager one: pass contract="eager"'):
        assert_attention(eager(q, k, v), q, k, v)
    assert_attention(eager(q, k, v), q, k, v, contract="eager")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"causal": True}, "causal=True must be 'top_left' or 'bottom_right', which differ where Lq != Lk"),
        ({"mask": np.zeros((9, 9), np.float32)}, "mask.dtype=float32 must be bool, True = may attend"),
        ({"out": None}, "nothing to judge: at least one of out, lse"),
        ({"k": K[:, :, :, :3]}, r"k.shape=\(2, 2, 9, 3\) must be"),
        ({"dq": Q}, "dq needs dout"),
        ({"softcap": 0}, "softcap=0.0 must be > 0"),
        ({"is_causal": True}, r"is_causal is no argument; do you mean causal\? there are q k v out .* conventions"),
        ({"attn_mask": None}, r"attn_mask is no argument; do you mean mask\?"),
    ],
)
def test_what_makes_no_problem_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        assert_attention(**{"out": right(), "q": Q, "k": K, "v": V, **change})


def test_nothing_to_judge_is_right_if_its_shape_is() -> None:
    q, out = Q[:, :, :0], right()[:, :, :0]
    assert_attention(out, q, K, V)
    with pytest.raises(ValueError, match=r"out.shape=\(2, 4, 9, 16\) must be \(2, 4, 0, 16\)"):
        assert_attention(right(), q, K, V)
    with pytest.raises(ValueError, match="none of the 1152 elements can be judged: .* q has 1,152 numbers"):
        assert_attention(right() * np.nan, Q * np.nan, K, V)


def test_torch_tensors_with_a_graph() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in (Q, K, V))
    keys, values = (x.repeat_interleave(2, dim=1) for x in (k, v))
    out = torch.softmax(q @ keys.transpose(-1, -2) * 0.25, -1) @ values
    assert_attention(out, q, k, v)
    with pytest.raises(AssertionError, match="should be"):
        assert_attention(out, q, k, v, scale=0.3)


def test_an_unknown_attribute_is_still_one() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'assert_everything'"):
        refattn.assert_everything  # noqa: B018


def test_pytest_shows_the_callers_line_and_the_text_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    pytester.makepyfile(
        """
        import numpy as np
        import refattn

        def test_mine():
            x = np.eye(4, dtype=np.float32)[None, None]
            refattn.assert_attention(2 * x, x, x, x)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*AttentionError: out[[]0, *should be*", "test_pytest_shows*.py:6: AttentionError"])
    assert "asserting.py" not in result.stdout.str() and "judging.py" not in result.stdout.str()


@pytest.mark.parametrize(("wrong", "named"), [("causal", "where no mask was asked for"), ("axis", "over the queries")])
def test_a_problem_of_usual_size_is_told_its_bug(wrong: str, named: str) -> None:
    """33,600 scores, more than `refattn check` asks all hypotheses of."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 6, 40, 16)).astype(np.float32)
    k, v = (rng.standard_normal((2, 2, 70, 16)).astype(np.float32) for _ in range(2))
    s = q.astype(np.float64) @ np.repeat(k, 3, 1).swapaxes(2, 3) / 4
    s = np.where(np.tri(40, 70, dtype=bool), s, -np.inf) if wrong == "causal" else s
    e = np.exp(s)
    out = e / e.sum(-1 if wrong == "causal" else 2, keepdims=True) @ np.repeat(v, 3, 1)
    with pytest.raises(AssertionError, match=named):
        refattn.assert_attention(out.astype(np.float32), q, k, v)
