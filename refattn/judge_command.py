"""The command `refattn judge FILE`: is the error in these tensors normal?

Exit code 0 if all that was judged is within bound, 1 if not, 2 if the file or the options make no problem.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .precision import Conventions, Precision, preset

if TYPE_CHECKING:
    from .judge import Output
    from .judgement import Judgement, Question

__all__ = ["CannotJudge", "add_parser", "command", "sentence"]

_CONTRACT = tuple(f for f in dataclasses.fields(Precision) if f.name not in ("inputs", "out", "source"))
_AXES = {"out": "bhid", "lse": "bhi", "dq": "bhid", "dk": "bhjd", "dv": "bhjd", "dsinks": "h"}


_FLAGS = (
    ("with ignore=", "with --ignore "), ("say which with dtype", "say which with --dtype"),
    ("leave dtype out", "leave --dtype out"), ("say so: dtype=", "say so: --dtype "), ("see layout", "see --layout"),
    ("; pass rows", "; pass --rows N"), ("leave rows out", "leave --rows out"), ("; seed=", "; --seed "),
)  # fmt: skip
"""what an argument of `judge_arrays` is called here, where an error or a note speaks of it"""


class CannotJudge(Exception):
    """The file or the options make no problem; says why, in one line."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "judge", help="judge the tensors of a file: is this error normal?",
        description="FILE.safetensors or FILE.npz with q k v, at least one of out lse dq dk dv dbias dsinks, and where "
        "there are such dout dlse bias mask sinks keep (mask: booleans, True = may attend); or a file of refattn "
        "check --dump, which needs no options.",
    )  # fmt: skip
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--layout", metavar="L", help="order of the axes of q k v out dout dq dk dv (BHLD)")
    parser.add_argument("--causal", choices=("top_left", "bottom_right"), help="the causal mask, by its alignment")
    parser.add_argument(
        "--window", type=_window, metavar="LEFT,RIGHT,ALIGN",
        help="keys before and after the diagonal, inclusive; none = no limit: 127,0,bottom_right",
    )  # fmt: skip
    for name, what in (("scale", "D**-0.5"), ("softcap", "none"), ("dropout", "none")):
        parser.add_argument(f"--{name}", type=float, metavar="X", help=f"({what})")
    for name, what in (("q", "queries"), ("k", "keys")):
        parser.add_argument(
            f"--{name}-lens", type=_lens, metavar="N,...", help=f"how many {what} exist, for each batch entry"
        )
    parser.add_argument("--dtype", metavar="D", help="what the arrays hold, if they are stored wider: bfloat16")
    parser.add_argument("--out-dtype", metavar="D", help="the same of out")
    parser.add_argument("--case", metavar="JSON", help="a case as JSON, or a file of it, for what no option says")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help="leave out this array, or glob")
    parser.add_argument("--conventions", action="append", default=[], metavar="NAME=VALUE", help="empty_rows=nan, ...")
    parser.add_argument("--rows", type=int, metavar="N", help="judge N rows drawn at random, and those at boundaries")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the rows (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the judgement as JSON")
    contract = parser.add_argument_group("contract")
    contract.add_argument("--contract", choices=("preset", "eager"), default="preset", help="(preset)")
    for f in _CONTRACT:
        option = f"--{f.name.replace('_', '-')}"
        if isinstance(f.default, bool):
            contract.add_argument(option, action="store_true", default=None, help=argparse.SUPPRESS)
            continue
        kind: Any = type(f.default) if isinstance(f.default, (int, float)) else str
        contract.add_argument(option, type=kind, metavar="X", default=None, help=argparse.SUPPRESS)
    known = " ".join(f"--{f.name.replace('_', '-')}" for f in _CONTRACT)
    contract.description = f"what the arithmetic promised; fields of refattn.precision.Precision: {known}"
    return parser


def _window(text: str) -> tuple[int | None, int | None, str]:
    try:
        left, right, align = text.split(",")
        sides = [None if side == "none" else int(side) for side in (left, right)]
        if any(side is not None and side < 0 for side in sides):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} must be LEFT,RIGHT,ALIGN with ints >= 0 or none: 127,0,bottom_right"
        ) from None
    return sides[0], sides[1], align


def _lens(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} must be ints with commas, one for each batch entry") from None


def command(arguments: argparse.Namespace) -> int:
    """Judge, print, write; raises `CannotJudge`."""
    from .judgement import Unjudgeable

    try:
        asked = _question(arguments)
    except (ValueError, TypeError) as error:
        raise CannotJudge(_in_flags(str(error))) from None
    if asked.takes_long:
        print("refattn: this may take minutes; --rows 64 judges a sample of the rows", file=sys.stderr, flush=True)
    try:
        found = asked.judged()
    except Unjudgeable as error:
        raise CannotJudge(_in_flags(str(error))) from None
    for line in _text(arguments.file, asked, found):
        print(line)
    if arguments.json is not None:
        try:
            arguments.json.write_text(json.dumps(_as_json(arguments.file, asked, found), indent=1) + "\n")
        except OSError as error:
            raise CannotJudge(f"--json: {error}") from None
    return 0 if found.status in ("passed", "acceptable") else 1


def _in_flags(text: str) -> str:
    for argument, flag in _FLAGS:
        text = text.replace(argument, flag)
    return text


def _question(arguments: argparse.Namespace) -> Question:
    from .judge_file import question_of_file

    names = ("layout", "causal", "window", "scale", "softcap", "dropout", "q_lens", "k_lens", "dtype", "out_dtype")
    options = {n: getattr(arguments, n) for n in names if getattr(arguments, n) is not None}
    if arguments.case is not None:
        options["case"] = _json(arguments.case)
    given = {f.name: getattr(arguments, f.name) for f in _CONTRACT if getattr(arguments, f.name) is not None}
    options["contract"] = arguments.contract
    options["contract_fields"] = {n: None if x == "none" else x for n, x in given.items()}
    options["conventions"] = _conventions(arguments.conventions)
    return question_of_file(arguments.file, ignore=arguments.ignore, **options).sampled(arguments.rows, arguments.seed)


def _json(text: str) -> Any:
    try:
        data = json.loads(text if text.lstrip().startswith(("{", "[")) else Path(text).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CannotJudge(f"--case: {error}") from None
    if not isinstance(data, dict):
        raise CannotJudge("--case: must be one JSON object")
    return data


def _conventions(texts: list[str]) -> Conventions:
    known = {f.name: f.default for f in dataclasses.fields(Conventions)}
    declared: dict[str, Any] = {}
    for text in (part for whole in texts for part in whole.split(",")):
        name, _, value = text.partition("=")
        if name not in known:
            raise CannotJudge(f"--conventions {text}: must be NAME=VALUE, of {', '.join(known)}")
        boolean = isinstance(known[name], bool)
        declared[name] = {"true": True, "false": False}.get(value.lower(), value) if boolean else value
    return Conventions(**declared)


def sentence(o: Output) -> str:
    """What an output's largest ratio means."""
    from .report import as_ratio

    if not o.elements:
        return "has no elements"
    if o.passed:
        return f"largest error is {as_ratio(o.ratio)} of the bound: normal"
    beyond = f"{as_ratio(o.ratio)} times the bound at {_place(o)}"
    if o.got != o.got:
        return f"NaN at {_place(o)}: not rounding"
    if o.rigorous_ratio <= 1:
        return f"{beyond}, within the one that holds always: rounding does that once in a million runs"
    return f"{beyond}: not rounding"


def _place(o: Output) -> str:
    axes = _AXES.get(o.name, "bhij")
    return f"[{', '.join(f'{axis}={n}' for axis, n in zip(axes, o.index, strict=False))}]"


def _text(path: Path, asked: Question, found: Judgement) -> list[str]:
    from .report import as_fields, as_numbers, as_ratio

    case = asked.problem.case
    whole = case.Lq if found.coverage is None else found.coverage.of
    lines = [
        f"{path}: B={case.B} H={case.H} Hkv={case.Hkv} Lq={whole} Lk={case.Lk} D={case.D} Dv={case.Dv}, {case.dtype}",
        f"problem: {_described(asked)}",
        f"contract assumed: {_contract(asked)}",
    ]
    for o in found.outputs:
        lines += [f"{o.name}: {sentence(o)}"]
        if o.elements:
            got, value, lo, hi = as_numbers(o.got, o.value, o.lo, o.hi)
            lines += [
                f"    worst {_place(o)}: got {got}, should be {value} in [{lo}, {hi}]   ratio {as_ratio(o.ratio)}",
                f"    {o.failing:,} of {o.elements:,} elements out of bound; root mean square of the ratios "
                f"{as_ratio(found.rms[o.name])}",
            ]
    lines += list(found.reasons)
    lines += [f"note: {_in_flags(note.split(': precision=')[0])}{_cure(note)}" for note in found.notes]
    lines += [f"suspicious: {text}" for text in found.suspicions]
    if found.coverage is not None:
        lines.append(f"judged: {found.coverage}")
    if found.conventions:
        lines.append(f"acceptable, as declared: {as_fields(found.conventions)}")
    lines.append(("within bound" if found.status in ("passed", "acceptable") else "NOT within bound") + _share(found))
    return lines


def _share(found: Judgement) -> str:
    """What part of the rows the verdict is about, unless it is all."""
    if found.coverage is None:
        return ""
    judged, whole = len(found.coverage.rows), found.coverage.of
    return f", in the {judged:,} of {whole:,} rows that were judged ({judged / whole:.2g} of them)"


def _cure(note: str) -> str:
    if ": precision=" in note:
        return "; --contract eager"
    convention = re.match(r"undeclared convention: (\w+)='?([^',]+)", note)
    return f"; --conventions {convention[1]}={convention[2]}" if convention else ""


def _described(asked: Question) -> str:
    case = asked.problem.case
    mask = getattr(case.mask, "mask", case.mask) if asked.coverage is not None else case.mask
    features = {"mask": mask, "scale": case.scale, "softcap": case.softcap, "dropout": case.dropout}
    features |= {"k_lens": case.k_lens, "score_mod": case.score_mod, "rotary": case.rotary, "quant": case.quant}
    features |= {"bias": case.bias and asked.problem.logical["bias"].shape, "sinks": case.sinks}
    if asked.coverage is None:
        features["q_lens"] = case.q_lens
    given = {name: value for name, value in features.items() if value is not None}
    text = ", ".join(f"{name}={value}" for name, value in given.items()) or "no mask, no options, scale = D**-0.5"
    return text if len(text) <= 300 else f"{text[:297]}..."


def _contract(asked: Question) -> str:
    made, usual = asked.precision, preset(asked.problem.case.dtype, asked.problem.case.out_dtype)
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(Precision)}
    changed = {n: x for n, x in fields.items() if x != getattr(usual, n)}
    shown = changed or {n: fields[n] for n in ("accumulate", "weights", "lse")}
    text = ", ".join(f"{name}={value}" for name, value in shown.items())
    kind = "preset but for" if changed else "preset,"
    return f"{kind} {text}; inputs {made.inputs}, out {made.out}"


def _as_json(path: Path, asked: Question, found: Judgement) -> Any:
    from .report import as_finite, suite_version

    outputs = [
        dataclasses.asdict(o) | {"rms": found.rms[o.name], "unjudged": found.unjudged[o.name], "says": sentence(o)}
        for o in found.outputs
    ]
    return as_finite(
        {
            "refattn": suite_version(),
            "file": str(path),
            "status": found.status,
            "ratio": found.ratio,
            "outputs": outputs,
            "reasons": list(found.reasons),
            "notes": list(found.notes),
            "suspicions": list(found.suspicions),
            "conventions": dict(found.conventions),
            "loosened": dict(found.loosened),
            "contract": dataclasses.asdict(asked.precision),
            "rows": None if found.coverage is None else dataclasses.asdict(found.coverage),
            "problem": _described(asked),
        }
    )
