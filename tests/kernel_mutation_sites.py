"""Every place of the honest kernel where one thing can be wrong, and the source with that thing wrong.

A `Site` replaces a span of a file.  Kinds: constant (off by one, doubled, a truth value turned), comparison,
arithmetic (another operator), operand (one of two dropped), logic (and for or, a part dropped), sign (-, not
or ~ dropped), function (max for min, ...), call (dropped: its first argument instead), arguments (two swapped),
keyword (dropped), rounding (dropped, or to another dtype), index (axes swapped, off by one, the whole instead of a
tile), slice (a bound off by one or dropped), condition (always, never), statement (dropped), accumulation
(+= for -= or =), loop (without the first, the last), order (of what is returned).

Left out: refusals (what only decides whether an error is raised), annotations, docstrings, and calls that
are there for the type checker.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import refattn
from tests.kernel_mutation_swaps import COMPARISONS, FOR_TYPES, FUNCTIONS, OPERATORS

PACKAGE = Path(refattn.__file__).parent
FILES = {
    "online": PACKAGE / "online.py",
    **{name: PACKAGE / "streaming" / f"{name}.py" for name in ("rules", "forward", "backward", "matrices", "prepare")},
}


class Site(NamedTuple):
    """What stands at [start, end) of the file's bytes, and what would stand there instead."""

    kind: str
    file: str
    function: str
    line: int
    start: int
    end: int
    new: str
    name: str

    @property
    def source(self) -> str:
        text = FILES[self.file].read_bytes()
        return (text[: self.start] + self.new.encode() + text[self.end :]).decode()


def sites(file: str) -> list[Site]:
    """All of one file, by position; the name does not depend on the line."""
    return _Finder(file).found


def every() -> list[Site]:
    return [site for file in FILES for site in sites(file)]


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self.file, self.function = file, ""
        self.found: list[Site] = []
        self.text = FILES[file].read_bytes()
        self.lines = [0]
        for line in self.text.split(b"\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)
        self.names: Counter[str] = Counter()
        self.visit(ast.parse(self.text))

    def span(self, node: ast.AST) -> tuple[int, int]:
        first, last = self.lines[node.lineno - 1], self.lines[node.end_lineno - 1]  # type: ignore[attr-defined]
        return first + node.col_offset, last + node.end_col_offset  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end].decode()

    def add(self, kind: str, node: ast.AST, new: str) -> None:
        start, end = self.span(node)
        old = " ".join(self.of(node).split())
        name = f"{self.file}.{self.function}: {kind}: {old} -> {' '.join(new.split())}"
        self.names[name] += 1
        if self.names[name] > 1:
            name += f" #{self.names[name]}"
        self.found.append(Site(kind, self.file, self.function, node.lineno, start, end, new, name))  # type: ignore[attr-defined]

    # what is left out

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "__post_init__" or self.file == "rules" and node.name == "__init__":
            return
        outer, self.function = self.function, f"{self.function}.{node.name}".lstrip(".")
        self.assigned = {a.arg for a in node.args.args}
        for default in node.args.defaults:
            self.visit(default)
        self.body(node.body)
        self.function = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.function = self.function, node.name
        self.body(node.body)
        self.function = outer

    def visit_Module(self, node: ast.Module) -> None:
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self.visit(statement)

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    # statements

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.body[0], ast.Raise):
            return
        self.condition(node.test)
        self.visit(node.test)
        self.body(node.body)
        self.body(node.orelse)

    def condition(self, test: ast.expr) -> None:
        for always in ("True", "False"):
            self.add("condition", test, always)

    def visit_Expr(self, node: ast.Expr) -> None:
        self.add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        places = all(isinstance(target, (ast.Subscript, ast.Attribute)) for target in node.targets)
        if self.function.rsplit(".")[-1] != "__init__" and (places or names <= self.assigned):
            self.add("statement", node, "pass")
        self.generic_visit(node)
        self.assigned |= names

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("statement", node, "pass")
        target, value = self.of(node.target), self.of(node.value)
        self.add("accumulation", node, f"{target} = {value}")
        other = OPERATORS.get(type(node.op))
        if other:
            self.add("accumulation", node, f"{target} {other}= {value}")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.loop(node.iter)
        self.visit(node.iter)
        self.body(node.body)

    def loop(self, over: ast.expr) -> None:
        for cut in ("[1:]", "[:-1]", "[::-1]"):
            self.add("loop", over, f"list({self.of(over)}){cut}")

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.loop(node.iter)
        for test in node.ifs:
            self.condition(test)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            a, b = map(self.of, node.value.elts)
            self.add("order", node.value, f"{b}, {a}")
        self.generic_visit(node)

    # expressions

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self.add("constant", node, f"({node.value + 1})")
            self.add("constant", node, f"({node.value - 1})")
        elif isinstance(node.value, float):
            self.add("constant", node, f"({node.value * 2 if node.value else 1.0})")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = -node.operand.value  # type: ignore[operator]
            for other in (value - 1, value + 1):
                self.add("constant", node, f"({other})")
            return
        self.add("sign", node, f"({self.of(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            for other in COMPARISONS[type(node.ops[0])]:
                self.add("comparison", node, f"({self.of(node.left)} {other} {self.of(node.comparators[0])})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        a, b = self.of(node.left), self.of(node.right)
        if type(node.op) in OPERATORS:
            self.add("arithmetic", node, f"(({a}) {OPERATORS[type(node.op)]} ({b}))")
        self.add("operand", node, f"({a})")
        self.add("operand", node, f"({b})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        parts = list(map(self.of, node.values))
        other = " or " if isinstance(node.op, ast.And) else " and "
        self.add("logic", node, f"({other.join(parts)})")
        for n in range(len(parts)):
            self.add("logic", node, f"({(' and ' if other == ' or ' else ' or ').join(parts[:n] + parts[n + 1 :])})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add("condition", node, f"({self.of(node.body)})")
        self.add("condition", node, f"({self.of(node.orelse)})")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == "T":
            self.add("index", node, self.of(node.value))
        if node.attr in ("inf", "e"):
            self.add("constant", node, {"inf": "0.0", "e": "3.0"}[node.attr])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        method = isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            method = node.func.value.id not in ("np", "rules", "self", "online", "head", "memory")
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if name == "errstate":
            return
        if name in FUNCTIONS:
            whole, called = self.of(node), len(self.of(node.func))
            self.add("function", node, whole[: called - len(name)] + FUNCTIONS[name] + whole[called:])
        if name in ("round", "round_to", "astype", "store"):
            self.rounding(node, name)
        elif name not in FOR_TYPES and not name[:1].isupper():
            if method and isinstance(node.func, ast.Attribute):
                self.add("call", node, f"({self.of(node.func.value)})")
            elif plain:
                self.add("call", node, f"({self.of(plain[0])})")
        if len(plain) >= 2 and len(plain) == len(node.args) and name not in ("isinstance", "full", "zeros", "ones"):
            a, b = self.span(plain[0]), self.span(plain[1])
            first, last = self.span(node)
            text = [self.text[i:j].decode() for i, j in ((first, a[0]), a, (a[1], b[0]), b, (b[1], last))]
            self.add("arguments", node, text[0] + text[3] + text[2] + text[1] + text[4])
        for keyword in node.keywords:
            if keyword.arg and not name[:1].isupper():
                rest = [self.of(a) for a in node.args] + [self.of(k) for k in node.keywords if k is not keyword]
                self.add("keyword", node, f"{self.of(node.func)}({', '.join(rest)})")
        self.generic_visit(node)

    def rounding(self, node: ast.Call, name: str) -> None:
        if name == "astype" and isinstance(node.func, ast.Attribute):
            value = self.of(node.func.value)
            self.add("rounding", node, f"({value})")
            self.add("rounding", node, f"{value}.astype(np.float16)")
        elif node.args:
            self.add("rounding", node, f"({self.of(node.args[0])})")
            for dtype in ("float16", "bfloat16"):
                self.add("rounding", node, f'{self.of(node.func)}({self.of(node.args[0])}, "{dtype}")')

    def visit_Subscript(self, node: ast.Subscript) -> None:
        start = self.of(node.value)
        index = node.slice
        if isinstance(index, ast.Tuple) and len(index.elts) >= 2:
            first, second, *rest = map(self.of, index.elts)
            self.add("index", node, f"{start}[{', '.join([second, first, *rest])}]")
            for n, part in enumerate(index.elts):
                self.place(node, start, [self.of(e) for e in index.elts], n, part)
        else:
            self.place(node, start, [self.of(index)], 0, index)
        self.visit(node.value)
        if isinstance(index, ast.Tuple):
            for part in index.elts:
                self.visit(part)
        else:
            self.visit(index)

    def place(self, node: ast.Subscript, start: str, parts: list[str], n: int, part: ast.expr) -> None:
        def changed(new: str) -> None:
            self.add("index", node, f"{start}[{', '.join([*parts[:n], new, *parts[n + 1 :]])}]")

        if isinstance(part, ast.Name) and part.id in ("rows", "keys"):
            changed(":")
        elif isinstance(part, ast.Name) and part.id in ("b", "h", "n", "own"):
            changed(f"{part.id} - 1")
            changed("0")

    def visit_Slice(self, node: ast.Slice) -> None:
        lower, upper = ("" if x is None else self.of(x) for x in (node.lower, node.upper))
        step = "" if node.step is None else f":{self.of(node.step)}"
        for bound, other in ((lower, False), (upper, True)):
            if bound:
                for new in (f"{bound} + 1", f"{bound} - 1", ""):
                    self.add("slice", node, f"{lower}:{new}{step}" if other else f"{new}:{upper}{step}")
        self.generic_visit(node)
