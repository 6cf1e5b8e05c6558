"""Dropout's keep mask from a counter: which weights are kept depends on where they are, never on tiles.

The bits are those of Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
3" (also the C++ standard, [rand.eng.philox]), a bijection of 128-bit counters under a 64-bit key:

    key      seed (64 bits)
    counter  j // 4,  i,  b * 4096 + h,  offset (32 bits each)
    word     number j % 4 of the four that come out

Weight (b, h, i, j) is kept where its word is < (1 - p) 2**32, compared exactly, so with probability
1 - p to within 2**-32; p = 0 keeps all and p = 1 none.  Libraries lay their counters out otherwise:
they hand over their mask and are judged on that, and the mask by `fraction_is_plausible`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["fraction_bound", "fraction_is_plausible", "keep", "keep_tile", "philox4x32"]

Array = np.ndarray[Any, Any]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)

_LIMITS = {"b": 2**20, "h": 2**12, "i": 2**32, "j": 2**34}


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int], rounds: int = 10) -> tuple[Array, ...]:
    """Four words of 32 bits (in uint64) for each counter: arrays of words that broadcast, key words as ints."""
    words = [_indices(x, f"counter[{n}]", 2**32) for n, x in enumerate(counter)]
    for n, word in enumerate(key):
        _check_int(f"key[{n}]", word, 2**32)
    if len(words) != 4 or len(key) != 2:
        raise ValueError(f"counter of {len(words)} words and key of {len(key)} must have 4 and 2")
    _check_int("rounds", rounds, 2**16)
    c0, c1, c2, c3 = words
    for n in range(rounds):
        k0, k1 = (np.uint64((k + n * w) % 2**32) for k, w in zip(key, _WEYL, strict=True))
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _32) ^ c1 ^ k0, second & _LOW, (first >> _32) ^ c3 ^ k1, first & _LOW
    return tuple(np.broadcast_arrays(c0, c1, c2, c3))


def keep(seed: int, offset: int, b: Any, h: Any, i: Any, j: Any, p: float) -> Array:
    """Whether the weight of key j in row i of head h, batch entry b, is kept: booleans, the indices broadcast.

    `seed` is an int of 64 bits, `offset` of 32; b < 2**20, h < 2**12, i < 2**32, j < 2**34; p in [0, 1].
    """
    j = _indices(j, "j", _LIMITS["j"])
    words = _words(seed, offset, b, h, i, j >> np.uint64(2))
    lane = (j & np.uint64(3)).astype(np.int64)
    return np.asarray(np.choose(lane, words) < _threshold(p))


def keep_tile(
    seed: int,
    offset: int,
    p: float,
    shape: tuple[int, int, int, int],
    rows: slice = slice(None),
    keys: slice = slice(None),
    b: int | None = None,
    h: int | None = None,
) -> Array:
    """`keep` for a tile of the weights of `shape` (B, H, Lq, Lk), four keys at a time.

    Booleans (B, H, rows, keys), or (rows, keys) of one batch entry and head, as `Visibility.tile`.
    """
    if len(shape) != 4:
        raise ValueError(f"shape={shape} must be (B, H, Lq, Lk)")
    for name, length, limit in zip(("B", "H", "Lq", "Lk"), shape, _LIMITS.values(), strict=True):
        _check_int(name, length, limit + 1)
    for name, index, length in (("b", b, shape[0]), ("h", h, shape[1])):
        if index is not None:
            _check_int(name, index, length)
    bs = (np.arange(shape[0]) if b is None else np.array([b])).reshape(-1, 1, 1, 1)
    hs = (np.arange(shape[1]) if h is None else np.array([h])).reshape(1, -1, 1, 1)
    i = np.arange(shape[2])[rows].reshape(1, 1, -1, 1)
    start, stop, step = keys.indices(shape[3])
    if step != 1 or stop <= start:
        kept = keep(seed, offset, bs, hs, i, np.arange(shape[3])[keys].reshape(1, 1, 1, -1), p)
    else:
        fours = np.arange(start // 4, (stop - 1) // 4 + 1).reshape(1, 1, 1, -1)
        words = np.stack(_words(seed, offset, bs, hs, i, fours), axis=-1)
        words = words.reshape(*words.shape[:3], 4 * fours.size)[..., start % 4 :][..., : stop - start]
        kept = words < _threshold(p)
    return np.asarray(kept[0, 0] if b is not None and h is not None else kept)


def fraction_bound(kept: int, n: int, p: float, margin: float = 2.0**-32) -> float:
    """An upper bound of the probability that a fraction is as far off as kept / n, in either direction.

    If each of n weights is kept with probability q on its own, some q within `margin` of 1 - p:
    2 exp(-n KL(kept / n || q)), q the nearest (Chernoff 1952, for either tail), and at most 1.  With
    p = 0 or 1 there is nothing to chance: 1 or 0.
    """
    p = _checked_p(p)
    _check_int("n", n, None)
    _check_int("kept", kept, n + 1)
    if isinstance(margin, bool) or not 0 <= margin <= 1:
        raise ValueError(f"margin={margin!r} must be in [0, 1]")
    if n == 0:
        return 1.0
    if p in (0, 1):
        return float(kept == (n if p == 0 else 0))
    fraction, kept_p = kept / n, 1 - p
    q = min(max(fraction, kept_p - margin), kept_p + margin)
    # the dropped share by p itself: 1 - q would lose what p has below 2**-53
    dropped = p if q == kept_p else min(max(1 - fraction, p - margin), p + margin)
    if q == fraction:
        return 1.0
    divergence = _relative(kept, n, q) + _relative(n - kept, n, dropped)
    return min(1.0, 2 * math.exp(-max(divergence, 0.0)))


def fraction_is_plausible(
    kept: Any, p: float, visible: Any = True, alpha: float = 1e-9, margin: float = 2.0**-32
) -> bool:
    """Whether a keep mask (booleans) keeps as many of its `visible` weights as chance allows.

    False alarms have a probability of at most `alpha`.  A generator of fewer bits needs a margin: one
    of 8 bits, as in FlashAttention, 1 / 256.
    """
    kept, visible = np.asarray(kept), np.asarray(visible)
    for name, mask in (("kept", kept), ("visible", visible)):
        if mask.dtype != np.bool_:
            raise TypeError(f"{name}.dtype={mask.dtype} must be bool; compare weights with 0 first")
    if isinstance(alpha, bool) or not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha!r} must be in (0, 1)")
    try:
        visible = np.broadcast_to(visible, kept.shape)
    except ValueError:
        raise ValueError(f"visible.shape={visible.shape} must broadcast to kept.shape={kept.shape}") from None
    return fraction_bound(int(np.count_nonzero(kept & visible)), int(np.count_nonzero(visible)), p, margin) >= alpha


def _words(seed: int, offset: int, b: Any, h: Any, i: Any, four: Any) -> tuple[Array, ...]:
    _check_int("seed", seed, 2**64)
    _check_int("offset", offset, 2**32)
    b, h, i = (_indices(x, name, _LIMITS[name]) for name, x in (("b", b), ("h", h), ("i", i)))
    return philox4x32((four, i, b << np.uint64(12) | h, offset), (int(seed) % 2**32, int(seed) >> 32))


def _threshold(p: float) -> np.uint64:
    """The smallest integer >= (1 - p) 2**32: words below it are those below (1 - p) 2**32."""
    return np.uint64(math.ceil((1 - Fraction(_checked_p(p))) * 2**32))


def _relative(count: int, n: int, q: float) -> float:
    """count log(count / (n q)), 0 for a count of 0."""
    if count == 0:
        return 0.0
    return count * math.log(count / n / q) if q > 0 else math.inf


def _checked_p(p: float) -> float:
    if isinstance(p, (bool, np.bool_)) or not isinstance(p, (int, float, np.floating)) or not 0 <= p <= 1:
        raise ValueError(f"p={p!r} must be a probability from 0 to 1; pass None for no dropout where that is offered")
    return float(p)


def _indices(x: Any, name: str, limit: int) -> Array:
    x = np.asarray(x)
    if x.dtype.kind not in "iu":
        raise TypeError(f"{name}.dtype={x.dtype} must be an integer dtype")
    if x.size and not (0 <= int(x.min()) and int(x.max()) < limit):
        worst = int(x.min()) if int(x.min()) < 0 else int(x.max())
        raise ValueError(f"{name}={worst} must be from 0 to 2**{limit.bit_length() - 1} - 1")
    return x.astype(np.uint64)


def _check_int(name: str, value: Any, limit: int | None) -> None:
    good = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 0
    if not good or (limit is not None and value >= limit):
        raise ValueError(f"{name}={value!r} must be an int >= 0" + ("" if limit is None else f" and < {limit}"))
