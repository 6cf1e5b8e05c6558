"""The bounds of dscale and dsoftcap: sums over all pairs, rigorous.

    dscale = sum dS (q·k),   error: sum e_dS A + n u sum (|dS| + e_dS) A,   A = |q|·|k|ᵀ

whether it is had pair by pair or as sum q · (dS k).  With z = s / softcap, g = tanh z - z / cosh² z and
dC = dT * slope of score_mod,

    dsoftcap = sum dC g,   error: sum e_dC (|g| + e_g) + |dC| e_g + n u sum |dC| (|tanh z| + |z| / cosh² z)
    e_g = 0.7 e_z + evaluation,   since |g'| = 2 |z tanh z| / cosh² z < 0.7

n counts the additions that a term goes through: no more than the keys, the rows, D and a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .pairs import Keys, Pairs, Slopes

__all__ = ["Scalars"]

Array = np.ndarray[Any, Any]


@dataclass
class Scalars:
    """Rigorous errors, and sums of absolute terms, of one head so far."""

    dscale_error: float = 0.0
    dscale_terms: float = 0.0
    dsoftcap_error: float = 0.0
    dsoftcap_terms: float = 0.0
    rows: int = 0

    def add(self, p: Pairs, s: Slopes, A: Array, g: Keys) -> None:
        """A tile of rows and all keys; A = |q|·|k|ᵀ."""
        c = g.c
        self.rows += len(A)
        n = len(g.k) + g.k.shape[1] + 8
        terms = np.abs(s.dS) * A
        error = _product(s.e_dS, A)
        self.dscale_terms += float(terms.sum())
        self.dscale_error += float((error + n * c.u * (terms + error)).sum())
        if g.softcap is None:
            return
        z = np.abs(p.scores.s) / g.softcap
        tanh, sech2 = np.tanh(z), 1 / np.cosh(np.minimum(z, 300)) ** 2
        value = np.abs(tanh - z * sech2)
        parts = tanh + z * sech2
        e_z = p.scores.s_error / g.softcap + c.u * z
        e_g = 0.7 * e_z + c.tanh * tanh + z * (2 * tanh * c.tanh + 4 * c.u) + 4 * c.u * parts
        dC = np.abs(s.dT * p.scores.outer)
        e_dC = _product(s.e_dT, np.abs(p.scores.outer) + p.scores.outer_error)
        e_dC = e_dC + np.abs(s.dT) * p.scores.outer_error + 2 * c.u * dC
        error = np.where(p.visible, _product(e_dC, value + e_g) + dC * e_g, 0.0)
        terms = np.where(p.visible, dC * parts, 0.0)
        self.dsoftcap_terms += float(terms.sum())
        self.dsoftcap_error += float((error + n * c.u * (terms + error)).sum())


def _product(e: Array, x: Array) -> Array:
    """e x, where an endless e times 0 is endless."""
    return np.where(np.isinf(e), np.inf, e * x)
