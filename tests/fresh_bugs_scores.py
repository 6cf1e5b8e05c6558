"""Bugs of the fresh kernel: which keys a row sees, and the scores.  See `tests.fresh_bugs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.case import Case
from tests.fresh_bugs_loads import bug
from tests.fresh_forward import LOG2E
from tests.fresh_kernel import Kernel
from tests.fresh_loads import Array, Space

# masks


@bug("Bottom-right alignment is ignored: query i stands at key i.")
class offset_lost(Kernel):
    def diagonal(self, a: Space, b: int, i: Array) -> Array:
        return i


@bug("Top-left alignment is ignored: the last query always stands at the last key.")
class always_bottom_right(Kernel):
    def diagonal(self, a: Space, b: int, i: Array) -> Array:
        return i + (a.k_lens[b] - a.q_lens[b])


@bug("Bottom-right alignment is computed from the padded sizes, not from the lengths of the batch entry.")
class offset_of_padded_sizes(Kernel):
    def diagonal(self, a: Space, b: int, i: Array) -> Array:
        return i + (a.case.Lk - a.case.Lq) if a.align == "bottom_right" else i


@bug("The causal comparison is < where it should be <=: a query does not see its own key.")
class causal_strict(Kernel):
    def in_band(self, a: Space, t: Space, j: Array) -> Array:
        own = self.diagonal(a, t.b, t.i[:, None])
        return super().in_band(a, t, j) & ((j != own) if (a.left, a.right) == (None, 0) else True)


@bug("The causal mask compares keys with the packed row, G i + g in a group of G heads, not with its query i.")
class mask_of_packed_row(Kernel):
    def in_band(self, a: Space, t: Space, j: Array) -> Array:
        r = Space(**{**vars(t), "i": t.i * a.G + t.h % max(a.G, 1)})
        return super().in_band(a, r, j)


@bug("The window's left edge is exclusive: one key too few.")
class window_left_short(Kernel):
    def in_band(self, a: Space, t: Space, j: Array) -> Array:
        seen = super().in_band(a, t, j)
        return seen if a.left is None else seen & (j > self.diagonal(a, t.b, t.i[:, None]) - a.left)


@bug("The window reaches one key too far to the right.")
class window_right_long(Kernel):
    def arguments(self, case: Case, given: Any) -> Space:
        a = super().arguments(case, given)
        a.right = a.right + 1 if a.left is not None and a.right is not None else a.right
        return a


@bug("A window of 0 keys to the left is taken for no window.")
class window_zero_is_none(Kernel):
    def arguments(self, case: Case, given: Any) -> Space:
        a = super().arguments(case, given)
        a.left = a.left or None
        return a


@bug("Where the window has a left edge its right edge is ignored: it sees the future.")
class window_right_ignored(Kernel):
    def arguments(self, case: Case, given: Any) -> Space:
        a = super().arguments(case, given)
        a.right = a.right if a.left is None else None
        return a


@bug("The first block of a window is rounded up: the block that holds its left edge is skipped.")
class first_block_rounded_up(Kernel):
    def first_block(self, a: Space, t: Space) -> int:
        if a.left is None:
            return 0
        return -(-int(max(0, self.diagonal(a, t.b, t.i[0]) - a.left)) // self.BN)


@bug("The last block under the causal mask is that of the first row of the tile: later rows lose their last keys.")
class last_block_of_first_row(Kernel):
    def last_block(self, a: Space, t: Space) -> int:
        return super().last_block(a, Space(**{**vars(t), "i": t.i[:1]}))


@bug("The last block is rounded down: keys of a block that is not full are never read.")
class last_block_rounded_down(Kernel):
    def last_block(self, a: Space, t: Space) -> int:
        end = int(a.k_lens[t.b])
        if a.right is not None:
            end = max(0, min(end, int(self.diagonal(a, t.b, t.i[-1])) + a.right + 1))
        return end // self.BN


@bug("Only the block at the end of a tile's range is masked causally; a tile of 64 rows crosses several.")
class only_one_block_masked(Kernel):
    def in_band(self, a: Space, t: Space, j: Array) -> Array:
        last = j[0] // self.BN == self.last_block(a, t) - 1
        return super().in_band(a, t, j) if last or a.left is not None else np.ones((self.BM, self.BN), bool)


@bug("The boolean mask is read the wrong way round: True hides.")
class mask_inverted(Kernel):
    def in_custom(self, a: Space, t: Space, j: Array) -> Array:
        return ~super().in_custom(a, t, j)


@bug("The mask tensor of head 0 is used for all heads.")
class mask_of_head_zero(Kernel):
    def in_custom(self, a: Space, t: Space, j: Array) -> Array:
        return super().in_custom(a, Space(**{**vars(t), "h": t.h * 0}), j)


@bug("The mask tensor of batch entry 0 is used for all.")
class mask_of_batch_zero(Kernel):
    def in_custom(self, a: Space, t: Space, j: Array) -> Array:
        return super().in_custom(a, Space(**{**vars(t), "b": 0}), j)


@bug("The rows of the mask tensor are found with the number of queries as their length, not that of keys.")
class mask_row_stride(Kernel):
    def in_custom(self, a: Space, t: Space, j: Array) -> Array:
        flat = a.custom[t.b].reshape(a.case.H, -1)
        at = t.i[:, None] * a.case.Lq + np.minimum(j, a.case.Lk - 1)
        return flat[t.h[:, None], np.minimum(at, flat.shape[1] - 1)]


@bug("The window is not applied where keys are split, for few queries.")
class window_lost_in_decode(Kernel):
    def arguments(self, case: Case, given: Any) -> Space:
        a = super().arguments(case, given)
        a.left = None if case.Lq * a.G <= self.BM else a.left
        return a


@bug("A block of keys is skipped where the first row of the tile sees none of it.")
class block_skipped_by_first_row(Kernel):
    def attend(self, a: Space, t: Space, blocks: list[int]) -> Space:
        return super().attend(a, t, [n for n in blocks if self.seen(a, t, n)[0].any()])


# scores


@bug("The default scale is that of the size of a value.")
class scale_of_dv(Kernel):
    def scale(self, case: Case) -> float:
        return max(case.Dv, 1) ** -0.5 if case.scale is None else case.scale


@bug("A scale of 0 is taken for the default.")
class scale_zero_is_default(Kernel):
    def scale(self, case: Case) -> float:
        return case.scale or max(case.D, 1) ** -0.5


@bug("A scale that is passed is ignored.")
class scale_ignored(Kernel):
    def scale(self, case: Case) -> float:
        return float(max(case.D, 1) ** -0.5)


@bug("The softcap is not forwarded to the kernel.")
class softcap_dropped(Kernel):
    def arguments(self, case: Case, given: Any) -> Space:
        a = super().arguments(case, given)
        a.softcap = None
        return a


@bug("The softcap caps the unscaled product; the scale comes after it.")
class softcap_before_scale(Kernel):
    def scores(self, a: Space, t: Space, k: Array, n: int) -> Array:
        if a.softcap is None:
            return super().scores(a, t, k, n)
        s = self.capped(a, self.products(a, t.q, k)) * a.scale
        s = s + self.bias(a, t, n) if "bias" in a.given else s
        return np.where(self.seen(a, t, n), s, -np.inf).astype(a.acc)


@bug("The softcap comes after the mask, so that a hidden key has the score -softcap.")
class softcap_after_mask(Kernel):
    def hidden(self, a: Space) -> float:
        return -np.inf if a.softcap is None else -a.softcap


@bug("The softcap is applied to the score with its bias.")
class softcap_after_bias(Kernel):
    def scores(self, a: Space, t: Space, k: Array, n: int) -> Array:
        s = self.products(a, t.q, k) * a.scale
        s = self.capped(a, s + self.bias(a, t, n) if "bias" in a.given else s)
        return np.where(self.seen(a, t, n), s, -np.inf).astype(a.acc)


@bug("The bias is added before the scale, and scaled with the product.")
class bias_scaled(Kernel):
    def bias(self, a: Space, t: Space, n: int) -> Array:
        return super().bias(a, t, n) * a.scale


@bug("The bias of head 0 is added to all heads.")
class bias_of_head_zero(Kernel):
    def bias(self, a: Space, t: Space, n: int) -> Array:
        return super().bias(a, Space(**{**vars(t), "h": t.h * 0}), n)


@bug("The bias is in natural units where the scores are already in base 2.")
class bias_without_log2e(Kernel):
    def bias(self, a: Space, t: Space, n: int) -> Array:
        return super().bias(a, t, n) / a.acc(LOG2E)


@bug("The slopes of ALiBi are 2**(-8 h / H) for any number of heads.")
class slopes_of_any_count(Kernel):
    def slopes(self, H: int) -> Array:
        return 2.0 ** (-8 * np.arange(1, H + 1) / H)


@bug("ALiBi's distance is i - j: the difference of the lengths is forgotten.")
class alibi_top_left(Kernel):
    def distance(self, a: Space, t: Space, j: Array) -> Array:
        return abs(t.i[:, None] - j)


@bug("The rows of the bias are counted from the start of the tile, not of the sequence.")
class bias_rows_of_tile(Kernel):
    def bias(self, a: Space, t: Space, n: int) -> Array:
        return super().bias(a, Space(**{**vars(t), "i": t.i - t.i[0]}), n)


@bug("The keys of the bias are counted from the start of their block.")
class bias_keys_of_block(Kernel):
    def bias(self, a: Space, t: Space, n: int) -> Array:
        return super().bias(a, t, 0)


@bug("A score that is NaN counts as hidden: the maximum swallows it.")
class nan_swallowed(Kernel):
    def scores(self, a: Space, t: Space, k: Array, n: int) -> Array:
        s = super().scores(a, t, k, n)
        return np.where(np.isnan(s), -np.inf, s).astype(a.acc)
