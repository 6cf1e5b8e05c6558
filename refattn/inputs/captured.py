"""Inputs captured from models: q, k, v of a .safetensors or .npz file, as the family "captured:FILE#ENTRY".

A file holds one entry, arrays q k v, or several, layer0.q layer0.k layer0.v layer1.q ...; q is (B, H, Lq, D), k
(B, Hkv, Lk, D), v (B, Hkv, Lk, Dv).  Beside them there may be bias, sinks, dout and a boolean mask.  What attention
it was of the metadata of a .safetensors file say, as JSON of fields of a `Case`: under "case" for all entries, under
"case.layer0" for one.  In the place of FILE stands the name of a set that comes with refattn: SETS.

A case of such a family may be smaller than its entry: it has the first B batch entries, H and Hkv heads, and Lk keys,
and the last Lq queries, so that Lq = 1 is the step that decodes the last token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS, format_of
from ..masks import Dense
from ..tensors import BadFile, Tensors, read

__all__ = ["PREFIX", "SETS", "captured", "cases_of"]

Array = np.ndarray[Any, Any]

PREFIX = "captured:"
FOLDER = Path(__file__).parent / "data"
SETS = ("minilm",)
"""of FOLDER, where README.md says what they are"""
_ARRAYS = {"q": 4, "k": 4, "v": 4, "bias": 4, "dout": 4, "sinks": 1, "mask": 4}
"""and their dimensions"""
_FIELDS = ("mask", "q_lens", "k_lens", "scale", "softcap", "score_mod")
_SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_LARGEST_MASK = 1 << 22


def captured(case: Case) -> dict[str, Array]:
    """q k v of the family of a case, and bias sinks dout where the file has them, in float64, of the case's sizes."""
    name, mark, entry = case.family.removeprefix(PREFIX).rpartition("#")  # a path may have a #, an entry not
    name, entry = (name, entry) if mark else (entry, "")
    path = FOLDER / f"{name}.safetensors" if name in SETS else Path(name)
    entries = _entries(path, read(path))
    if entry not in entries:
        raise BadFile(f"family={case.family!r}: {path} has no entry {entry!r}; it has {', '.join(entries)}")
    found = {}
    for part, x in entries[entry].items():
        if part == "mask" or (part == "bias" and case.bias is None) or (part == "sinks" and case.sinks is None):
            continue
        shape = case.shape_of(part)
        takes = [slice(-n or len(x), None) if a == 2 and part in ("q", "dout", "bias") else slice(n)
                 for a, n in enumerate(shape)]  # fmt: skip
        found[part] = np.asarray(x[tuple(takes)], np.float64)
        if found[part].shape != shape or (part in "qkv" and x.shape[3] != shape[3]):
            raise ValueError(f"family={case.family!r} has {part}.shape={x.shape}, too small or too large for {shape}")
    return found


def cases_of(path: Path) -> tuple[Case, ...]:
    """For each entry of a file the case that it is, forward and backward, in its dtype; of float32 in 16 bits too."""
    tensors = read(path)
    made = []
    for entry, arrays in _entries(path, tensors).items():
        q, k, v = (arrays[name] for name in "qkv")
        (B, H, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
        about: dict[str, Any] = {"B": B, "H": H, "Hkv": Hkv, "Lq": Lq, "Lk": Lk, "D": D, "Dv": Dv}
        about |= {"family": f"{PREFIX}{path}#{entry}", "why": f"{path}, {entry or 'as it is'}."}
        about |= _about(path, tensors, entry)
        if "mask" in arrays:
            about["mask"] = _mask(path, arrays["mask"], about)
        if "bias" in arrays:
            about["bias"] = _bias(path, arrays["bias"], about)
        if "sinks" in arrays:
            about["sinks"] = "captured"
        peak = max(float(np.abs(x).max(initial=0.0)) for x in (q, k, v))
        for dtype in _dtypes(q.dtype.name, peak):
            words = (path.stem, entry, _SHORT.get(dtype, dtype))
            stem = re.sub(r"[^A-Za-z0-9_.+-]", "_", "-".join(word for word in words if word))
            made.append(Case.from_json({"id": stem, "dtype": dtype, **about}))
            if FORMATS[dtype].bits > 4:
                want = ["dq", "dk", "dv", *(f"d{name}" for name in ("bias", "sinks") if name in arrays)]
                made.append(Case.from_json({"id": f"{stem}-grad", "dtype": dtype, "want": want, **about}))
    return tuple(made)


def _entries(path: Path, tensors: Tensors) -> dict[str, dict[str, Array]]:
    """The arrays of each entry, by the last part of their names; refused if they make no q, k, v."""
    entries: dict[str, dict[str, Array]] = {}
    for name, x in tensors.arrays.items():
        entry, _, part = name.rpartition(".")
        if part not in _ARRAYS:
            raise BadFile(f"{path}: {name} is none of {' '.join(_ARRAYS)}, with an entry's name before it: layer0.q")
        if x.ndim != _ARRAYS[part]:
            raise BadFile(f"{path}: {name}.shape={x.shape} must have {_ARRAYS[part]} dimensions; (B, heads, L, D)")
        if part != "mask":
            format_of(x.dtype, f"{path}: {name}.dtype")
        entries.setdefault(entry, {})[part] = x
    for entry, arrays in entries.items():
        if "#" in entry:
            raise BadFile(f"{path}: entry {entry!r} must have no # in its name, which parts file and entry")
        if lacking := set("qkv") - set(arrays):
            raise BadFile(f"{path}: entry {entry!r} has no {min(lacking)}; it needs q, k and v")
    if not entries:
        raise BadFile(f"{path} holds no arrays; it needs q, k and v")
    return entries


def _about(path: Path, tensors: Tensors, entry: str) -> Mapping[str, Any]:
    """What the metadata say of an entry."""
    found: dict[str, Any] = {}
    for key in ("case", f"case.{entry}"):
        try:
            found |= json.loads(tensors.metadata.get(key, "{}"))
        except (ValueError, TypeError, RecursionError) as error:
            raise BadFile(f"{path}: {key} in its metadata is no JSON object: {error}") from None
    if unknown := set(found) - set(_FIELDS):
        raise BadFile(f"{path}: case in its metadata has {min(unknown)}; it may have {' '.join(_FIELDS)}")
    return found


def _mask(path: Path, mask: Array, about: Mapping[str, Any]) -> Any:
    if mask.dtype != np.bool_ or mask.size > _LARGEST_MASK or about.get("mask") is not None:
        raise BadFile(
            f"{path}: mask of {mask.dtype} {mask.shape} must be bool, at most {_LARGEST_MASK:,}, and alone; a causal "
            'one goes into the metadata: {"mask": {"type": "Causal", "align": "bottom_right"}}'
        )
    sizes = tuple(about[name] for name in ("B", "H", "Lq", "Lk"))
    try:
        return Dense.of(np.broadcast_to(mask, (*mask.shape[:2], *sizes[2:]))).to_json()
    except ValueError:
        raise BadFile(f"{path}: mask.shape={mask.shape} must broadcast to (B, H, Lq, Lk)={sizes}") from None


def _bias(path: Path, bias: Array, about: Mapping[str, Any]) -> dict[str, str]:
    sizes = dict(zip("BHQK", (about[name] for name in ("B", "H", "Lq", "Lk")), strict=True))
    if any(n not in (1, size) for n, size in zip(bias.shape, sizes.values(), strict=True)):
        raise BadFile(f"{path}: bias.shape={bias.shape} must broadcast to (B, H, Lq, Lk)={tuple(sizes.values())}")
    dims = "".join(name for name, n in zip(sizes, bias.shape, strict=True) if n == sizes[name])
    return {"dims": dims, "dtype": bias.dtype.name, "family": "captured"}


def _dtypes(stored: str, peak: float) -> Iterator[str]:
    yield stored
    if stored in ("float64", "float32"):
        yield from (name for name in ("float32", "bfloat16", "float16") if name != stored and peak <= FORMATS[name].max)
