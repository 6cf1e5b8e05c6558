"""What is wrong for some pairs alone: for all of them it is wrong altogether, for none nothing is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.cases import CASES
from refattn.diagnose.blocks import BLOCKS
from refattn.diagnose.dense import Inputs
from refattn.diagnose.edges import Shape
from refattn.diagnose.effects import LEFT_OUT, SEEN, TWICE, effects
from refattn.diagnose.mixed import mixed, mixes
from refattn.diagnose.model import Model
from refattn.inputs import make

SMALL = [c for c in CASES if 0 < c.scores < 2**10 and c.H and c.Lk and c.D and c.Dv][::11]
BY_KIND = tuple({e.made.__name__: e for e in effects()}.values())


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        size = np.abs(np.where(np.isfinite(b[name]), b[name], 0)).max(initial=0)
        np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-9 * size, err_msg=name)


def everywhere(inputs: Inputs) -> Any:
    return np.ones(inputs.visible.shape, bool)


def nowhere(inputs: Inputs) -> Any:
    return np.zeros(inputs.visible.shape, bool)


@pytest.mark.parametrize("effect", (LEFT_OUT, TWICE, SEEN, *BY_KIND), ids=lambda e: e.made.__name__)
def test_for_all_pairs_it_is_wrong_altogether(effect: Any) -> None:
    about = [c for c in SMALL if effect.separates(c)]
    for case in about[:3]:
        inputs = Inputs(make(case))
        want = case.want - {"dsinks", "dsoftcap"}  # of rows; and of a softcap that may be another
        answer, y = mixed([(effect.made, everywhere)])(inputs).solve(want), effect.made(inputs).solve(want)
        same({n: x for n, x in answer.items() if n in y}, y)  # who applies no bias has no dbias
        same(mixed([(effect.made, nowhere)])(inputs).solve(case.want), Model(inputs).solve(case.want))


def test_the_parts_of_two_make_a_whole() -> None:
    """What is wrong before a key, and behind it, is wrong altogether."""

    class hot(Model):
        def factor(self) -> float:
            return 1.5 * super().factor()

    for case in SMALL:
        inputs = Inputs(make(case))
        before = np.broadcast_to(np.arange(case.Lk) < 3, inputs.visible.shape)
        both = mixed([(hot, lambda _, x=before: x), (hot, lambda _, x=before: ~x)])
        want = case.want - {"dsinks"}
        same(both(inputs).solve(want), hot(inputs).solve(want))


def test_one_key_left_out_is_a_mask_without_it() -> None:
    class without(Model):
        def visible(self) -> Any:
            return super().visible() & (np.arange(self.given.Lk) != 1)

    def second(inputs: Inputs) -> Any:
        return np.broadcast_to(np.arange(inputs.case.Lk) == 1, inputs.visible.shape)

    for case in SMALL:
        inputs = Inputs(make(case))
        same(mixed([(LEFT_OUT.made, second)])(inputs).solve(case.want), without(inputs).solve(case.want))


def test_what_changes_a_row_does_not_mix() -> None:
    class divided_twice(Model):
        def divided(self, o: Any, z: Any) -> Any:
            return super().divided(super().divided(o, z), z)

    assert not mixes(divided_twice) and mixes(LEFT_OUT.made)


def test_tiles_are_what_they_are_called() -> None:
    case = Case("x", "Planted.", Lq=5, Lk=37, D=8)
    j, i = np.arange(37), np.arange(5)[:, None]
    visible = ((j >= 9 + i) & (j < 21 + i))[None, None]  # of tiles of 8 keys: 8..15 in part, 16..23, 24.. in part
    blocks = dict(BLOCKS)

    def tiles(words: str) -> list[int]:
        return sorted(set((np.flatnonzero(blocks[words](Shape(case, visible))[0, 0, 0]) // 8).tolist()))

    assert tiles("in tiles of 8 keys that are wholly visible") == []
    assert tiles("in tiles of 8 keys that hide keys ahead of what a row sees") == [0, 1]
    assert tiles("in tiles of 8 keys that hide keys behind what a row sees") == [2, 3, 4]
    assert tiles("in tiles of 8 keys that are the first that their rows see") == [1]
    assert tiles("in tiles of 8 keys that are the last that their rows see") == [2]
    assert tiles("in tiles of 8 x 8 that are the last that their rows see") == [3]
    assert tiles("in tiles of 8 keys that their rows see nothing of") == [0, 3, 4]
