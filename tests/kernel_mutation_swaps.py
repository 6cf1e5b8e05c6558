"""What stands for what in a mutant: operators, and functions by name."""

from __future__ import annotations

import ast

COMPARISONS = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<",), ast.Gt: (">=", "<="), ast.GtE: (">",), ast.Eq: ("!=",), ast.NotEq: ("==",),
    ast.Is: ("is not",), ast.IsNot: ("is",), ast.In: ("not in",), ast.NotIn: ("in",),
}  # fmt: skip
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "%", ast.Mod: "//", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
FUNCTIONS = {
    "max": "min", "min": "max", "maximum": "minimum", "sum": "max", "any": "all", "all": "any", "exp": "exp2",
    "exp2": "exp", "log": "log2", "log2": "log", "isneginf": "isposinf", "isfinite": "isnan", "zeros": "ones",
    "zeros_like": "ones_like", "ones_like": "zeros_like", "tanh": "sinh", "cosh": "cos", "abs": "square",
    "copysign": "maximum", "reverse": "sort", "product": "zip", "permutation": "arange",
}  # fmt: skip
FOR_TYPES = {"asarray", "ascontiguousarray", "isinstance", "len", "range", "dict", "partial", "errstate"}
