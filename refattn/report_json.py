"""The parts of a report as JSON objects, and back; numbers that are not finite are the strings nan, inf, -inf."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from .calling import Description
from .case import Case
from .conform import Report
from .judge import Output, Verdict
from .precision import Conventions, Precision
from .probes import Convention

__all__ = [
    "as_finite", "convention_as_json", "convention_of", "description_of", "implementation_as_json", "suite_version",
    "verdict_as_json", "verdict_of",
]  # fmt: skip

Object = dict[str, Any]


def implementation_as_json(report: Report) -> Object:
    about = report.description
    return {
        "spec": report.spec,
        "name": about.name,
        "version": about.version,
        "arrays": about.arrays,
        "outputs": sorted(about.outputs),
        "conventions": dataclasses.asdict(about.conventions),
        **({"never_given": list(about.never_given)} if about.never_given else {}),
    }


def description_of(data: Object) -> Description:
    """What `implementation_as_json` has of it."""
    conventions = Conventions(**data["conventions"])
    about = data["name"], data["version"], data["arrays"], conventions, frozenset(data["outputs"])
    return Description(*about, tuple(data.get("never_given", ())))


def convention_as_json(row: Convention) -> Object:
    return dataclasses.asdict(row) | {"fits": row.fits}


def convention_of(data: Object) -> Convention:
    return Convention(**{name: value for name, value in data.items() if name != "fits"})


def verdict_as_json(v: Verdict, expected: Mapping[str, str]) -> Object:
    """`expected` has the reasons of the cases that are expected to fail."""
    found: Object = as_finite(
        {
            "case": v.case.to_json(),
            "chapter": v.case.chapter,
            "status": v.status,
            "expected_failure": expected.get(v.case.id),
            "ratio": v.ratio,
            "seconds": v.seconds,
            "reasons": list(v.reasons),
            "notes": list(v.notes),
            "suspicions": list(v.suspicions),
            "conventions": dict(v.conventions),
            "loosened": dict(v.loosened),
            "contract": None if v.contract is None else dataclasses.asdict(v.contract),
            "outputs": [dataclasses.asdict(o) for o in v.outputs],
            "picture": v.picture,
        }
    )
    return found


def verdict_of(data: Object) -> Verdict:
    contract = None if data["contract"] is None else Precision(**_with_floats(Precision, data["contract"]))
    return Verdict(
        Case.from_json(data["case"]),
        data["status"],
        outputs=tuple(Output(**_with_floats(Output, o) | {"index": tuple(o["index"])}) for o in data["outputs"]),
        reasons=tuple(data["reasons"]),
        notes=tuple(data["notes"]),
        conventions=data["conventions"],
        loosened={name: getattr(contract, name) for name in data["loosened"]},
        contract=contract,
        seconds=float(data["seconds"]),
        suspicions=tuple(data["suspicions"]),
        picture=data["picture"],
    )


def _with_floats(kind: Any, data: Object) -> Object:
    """The fields of a dataclass, with floats where `as_finite` made texts of them."""
    floats = {f.name for f in dataclasses.fields(kind) if f.type == "float"}
    return {name: float(value) if name in floats and isinstance(value, str) else value for name, value in data.items()}


def as_finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: as_finite(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [as_finite(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def suite_version() -> str:
    try:
        return metadata.version("refattn")
    except metadata.PackageNotFoundError:
        return "(not installed)"
