"""Hypotheses on the weights that the backward computes again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...mutants import rewritten
from ..hypothesis import kind
from ..model import LN2, Array, Model, safe
from .gradients import ALL

__all__: list[str] = []

Again = Callable[[Any], Array]


def _weights(x: Any, t: Array, lse: Array) -> Array:
    return np.where(x.seen, np.exp(t - safe(lse)[..., None]), 0)


def _lse(x: Any) -> Array:
    return np.asarray(x.log(x.m, x.l))


AGAIN: dict[str, Again] = {
    "not divided by the row sum": lambda x: _weights(x, x.t, x.m),
    "without the mask": lambda x: np.exp(x.logits(x.s) - safe(_lse(x))[..., None]) * x.exists(),
    "without the bias": lambda x: _weights(x, x.without_bias(), _lse(x)),
    "without softcap": lambda x: _weights(x, x.without_softcap(), _lse(x)),
    "without the modifier": lambda x: _weights(x, x.without_modifier(), _lse(x)),
    "without the scale": lambda x: _weights(x, x.hide(x.logits(x.qk)), _lse(x)),
    "with the scale twice": lambda x: _weights(x, x.hide(x.logits(x.qk * x.factor() ** 2)), _lse(x)),
    "by powers of 2 of natural logits": lambda x: _weights(x, x.t * LN2, _lse(x) * LN2),
    "from an lse of base 2": lambda x: _weights(x, x.t, _lse(x) / LN2),
    "by powers of 2, of logits in base 2 and a natural lse": lambda x: _weights(x, x.t, _lse(x) * LN2),
    "from lse without the maximum": lambda x: _weights(x, x.t, np.where(x.l == 0, 0, np.log(x.l))),
    "from an lse to which the maximum is added once more": lambda x: _weights(x, x.t, _lse(x) + safe(x.m)),
    "from the row sum, taken for lse": lambda x: _weights(x, x.t, x.l),
    "from maximum plus row sum, without the logarithm": lambda x: _weights(x, x.t, safe(x.m) + x.l),
    "from maximum less the logarithm of the row sum": lambda x: _weights(x, x.t, 2 * safe(x.m) - _lse(x)),
    "from an lse whose logarithm of the row sum is of base 2": lambda x: _weights(
        x, x.t, safe(x.m) + np.log2(np.where(x.l == 0, 1, x.l))),
    "from lse without the sink": lambda x: _weights(x, x.t, x.without_sink()),
    "divided by 1 - exp(sink - lse)": lambda x: x.again_of_model() / (1 - x.sinks_share())[..., None],
    "divided by the sink's share": lambda x: x.again_of_model() * x.sinks_share()[..., None],
    "from the lse of the next row": lambda x: _weights(x, x.t, np.roll(_lse(x), -1, 2)),
    "from the lse of the row before": lambda x: _weights(x, x.t, np.roll(_lse(x), 1, 2)),
    "from the lse of the next head": lambda x: _weights(x, x.t, np.roll(_lse(x), -1, 1)),
    "from the lse of the head before": lambda x: _weights(x, x.t, np.roll(_lse(x), 1, 1)),
    "from the lse of head 0": lambda x: _weights(x, x.t, np.repeat(_lse(x)[:, :1], x.l.shape[1], 1)),
    "from the lse of entry 0": lambda x: _weights(x, x.t, np.repeat(_lse(x)[:1], len(x.l), 0)),
    "from the lse of the first head of the group": lambda x: _weights(
        x, x.t, _lse(x)[:, np.arange(x.given.H) // x.size() * x.size()]),
    "from the lse of the key head's index": lambda x: _weights(x, x.t, _lse(x)[:, x.heads()]),
    "from the lse of the last row": lambda x: _weights(x, x.t, np.repeat(_lse(x)[:, :, -1:], x.l.shape[2], 2)),
    "from the lse of the first row": lambda x: _weights(x, x.t, np.repeat(_lse(x)[:, :, :1], x.l.shape[2], 2)),
    "from the lse of heads and queries exchanged in memory": lambda x: _weights(
        x, x.t, np.ascontiguousarray(_lse(x).swapaxes(1, 2)).reshape(x.l.shape)),
    "from the lse of entries and heads exchanged in memory": lambda x: _weights(
        x, x.t, np.ascontiguousarray(_lse(x).swapaxes(0, 1)).reshape(x.l.shape)),
    "from an lse multiplied by the scale": lambda x: _weights(x, x.t, _lse(x) * x.factor()),
    "from the negative of lse": lambda x: _weights(x, x.t, -_lse(x)),
    "as logits less lse, without exp": lambda x: np.where(x.seen, x.t - safe(_lse(x))[..., None], 0),
    "by the maximum of the row, without lse, and not divided": lambda x: _weights(
        x, x.t, x.t.max(-1, initial=-np.inf)),
    "as 1 in rows that see nothing": lambda x: np.where(
        x.seen.any(-1, keepdims=True), x.again_of_model(), x.there()),
    "as NaN in rows that see nothing": lambda x: np.where(
        x.seen.any(-1, keepdims=True), x.again_of_model(), x.there() * np.nan),
    "as exp of the logits in rows that see nothing": lambda x: np.where(
        x.seen.any(-1, keepdims=True), x.again_of_model(), np.exp(x.logits(x.s)) * x.there()),
    "as equal for all keys in rows that see nothing": lambda x: np.where(
        x.seen.any(-1, keepdims=True), x.again_of_model(), x.there() / max(x.given.Lk, 1)),
    "with the mask aligned at the top left": lambda x: x.aligned("top_left"),
    "with the mask aligned at the bottom right": lambda x: x.aligned("bottom_right"),
    "with the mask transposed": lambda x: x.transposed(),
}  # fmt: skip


class FromForward(Model):
    """Weights that the backward computes from what the forward left."""

    def size(self) -> int:
        return self.given.group

    def exists(self) -> Array:
        self.seen = np.array(dataclasses.replace(self.case.visibility, mask=None).tile())
        return self.seen

    def there(self) -> Array:
        """1 for keys that exist, in rows that see nothing, which count from then on."""
        real = np.array(dataclasses.replace(self.case.visibility, mask=None).tile())
        self.seen = self.seen | (real & ~self.seen.any(-1, keepdims=True))
        return np.where(real, 1.0, 0.0)

    def without_bias(self) -> Array:
        bias = self.x.get("bias", np.zeros(()))
        return self.t - np.where(np.isneginf(bias), 0, bias)

    def _without(self, **nothing: Any) -> Array:
        true, before = self.case, self.before
        self.case = dataclasses.replace(true, want=true.want - {"dsoftcap"}, **nothing)
        t = np.where(self.seen, self.logits(self.s), -np.inf)
        self.case, self.before = true, before
        return t

    def without_softcap(self) -> Array:
        return self._without(softcap=None)

    def without_modifier(self) -> Array:
        return self._without(score_mod=None)

    def without_sink(self) -> Array:
        m = self.t.max(-1, initial=-np.inf)
        return np.asarray(m + np.log(np.exp(self.t - safe(m)[..., None]).sum(-1)))

    def again_of_model(self) -> Array:
        return Model.again(self)

    def sinks_share(self) -> Array:
        sink = self.sink(self.x["sinks"]) if "sinks" in self.x else None
        return 0 * self.m if sink is None else np.exp(sink - safe(_lse(self)))

    def _seeing(self, seen: Array) -> Array:
        t = self.logits(self.s)
        self.seen = seen
        return _weights(self, np.where(seen, t, -np.inf), _lse(self))

    def aligned(self, to: str) -> Array:
        def change(m: Any) -> Any:
            return dataclasses.replace(m, align=to) if hasattr(m, "align") else m

        mask = rewritten(self.case.mask, change)
        return self._seeing(np.array(dataclasses.replace(self.case.visibility, mask=mask).tile()))

    def transposed(self) -> Array:
        n, k = self.seen.shape[2:]
        turned = np.zeros_like(self.seen)
        turned[..., : min(n, k), : min(n, k)] = self.seen[..., : min(n, k), : min(n, k)].swapaxes(2, 3)
        return self._seeing(turned)


@kind(lambda case: case.backward, ALL, how=AGAIN)
class weights_again(FromForward):
    """The backward computes the weights {how}."""

    how: Again

    def again(self) -> Array:
        return self.how(self)


@kind(
    lambda case: case.backward and case.sinks is not None, ALL,
    also={"the weight of the sink too": "s", "delta too, the sum of weights and their gradients": "d",
          "the weight of the sink and delta too": "sd"},
)  # fmt: skip
class sink_left_out_in_backward(FromForward):
    """The backward computes the weights from the sum of the keys alone, without the sink; {also}."""

    also = "s"

    def again(self) -> Array:
        return _weights(self, self.t, self.without_sink())

    def delta(self) -> Array:
        if "d" not in self.also:
            return super().delta()
        dp = self.dropped(self.dp_of(self.x["dout"]))
        return np.asarray(np.where(self.seen, self.again() * dp, 0).sum(-1))

    def dsinks(self, share: Array, incoming: Array) -> Array:
        bare = self.without_sink()
        own = np.where(np.isneginf(bare), share, np.exp(self.x["sinks"][:, None] - safe(bare)))
        return super().dsinks(own if "s" in self.also else share, incoming)
