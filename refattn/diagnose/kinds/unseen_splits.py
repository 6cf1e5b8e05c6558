"""Hypotheses on splits in which a row sees nothing, and what the merge makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .cuts import AND_EMPTY, SAME, USUAL, ends
from .loops import State
from .merges import Splits, with_maxima

__all__: list[str] = []


@lru_cache(maxsize=256)
def _before(case: Case) -> Array:
    """(B, H, Lq, Lk + 1): how many keys a row sees before each; as if all for rows that do not exist."""
    none = np.arange(case.Lq) >= np.array(case.lengths[0])[:, None]
    seen = np.asarray(case.visibility.tile()) | none[:, None, :, None]
    return np.concatenate([np.zeros((*seen.shape[:3], 1), np.int32), np.cumsum(seen, -1, dtype=np.int32)], -1)


def _unseen(case: Case, how: Any) -> bool:
    """Whether some row sees nothing in some split; of a bias that is not known."""
    seen = zip(_before(case), ends(case, how.cut), strict=True)
    return case.bias is not None or any((np.diff(n[..., list(parts)]) == 0).any() for n, parts in seen)


Merge = Callable[[Array, Array, Array], State]
UNSEEN: dict[str, Merge] = {
    "is NaN where a split saw nothing": lambda m, z, o: _nan_where((z == 0).any(0), *with_maxima(m, z, o, m)),
    "is NaN where all splits saw nothing": lambda m, z, o: _nan_where((z == 0).all(0), *with_maxima(m, z, o, m)),
    "is NaN where the first split saw nothing: its lse is subtracted":
        lambda m, z, o: _nan_where(z[0] == 0, *with_maxima(m, z, o, m)),
    "is NaN where the first two splits saw nothing":
        lambda m, z, o: _nan_where((z == 0)[:2].all(0), *with_maxima(m, z, o, m)),
    "counts a split that saw nothing as one of lse 0 and output 0": lambda m, z, o: with_maxima(*_counted(m, z, o, 0)),
    "counts a split that saw nothing as one of lse 1 and output 0": lambda m, z, o: with_maxima(*_counted(m, z, o, 1)),
}  # fmt: skip


def _counted(m: Array, z: Array, o: Array, lse: float) -> tuple[Array, Array, Array, Array]:
    maxima = np.where(z == 0, lse, m)
    return maxima, np.where(z == 0, 1, z), o, maxima


def _nan_where(where: Array, m: Array, z: Array, o: Array) -> State:
    return m, np.where(where, np.nan, z), np.where(where[..., None], np.nan, o)


@kind(_unseen, same=SAME, how=UNSEEN, cut=USUAL | AND_EMPTY)
class merge_of_unseen(Splits):
    """The merge of splits of {cut} {how}."""

    how: Merge

    def merged(self, m: Array, z: Array, o: Array) -> State:
        return self.how(m, z, o)
