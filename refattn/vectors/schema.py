"""Checks JSON against `schema.json`, of which it knows the few words that are used there (JSON Schema 2020-12)."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["BadIndex", "check", "text"]


class BadIndex(ValueError):
    """An index or a folder that is not as the schema says; names the place."""


def text() -> str:
    """The schema, as it lies in the package."""
    return files(__package__).joinpath("schema.json").read_text(encoding="utf-8")


@cache
def _schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text())
    return loaded


def check(data: Any) -> None:
    """Raises `BadIndex` at the first thing that differs."""
    _check(data, _schema(), "index")


def _check(x: Any, schema: dict[str, Any], at: str) -> None:
    if "enum" in schema and not any(x is e or (type(x) is type(e) and x == e) for e in schema["enum"]):
        raise BadIndex(f"{at}={_short(x)} must be one of {', '.join(map(str, schema['enum']))}")
    kinds = schema.get("type")
    if kinds is not None and not any(_is(x, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        raise BadIndex(f"{at}={_short(x)} must be of type {kinds if isinstance(kinds, str) else ' or '.join(kinds)}")
    if isinstance(x, str) and "pattern" in schema and not re.search(schema["pattern"], x):
        raise BadIndex(f"{at}={_short(x)} must match {schema['pattern']}")
    if isinstance(x, int) and not schema.get("minimum", x) <= x <= schema.get("maximum", x):
        raise BadIndex(f"{at}={_short(x)} must be from {schema.get('minimum')} to {schema.get('maximum')}")
    if isinstance(x, dict):
        _check_object(x, schema, at)
    if isinstance(x, list) and "items" in schema:
        for n, item in enumerate(x):
            _check(item, schema["items"], f"{at}[{n}]")


def _check_object(x: dict[str, Any], schema: dict[str, Any], at: str) -> None:
    known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in x:
            raise BadIndex(f"{at} must have {name}")
    for name, value in x.items():
        if name in known:
            _check(value, known[name], f"{at}.{name}")
        elif other is False:
            raise BadIndex(f"{at} has {_short(name)}, which version 1 does not know")
        elif isinstance(other, dict):
            _check(value, other, f"{at}.{_short(name)}")


def _is(x: Any, kind: str) -> bool:
    if isinstance(x, bool):
        return kind == "boolean"
    types: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None),
    }  # fmt: skip
    return isinstance(x, types[kind])


def _short(x: Any) -> str:
    shown = repr(x)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
