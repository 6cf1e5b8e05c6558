"""Kinds of problems by what is hard about them, and how far off the oracle may be in each.

`PYTHONPATH=. python tests/test_certified.py` measured, largest of 20 draws of each kind (NumPy 2.4, OpenBLAS),
"scores" being the three matrices of scores:

                    out     lse      dq      dk      dv   dbias  dsinks  dscale dsoftcap  scores weights
ordinary              4    0.96     2.3     4.1     6.3     4.3     1.8    0.23             3.1      16
logits of 36         22     1.5      15      24      37      35     3.5     0.4             3.6      89
logits of 360   1.2e+02     1.8 1.2e+02 2.1e+02 5.7e+02 3.3e+02     1.2    0.12             3.1 7.8e+02
logits of 1e300 1.8e-22     1.3     1.8     1.9     1.3            0.49    0.14             3.2 1.8e-22
needle              3.6     1.8       2      74 1.5e+02      89      86    0.26             3.7 1.8e+02
cancelling v       0.39     1.2    0.87     2.6     3.7     1.5    0.12    0.11             3.1     9.9
one-hot v            15    0.96     5.1     5.6     6.3       5     2.2    0.37             3.1      16
huge offset 1e6 5.6e+05    0.46 2.5e+05 4.9e+05   7e+05   5e+05   1e+05 1.4e+04             3.1 8.9e+05
ties                3.2     1.1     1.6     2.1     3.3     1.9    0.95    0.15             2.2     3.1
softcap 10, 360      22    0.64      39      31      44      39     2.3    0.21    0.27       3      94
scale -3             34     1.5      23      28      39      42     3.6    0.29             2.9      72
tiny                  0     1.3     3.5     4.5       3     3.8     1.4       0         5.2e-23     4.5
dropout 0.3         7.5    0.96     3.5     4.3     5.5     4.7     1.6    0.26             3.1      16
everything      1.6e+02    0.33      82      82 1.7e+02      92     1.9     0.9    0.31     2.6 2.3e+02
relative, 36         21     1.3      15      26      37      37     3.5    0.51             3.6      90
distance, 36         25     1.4      14      24      37      37       4    0.39             3.6      90
checkerboard, 36     21     1.5      13      21      31      38     3.1    0.64             3.6      88
tilt, 36             35     2.1      16      31      41      89     3.5     0.3             3.6 1.6e+02
softsign, 36         12    0.57     5.8     7.4      12      12     1.8    0.18             3.6      24
parabola, 36         44     2.1      19      49 1.4e+02   1e+02      11    0.52             3.6 2.9e+02

`LIMITS` allows about four times as much, since BLAS and exp differ between machines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from certified_scores import MODIFIERS

Array = np.ndarray[Any, Any]
Problem = dict[str, Any]
"""the arguments of `certify`"""

NAMES = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dscale", "dsoftcap", "scores", "weights")
COLUMN = dict(zip(NAMES, NAMES, strict=True)) | {"capped": "scores", "biased": "scores"}
B, H, HKV, LQ, LK, D, DV = 1, 4, 2, 5, 9, 8, 3


def ordinary(rng: np.random.Generator) -> Problem:
    """N(0, 1) throughout; every row of batch entry 0, head 0 sees another set of keys, row 2 none."""
    visible = rng.random((B, 1, LQ, LK)) < 0.7
    visible[:, :, 2] = False
    return {
        "q": rng.standard_normal((B, H, LQ, D)),
        "k": rng.standard_normal((B, HKV, LK, D)),
        "v": rng.standard_normal((B, HKV, LK, DV)),
        "visible": visible,
        "bias": rng.standard_normal((H, 1, LK)),
        "sinks": rng.standard_normal(H),
        "dout": rng.standard_normal((B, H, LQ, DV)),
        "dlse": rng.standard_normal((B, H, LQ)),
    }


def _logits(x: Problem, largest: float) -> Problem:
    """`x` with q scaled so that the terms of the largest score sum to `largest`."""
    terms = np.abs(x["q"]) @ np.abs(np.repeat(x["k"], H // HKV, axis=1)).swapaxes(-1, -2) * D**-0.5
    return x | {"q": x["q"] * (largest / terms.max())}


def _needle(rng: np.random.Generator) -> Problem:
    """One key takes all but about exp(-40) of each row."""
    x = ordinary(rng)
    x["k"][:, :, 4] = 40 * D**-0.5 * np.sign(x["k"][:, :, 4])
    x["q"] = np.sign(np.repeat(x["k"], H // HKV, axis=1)[:, :, 4:5]) + 0.1 * x["q"]
    x["visible"][..., 4] = True
    return x


def _cancelling(rng: np.random.Generator) -> Problem:
    """Keys in equal pairs whose values are +-1e8 but for N(0, 1): out is what is left."""
    x = ordinary(rng)
    x["k"][:, :, 1::2], x["bias"][..., 1::2] = x["k"][:, :, 0:-1:2], x["bias"][..., 0:-1:2]
    x["v"] += 1e8 * np.where(np.arange(LK) % 2, -1, 1)[:, None]
    x["v"][:, :, -1] = 0
    return x | {"visible": np.ones((1, 1), dtype=bool)}


def _one_hot(rng: np.random.Generator) -> Problem:
    x = ordinary(rng)
    x["v"] = np.broadcast_to(np.eye(LK, DV), x["v"].shape).copy()
    return x


def _saturated(rng: np.random.Generator) -> Problem:
    """Scores of 360 under a softcap of 10: the slope goes down to 4 exp(-72)."""
    return _logits(ordinary(rng), 360) | {"softcap": 10.0}


def _dropped(x: Problem, rng: np.random.Generator) -> Problem:
    return x | {"dropout": 0.3, "keep": rng.random((B, H, LQ, LK)) < 0.7}


def _modified(name: str, rng: np.random.Generator) -> Problem:
    return _logits(ordinary(rng), 36) | {"score_mod": name}


def _tiny(rng: np.random.Generator) -> Problem:
    """Subnormal values, and queries whose products underflow."""
    x = ordinary(rng)
    return x | {"q": x["q"] * 1e-170, "k": x["k"] * 1e-170, "v": x["v"] * 1e-310}


KINDS: dict[str, Callable[[np.random.Generator], Problem]] = {
    "ordinary": ordinary,
    "logits of 36": lambda rng: _logits(ordinary(rng), 36),
    "logits of 360": lambda rng: _logits(ordinary(rng), 360),
    "logits of 1e300": lambda rng: _logits(ordinary(rng), 1e300) | {"bias": None},
    "needle": _needle,
    "cancelling v": _cancelling,
    "one-hot v": _one_hot,
    "huge offset 1e6": lambda rng: (x := ordinary(rng)) | {n: x[n] + 1e6 for n in ("bias", "sinks")},
    "ties": lambda rng: (x := ordinary(rng)) | {"k": 0 * x["k"] + 1, "bias": 0 * x["bias"]},
    "softcap 10, 360": _saturated,
    "scale -3": lambda rng: ordinary(rng) | {"scale": -3.0},
    "tiny": _tiny,
    "dropout 0.3": lambda rng: _dropped(ordinary(rng), rng),
    "everything": lambda rng: _dropped(_saturated(rng), rng) | {"score_mod": "parabola", "scale": -0.7},
    **{f"{name}, 36": partial(_modified, name) for name in MODIFIERS},
}

LIMITS: dict[str, tuple[float, ...]] = {  # as NAMES
    "ordinary": (16, 6, 16, 16, 25, 16, 8, 1, 0, 13, 64),
    "logits of 36": (100, 6, 60, 100, 150, 150, 16, 2, 0, 15, 360),
    "logits of 360": (500, 8, 500, 900, 2300, 1400, 8, 1, 0, 13, 3200),
    "logits of 1e300": (8, 6, 8, 8, 8, 0, 4, 1, 0, 13, 8),
    "needle": (16, 8, 8, 300, 600, 400, 350, 2, 0, 15, 720),
    "cancelling v": (4, 6, 4, 10, 16, 8, 4, 1, 0, 13, 40),
    "one-hot v": (60, 6, 20, 25, 25, 20, 10, 2, 0, 13, 64),
    "huge offset 1e6": (2.3e6, 4, 1e6, 2e6, 3e6, 2e6, 4e5, 6e4, 0, 13, 3.6e6),
    "ties": (13, 5, 8, 8, 13, 8, 4, 1, 0, 9, 13),
    "softcap 10, 360": (90, 4, 160, 130, 180, 160, 10, 1, 1.1, 12, 380),
    "scale -3": (140, 6, 100, 120, 160, 170, 16, 1.2, 0, 12, 300),
    "tiny": (2, 6, 14, 18, 12, 16, 6, 1, 0, 4, 18),
    "dropout 0.3": (30, 6, 16, 18, 22, 20, 8, 1, 0, 13, 64),
    "everything": (640, 4, 330, 330, 680, 370, 8, 4, 1.3, 11, 920),
    "relative, 36": (84, 6, 60, 104, 150, 150, 14, 2, 0, 15, 360),
    "distance, 36": (100, 6, 56, 96, 150, 150, 16, 2, 0, 15, 360),
    "checkerboard, 36": (84, 6, 52, 84, 124, 150, 13, 2.5, 0, 15, 360),
    "tilt, 36": (140, 8, 64, 124, 164, 360, 14, 1.2, 0, 15, 640),
    "softsign, 36": (48, 4, 24, 30, 48, 48, 8, 1, 0, 15, 96),
    "parabola, 36": (180, 8, 76, 200, 560, 400, 44, 2, 0, 15, 1200),
}
