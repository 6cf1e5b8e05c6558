"""Results as lines of JSON, as far as a run that may have been killed wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read"]


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; one that a kill cut short is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
