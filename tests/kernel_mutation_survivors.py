"""Why a mutant of the kernel that passes every probe does so: SURVIVORS maps each argument to what it is about.

The keys are arguments; those that begin with "hole" are none: there the suite lets something wrong through, or
has no case for it, and the text says which case would kill it.  The values are patterns (`re.search`) over names of
sites: file.function: kind: old -> new.  What another kernel may do as well is honest: another order, more digits than
the contract asks for.
"""

from __future__ import annotations

import re
from functools import cache

__all__ = ["SURVIVORS", "argument"]

SURVIVORS: dict[str, tuple[str, ...]] = {
    "commutes: the maximum of two, a sum of two states, a product of two": (
        r"^online\.(update|merge): arguments: np\.maximum\(",
        r"^online\.join_sink: arguments: merge\(state",
        r"^rules\.Rules\.merge: arguments",
        r"^forward\.tiles: arguments: min\(",
        r"^backward\.backward: arguments: rules\.(delta|through_mod|scale_dk|scale_dq|add_head)\(",
    ),
    "never used by the kernel, which has its own or other arguments (tests/test_online.py has them)": (
        r"^online\.weigh: ",
        r"^online\.empty: condition: \(rows,\)",
        r"^online\.finish: condition: sink is not None -> False",
        r"^online\.finish: (statement: state = |call: join_sink|arguments: join_sink)",
        r"^online\.update: keyword: scores\.max\(-1, initial=-np\.inf\) -> scores\.max\(-1\)$",
    ),
    "cost alone: memory used again, a tile that is wholly hidden not skipped, a quick path not taken": (
        r"^online\.shifted_exp: keyword: np\.exp\(y, out=y\)",
        r"^forward\.Head\.logits: condition: visible is not None and not visible\.any\(\) -> False",
        r"^rules\.Rules\.selected: condition: finite\.all\(\) -> False",
    ),
    "equal by broadcasting or by a later cast of NumPy's": (
        r"^online\.join_sink: call: np\.broadcast_to",
        r"^rules\.Rules\.sink: rounding: sinks\[h\]\.astype\(self\.dtype\) -> \(sinks\[h\]\)",
        r"^rules\.Rules\.matmul: rounding: (w|x)\.astype\(np\.float64\) -> \((w|x)\)$",
        r"^rules\.Rules\.dequantise: rounding: dequantise\(codes, scale, kind\)\.astype\(self\.dtype\) -> \(deq",
        r"^rules\.Rules\.exp: (rounding: x\.astype\(np\.float64\)|call: np\.float64\(log2e\))",
        r"^rules\.Rules\.exp: rounding: top\.astype\(np\.float64\) -> \(top\)$",
        r"^rules\.Rules\.store: rounding: (round_to\(x, name\)|y\.astype\(FORMATS\[name\]\.dtype\)) -> \((x|y)\)$",
        r"^rules\.Rules\.selected: call: np\.flatnonzero\((visible\[:, n\]|~finite\[n\])\)",
        r"^forward\.Head\.(_modify|slope_of_mod): call: stretched\(",
        r"^forward\._weigh_again: rounding: np\.where\(.*astype\(x\.dtype\) -> \(np",
        r"^prepare\.(prepare: rounding: made\[\"k\"\]|_lengths: keyword)",
        r"^backward\.Sums\.add_bias: (keyword: dt\.sum|constant: True -> False|call: slice\(0, 1\) -> \(0\))",
        r"^forward\._go_over_keys: (constant: 0 -> \(1\)|slice: :0 -> :0 \+ 1|constant: 0 -> \(1\) #2)$",
    ),
    "hole: no case has a row whose logits are all near the lowest number; tests/test_streaming.py has": (
        r"^rules\.Rules\.exp: (arithmetic|operand): x - shift -> .* #2$",
    ),
    "any finite number will do where exp(-inf - it) or a zero weight follows": (
        r"^online\.shift_of: function: np\.zeros_like",
        r"^online\.empty: function: np\.zeros\(",
        r"^online\.join_sink: (arguments: np\.where|function: np\.isneginf|function: np\.zeros_like\(m\))",
        r"^rules\.Rules\.undropped: constant: 0 -> ",
        r"^rules\.Rules\.selected: constant: 0 -> \(-?1\)$",
    ),
    "another honest schedule: tile sizes, the order of tiles, parts, heads or rows, a seed": (
        r"^rules\.Schedule: constant: ",
        r"^forward\.key_tiles: (condition|comparison): schedule\.order",
        r"^forward\.key_tiles: (constant: 0 -> |statement: |loop: |call: )",
        r"^forward\.key_tiles: function: every\.reverse",
        r"^forward\.(tiles|forward|_go_over_keys|_parts|_weigh_again): loop: .*\[::-1\]$",
        r"^rules\.Rules\.selected: loop: .*\[::-1\]$",
        r"^(backward\.backward|matrices\.matrices|prepare\.prepare): loop: .*\[::-1\]( #\d)?$",
    ),
    "another honest sum: a unit in the last place, either way, once for eight terms; the bound has one for each": (
        r"^rules\.toward_zero: (comparison|function|call|constant): ",
        r"^rules\.Rules\.matmul: loop: .*\[::-1\]$",
    ),
    "another honest exp: exp2, NumPy's or through float64 are all within exp_ulp": (
        r"^rules\.Rules\.exp: (condition|comparison|logic): .*schedule\.exp ==",
        r"^rules\.Rules\.exp: comparison: self\.dtype == np\.float64",
        r"^rules\.Rules\.exp: condition: x\.ndim == 1 -> True",
        r"^rules\.Rules\.exp: rounding: (fused\.astype|np\.exp\(\(x - shift\))",
        r"^rules\.Rules\.exp: rounding: \(x - shift\)\.astype\(np\.float64\) -> \(x - shift\)$",
    ),
    "more digits than the contract asks for: what is not rounded, or to a finer format, is within the bound": (
        r"^online\.finish: rounding: ",
        r"^rules\.Rules\.matmul: (condition: .* -> True|call: toward_zero)",
        r"^rules\.toward_zero: rounding: x\.astype\(dtype\) -> \(x\)$",
        r"^rules\.Rules\.dequantise: rounding: self\.round",
        r"^rules\.Rules\.(rotate|unrotate): rounding: .* -> \((x|y|cos|sin)\)$",
        r"^rules\.Rules\.products: rounding: self\.round\((q \* factor|s), .* -> \((q \* factor|s)\)$",
        r"^rules\.Rules\.products: condition: self\.precision\.scaled_q is not None -> False",
        r"^rules\.Rules\.products: rounding: self\.round\(q \* factor, self\.precision\.scaled_q\) -> .*\"float16\"\)$",
        r"^forward\._weigh_again: rounding: rules\.round\(p, rules\.precision\.weights\) -> .*\"float16\"\)$",
        r"^rules\.Rules\.logits: rounding: self\.round\(.* -> \((modify\(s\)|s \+ bias)\)$",
        r"^rules\.Rules\.weigh: rounding: self\.round\(p, self\.precision\.weights\) -> \(p\)",
        r"^rules\.Rules\.weigh: condition: rounded if .* -> \(p\)",
        r"^rules\.Rules\.round: condition: name is None or .* -> True",
        r"^rules\.Rules\.round: rounding: .* -> \((x|round_to\(x, name\))\)$",
        r"^rules\.Rules\.round: rounding: round_to\(x, name\) -> round_to\(x, \"b?float16\"\)",
        r"^rules\.Rules\.store: (condition: self\.precision\.flush_subnormal -> False|statement: y = )",
        r"^forward\._weigh_again: rounding: rules\.round\(p, rules\.precision\.weights\) -> \(p\)",
        r"^matrices\.matrices: rounding: rules\.round\(capped \+ bias, .* -> \(capped \+ bias\)$",
        r"^backward\.(backward|_add): rounding: rules\.round\(.* -> \(",
        r"^backward\.backward: statement: p, ds = ",
        r"^backward\._add: condition: .* -> \(None\)",
    ),
    "another honest way: weights divided by their sum before they are rounded; worse only where that underflows": (
        r"^forward\.forward: condition: _weigh_again\(head, rows, state\) if .* -> \(_weigh_again",
    ),
    "another honest way: exp(t - lse) is what the bound of gradients is about, in float64 too": (
        r"^forward\.forward: condition: x\.dtype == np\.float64 -> False",
    ),
    "another honest order: scale in the accumulators' dtype before or after the product": (
        r"^rules\.Rules\.products: (condition: self\.precision\.scaled_q is not None -> True|comparison)",
    ),
    "the same bits by another way of rounding; a format as wide as the accumulators rounds nothing": (
        r"^rules\.Rules\.round: (logic|comparison|condition): ",
        r"^rules\.Rules\.round: rounding: round_to\(x, name\)\.astype\(self\.dtype\) -> .*\.astype\(np\.float16\)",
    ),
    "a factor 1, or not looked at: without dropout nothing is multiplied by it": (
        r"^rules\.Rules\.undropped: constant: 1 -> \([02]\)$",
        r"^forward\.forward: condition: x\.dropout is not None -> True",
        r"^backward\.backward: condition: (x\.dtype == np\.float64|kept is not None) -> True",
        r"^backward\.backward: condition: part_v if kept is None else part_v \* undropped -> \(part_v \* undropped\)",
        r"^forward\.forward: index: done\.factor\[rows\] -> done\.factor\[:\] #2",
    ),
    "rules that hand on what they are given, in the honest kernel": (
        r"^backward\.backward: (call|statement|condition): .*rules\.(arriving|kept_again|dscale)\(",
    ),
    "what is there is overwritten, or is returned by nobody": (
        r"^forward\.forward: function: np\.zeros\(",
        r"^backward\.Sums\.__init__: condition: None if x\.sinks is None",
        r"^forward\.Head\.unhidden: call: np\.array\(s\)",
        r"^matrices\.matrices: function: np\.zeros\(",
    ),
    "what is not finite is expected to be so and no more: NaN or an infinity of either sign passes": (
        r"^rules\.Rules\.selected: (accumulation|operand|index): ",
    ),
    "a row that sees nothing: its weights and dt are set to 0 later, whatever they were": (
        r"^forward\.(forward|_weigh_again): (call: online\.shift_of|constant: )",
        r"^forward\._weigh_again: (condition: visible is not None -> False|statement: p = )",
        r"^backward\.backward: function: np\.isneginf\(done\.lse\)",
        r"^backward\.backward: constant: 0 -> \(-?1\) #[234]$",
    ),
    "hidden weights are exp(-inf) = 0 already, and a query that does not exist has no place": (
        r"^matrices\.matrices: (statement|condition): p",
        r"^prepare\._at_queries: (comparison: i < lq|constant: 0)",
    ),
    "of 0 features every score is 0, at any scale": (r"^rules\.Rules\.default_scale: constant: 1\.0",),
    "1 - tanh² and 1 / cosh² are both honest: the bound covers an error of tanh, in any dtype": (
        r"^rules\.Rules\.slope: (condition|comparison): self\.dtype == np\.float64",
    ),
    "z slope is 0 already where the slope is 0 and z finite; 0 where z is 0; and no slope is -1": (
        r"^rules\.Rules\.cap_share: (arguments: np\.where|constant: 0 -> \(-?1\)$)",
    ),
    "may be flushed, and may be not; the sign of a zero is not judged; no output is the smallest normal number": (
        r"^rules\.Rules\.store: (arguments: np\.where|comparison: .* <= |function: np\.copysign|call: np\.copysign)",
    ),
    "without quant nothing has a scale": (r"^prepare\.prepare: condition: case\.quant is not None -> True",),
    "sinks and their sums are None together": (r"^backward\.backward: logic: sums\.dsinks is not None and head\.sink",),
    "an axis of length 1: index -1 is 0, slice(0, 2) is slice(0, 1)": (
        r"^backward\.Sums\.add_bias: constant: ",
    ),
    "a case hands a bias over in 4 dimensions; fewer are for other callers (tests/test_streaming.py has such)": (
        r"^backward\.Sums\.add_bias: (call: self\.dbias\.reshape|operand: \(1,\) \*)",
    ),
    "visible scores are -inf by overflow or an infinite input alone; who masks by -inf cannot tell, so none is asked": (
        r"^forward\.forward: (statement: state\.l\[seen|function: np\.isneginf\(state\.m\))",
        r"^forward\.Head\.logits: operand: np\.isneginf\(t\.t\) & np\.isfinite\(t\.before\) -> \(np\.isneginf",
    ),
}


@cache
def argument(name: str) -> str | None:
    """Why a site may survive; None if nobody has said."""
    return next((why for why, patterns in SURVIVORS.items() if any(re.search(p, name) for p in patterns)), None)
