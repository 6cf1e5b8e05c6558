"""Judging arrays that somebody has: what was computed, from what, and whether its error is honest.

    from refattn.judging import judge_arrays
    found = judge_arrays(q, k, v, out=out, causal="bottom_right")      # arrays of NumPy, torch, jax, ...
    found.status, found.ratio, found.rms["out"]                        # 'passed', 0.41, 0.11

It makes a `Problem` and an answer of them and asks `refattn.judge.judge`; nothing is tolerated that the
contract does not allow.  It raises ValueError or TypeError where the arrays make no problem, with the
name, the rule and the cure.  It looks only at the arrays that it is given: in a loop that rewards kernels draw them
anew for each call, pass a fresh `seed` with `rows`, and read `status`, not `ratio`; `refattn.reward` does the rest.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from . import exchange
from .case import BiasSpec, Case
from .dtypes import FORMATS, format_of
from .inputs import Problem
from .judgement import Judgement, Question
from .layouts import from_layout
from .masks import Causal, Mask, Window
from .nearest import nearest
from .precision import Conventions, Precision, eager, preset
from .sampling import Given
from .storage import Dense, Shared, Strided

__all__ = ["INPUTS", "JUDGED", "Judgement", "Question", "contract_of", "judge_arrays", "question"]

Array = np.ndarray[Any, Any]

INPUTS = ("q", "k", "v", "dout", "dlse", "bias", "mask", "sinks", "keep")
JUDGED = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")
_FOUR = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")


def judge_arrays(
    q: Any, k: Any, v: Any, *, out: Any = None, lse: Any = None, dq: Any = None, dk: Any = None, dv: Any = None,
    dbias: Any = None, dsinks: Any = None, dout: Any = None, dlse: Any = None, bias: Any = None, mask: Any = None,
    sinks: Any = None, keep: Any = None, rows: int | None = None, seed: int = 0,
    diagnose: bool = True, **options: Any,
) -> Judgement:  # fmt: skip
    """Judge the outputs that are given, at least one of out lse dq dk dv dbias dsinks.

    q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv), all of one dtype of `refattn.dtypes`; out and dout
    (B, H, Lq, Dv), lse and dlse (B, H, Lq) in every layout; the mask a boolean array that broadcasts to
    (B, H, Lq, Lk), True = may attend, or a `refattn.masks.Mask`; bias and keep broadcast likewise.  Gradients
    need dout, dropout needs keep.  `rows`: judge so many rows drawn by `seed`, and those at boundaries.
    `diagnose`: say of a failure what it looks like, which takes up to some seconds.

    `options` are those of `question`: layout causal window scale softcap dropout q_lens k_lens dtype
    out_dtype case contract contract_fields conventions.

    >>> x = np.eye(4, dtype=np.float32)[None, None]
    >>> judge_arrays(x, x, x, out=x).status
    'failed'
    >>> judge_arrays(x, x, x, out=np.full_like(x, 0.25), scale=0).ratio
    0.0
    """
    for name in options:
        if name not in _OPTIONS:
            known = [*inspect.signature(judge_arrays).parameters][:-1] + [*_OPTIONS]
            raise TypeError(f"{name} is no argument; {nearest(name, known)}there are {' '.join(known)}")
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias}
    given |= {"dsinks": dsinks, "dout": dout, "dlse": dlse, "bias": bias, "mask": mask, "sinks": sinks, "keep": keep}
    asked = question({n: x for n, x in given.items() if x is not None}, **options)
    return asked.sampled(rows, seed).judged(diagnose)


def question(
    arrays: Mapping[str, Any], *, layout: str = "BHLD", causal: str | None = None,
    window: tuple[int | None, int | None, str] | None = None, scale: float | None = None,
    softcap: float | None = None, dropout: float | None = None, q_lens: Sequence[int] | None = None,
    k_lens: Sequence[int] | None = None, dtype: str | None = None, out_dtype: str | None = None,
    case: Mapping[str, Any] | None = None, contract: str | Precision = "preset",
    contract_fields: Mapping[str, Any] | None = None, conventions: Conventions | None = None, name: str = "arrays",
) -> Question:  # fmt: skip
    """The question that named arrays ask; refused where they make none.

    `causal` and `window` (left, right, alignment), as `Causal` and `Window` have them, join the mask.
    `dtype`: what all arrays hold, if it is not the dtype they are stored in; they must be exact in it.
    `out_dtype` the same of out.  `case`: fields of a `Case` as JSON, in place of the options that describe
    one.  `contract` is preset, eager or a `Precision`, of which `contract_fields` replaces some.
    """
    described: dict[str, Any] = {"causal": causal, "window": window, "scale": scale, "softcap": softcap}
    described |= {"dropout": dropout, "q_lens": q_lens, "k_lens": k_lens}
    if causal is not None and causal not in ("top_left", "bottom_right"):
        raise ValueError(f"causal={causal!r} must be 'top_left' or 'bottom_right', which differ where Lq != Lk")
    doubled = [n for n, x in described.items() if x is not None]
    if case is not None and not isinstance(case, Mapping):
        raise TypeError(f"case={case!r} must be a mapping of fields of a Case, as its JSON: {{'softcap': 30}}")
    if conventions is not None and type(conventions) is not Conventions:
        raise TypeError(f"conventions={conventions!r} must be a refattn.precision.Conventions")
    if case is not None and doubled:
        raise ValueError(f"{doubled[0]}={described[doubled[0]]!r} beside a case: put it into the case")
    unknown = [n for n in arrays if n not in INPUTS + JUDGED]
    if unknown:
        raise ValueError(f"{unknown[0]} is no array of attention; pass {', '.join(INPUTS + JUDGED)}")
    lacking = [n for n in "qkv" if n not in arrays]
    if lacking:
        raise ValueError(f"{lacking[0]} is missing: q, k and v are needed, and at least one of {', '.join(JUDGED)}")
    if not any(n in JUDGED for n in arrays):
        raise ValueError(f"nothing to judge: at least one of {', '.join(JUDGED)} is needed")
    given_mask = arrays.get("mask")
    x = {n: _array(a, n, dtype, out_dtype, layout) for n, a in arrays.items() if not isinstance(a, Mask)}
    sizes = _sizes(x)
    x |= {n: _widened(x[n], n, sizes) for n in ("bias", "mask", "keep") if n in x}
    masks: list[Mask] = [given_mask] if isinstance(given_mask, Mask) else []
    masks += [Given(x.pop("mask"))] if "mask" in x else []
    masks += [Causal(causal)] if causal is not None else []  # type: ignore[arg-type]
    masks += [Window(*window)] if window is not None else []  # type: ignore[arg-type]
    answer = {n: x.pop(n) for n in JUDGED if n in x}
    about: dict[str, Any] = {n: described[n] for n in ("scale", "softcap", "dropout", "q_lens", "k_lens")}
    if case is not None:
        known = sizes | {"dtype": x["q"].dtype.name}
        known |= {"out_dtype": answer["out"].dtype.name} if "out" in answer else {}
        about = _of_case(case, known, x)
    for mask in masks:
        about["mask"] = mask if about.get("mask") is None else about["mask"] & mask
    about |= sizes | {"dtype": x["q"].dtype.name, "want": frozenset(answer)}
    about["out_dtype"] = answer["out"].dtype.name if "out" in answer else out_dtype or ""
    if "bias" in x:
        about["bias"] = _spec(x, sizes, "dbias" in answer)
    about["sinks"] = "given" if "sinks" in x else None
    made = Case(re.sub(r"[^A-Za-z0-9_.+-]", "_", name) or "arrays", "arrays that were given", family="given", **about)
    _check(made, x, answer)
    if "keep" in x:
        x["keep"] = np.broadcast_to(x["keep"], (made.B, made.H, made.Lq, made.Lk))
    precision = contract_of(made, contract, contract_fields)
    if "lse" in answer and answer["lse"].dtype.name not in (precision.lse, "float64"):
        raise ValueError(
            f"lse.dtype={answer['lse'].dtype} must be {precision.lse} or float64; a contract may have another (lse=...)"
        )
    return Question(Problem(made, x), answer, precision, conventions or Conventions())


_OPTIONS = tuple(inspect.signature(question).parameters)[1:]


def contract_of(case: Case, contract: str | Precision = "preset", but: Mapping[str, Any] | None = None) -> Precision:
    """preset or eager for the dtypes of the case, or a contract of one's own, with the fields `but` replaced."""
    if contract == "preset":
        made = preset(case.dtype, case.out_dtype)
    elif contract == "eager":
        if FORMATS[case.dtype].bits <= 4:
            raise ValueError(f"contract=eager of {case.dtype} is none that kernels have; pass preset and fields")
        made = replace(eager(case.dtype), out=case.out_dtype)
    elif isinstance(contract, Precision):
        made = contract
    else:
        raise ValueError(f"contract={contract!r} must be preset, eager or a refattn.precision.Precision")
    unknown = set(but or {}) - {f.name for f in fields(Precision)} | set(but or {}) & {"inputs", "out"}
    if unknown:
        known = ", ".join(f.name for f in fields(Precision) if f.name not in ("inputs", "out"))
        raise ValueError(f"{min(unknown)} is no field of a contract that can be set; these are: {known}")
    made = replace(made, **(but or {}))
    if (made.inputs, made.out) != (case.dtype, case.out_dtype):
        raise ValueError(
            f"a contract for inputs {made.inputs} and out {made.out} must be for {case.dtype} and {case.out_dtype}"
        )
    return made


def _array(a: Any, name: str, dtype: str | None, out_dtype: str | None, layout: str) -> Array:
    if not exchange.is_array(a):
        raise TypeError(
            f"{name} is of {type(a).__name__}, which has no dtype, and the dtype decides the bound; pass an array: "
            f"numpy.asarray({name}, dtype)"
        )
    try:
        x: Array = exchange.as_numpy(a)
    except Exception as error:  # of another library, as of a tensor without memory
        raise TypeError(f"{name} cannot be read as an array; pass a dense one on the CPU: {error}") from error
    if np.ma.isMaskedArray(x):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored; pass {name}.filled() and a mask=")
    if name in ("mask", "keep"):
        if x.dtype != np.bool_:
            cure = "True = may attend; pass additive ones as bias" if name == "mask" else "True = kept"
            raise TypeError(f"{name}.dtype={x.dtype} must be bool, {cure}")
        return x
    held = out_dtype if name == "out" and out_dtype is not None else dtype
    if name in ("lse", "dlse", "bias", "sinks", "dbias"):  # of dtypes of their own
        held = dtype if x.dtype.kind == "V" else None
    if held is not None:
        x = _as_held(x, name, format_of(held, "dtype").name)
    if x.dtype.kind == "V" and x.dtype.name not in FORMATS:
        raise TypeError(
            f"{name}.dtype={x.dtype} has no meaning: .npz keeps no bfloat16 and no float8; say which with dtype, or "
            f"write safetensors"
        )
    format_of(x.dtype, f"{name}.dtype")
    return from_layout(x, layout) if name in _FOUR and layout != "BHLD" and x.ndim == 4 else x


def _as_held(x: Array, name: str, held: str) -> Array:
    """x in the dtype that its numbers are of; refused if they are not."""
    if x.dtype.name == held:
        return x
    if x.dtype.kind == "V" and x.dtype.name not in FORMATS:
        if x.dtype.itemsize != FORMATS[held].dtype.itemsize:
            raise TypeError(f"{name}.dtype={x.dtype} cannot be {held}; write safetensors")
        return x.view(FORMATS[held].dtype)
    format_of(x.dtype, f"{name}.dtype")
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(FORMATS[held].dtype)
    if not np.array_equal(narrow.astype(np.float64), wide, equal_nan=True):
        raise ValueError(f"{name} of {x.dtype} has numbers that are none of {held}; leave dtype out, or round {name}")
    return np.asarray(narrow)


def _sizes(x: Mapping[str, Array]) -> dict[str, int]:
    q, k, v = (x[n] for n in "qkv")
    for name in "qkv":
        if x[name].ndim != 4:
            raise ValueError(f"{name}.shape={x[name].shape} must have 4 dimensions (B, heads, L, D); see layout")
        if x[name].dtype != q.dtype:
            raise ValueError(f"{name}.dtype={x[name].dtype} must be {q.dtype}, the dtype of q; pass x.astype first")
    (B, H, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    for name, shape in (("k", (B, Hkv, Lk, D)), ("v", (B, Hkv, Lk, Dv))):
        if x[name].shape != shape:
            raise ValueError(
                f"{name}.shape={x[name].shape} must be (B, Hkv, Lk, {'D' if name == 'k' else 'Dv'})={shape}, with "
                f"q.shape={q.shape} and v.shape={v.shape}; see layout"
            )
    if Hkv and H % Hkv:
        raise ValueError(f"H={H} of q.shape={q.shape} must be a multiple of Hkv={Hkv} of k and v; see layout")
    return {"B": B, "H": H, "Hkv": Hkv, "Lq": Lq, "Lk": Lk, "D": D, "Dv": Dv}


def _widened(x: Array, name: str, sizes: Mapping[str, int]) -> Array:
    """x with 4 dimensions, each 1 or the size."""
    whole = tuple(sizes[n] for n in ("B", "H", "Lq", "Lk"))
    wide = x.reshape((1,) * (4 - x.ndim) + x.shape)
    if x.ndim > 4 or any(n not in (1, size) for n, size in zip(wide.shape, whole, strict=True)):
        raise ValueError(f"{name}.shape={x.shape} must broadcast to (B, H, Lq, Lk)={whole}")
    return wide


def _of_case(case: Mapping[str, Any], known: Mapping[str, Any], x: Mapping[str, Array]) -> dict[str, Any]:
    """What a case in JSON says beyond sizes and dtypes, which are those of the arrays."""
    for name, value in known.items():
        if case.get(name, value) != value:
            raise ValueError(f"{name}={case[name]!r} of the case must be {value}, as the arrays have it; see layout")
    stated = Case.from_json({"id": "case", "why": "given", **known, **case})
    for what, there in (("rotary", stated.rotary is None), ("quant", stated.quant is None),
                        ("storage", isinstance(stated.storage, (Dense, Strided, Shared)))):  # fmt: skip
        if not there:
            raise ValueError(
                f"{what}={getattr(stated, what)}: only a file of refattn check --dump can have it; pass dense q k v as "
                f"it makes them, and leave it out"
            )
    for name in ("bias", "sinks"):
        if getattr(stated, name) is not None and name not in x:
            raise ValueError(f"{name} is missing, which the case has; pass it, or leave it out of the case")
    whole = ("scale", "softcap", "dropout", "q_lens", "k_lens", "score_mod", "mask")
    return {name: getattr(stated, name) for name in whole}


def _spec(x: dict[str, Array], sizes: Mapping[str, int], with_gradient: bool) -> BiasSpec:
    bias = x["bias"]
    letters = dict(zip("BHQK", (sizes[n] for n in ("B", "H", "Lq", "Lk")), strict=True))
    dims = "".join(n for n, size in zip(letters, bias.shape, strict=True) if size == letters[n])
    if not dims:
        if with_gradient:
            raise ValueError(f"dbias of a bias of shape {bias.shape} is not judged; leave dbias out")
        x["bias"], dims = np.broadcast_to(bias, (1, 1, 1, sizes["Lk"])), "K"
    return BiasSpec(dims, bias.dtype.name, "given")


def _check(case: Case, x: Mapping[str, Array], answer: Mapping[str, Array]) -> None:
    """Shapes and company of all but q, k and v."""
    for name, a in (*x.items(), *answer.items()):
        shape = case.shape_of(name)
        if name not in ("bias", "keep") and a.shape != shape:
            cure = "every layout has lse and dlse as (B, H, Lq)" if name in ("lse", "dlse") else "see layout"
            raise ValueError(f"{name}.shape={a.shape} must be {shape}, with q.shape={x['q'].shape}; {cure}")
        wanted = case.bias.dtype if name == "dbias" and case.bias else case.dtype
        if name in answer and name not in ("out", "lse") and a.dtype.name != wanted:
            raise ValueError(f"{name}.dtype={a.dtype} must be {wanted}, as what it belongs to; round it first")
    gradients = [name for name in answer if name.startswith("d")]
    if gradients and "dout" not in x:
        raise ValueError(f"{gradients[0]} needs dout, the gradient that it was computed from")
    if ("keep" in x) != (case.dropout is not None):
        given, lacking = ("keep", "dropout") if "keep" in x else (f"dropout={case.dropout}", "keep")
        raise ValueError(f"{given} needs {lacking} too: one says how much, one which")
