"""The text of nvdisasm as instructions, basic blocks and loops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = ["Block", "Instruction", "Loop", "blocks", "loops", "parse"]

_LINE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>[^;]*)")
_LABEL = re.compile(r"^(\.L\w+):")
_SECTION = re.compile(r"^\s+\.section\s+\.text\.(\S+?),")
_TARGET = re.compile(r"`\((\.L\w+)\)")


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode with its modifiers, operands as text, whether a predicate guards it."""

    opcode: str
    operands: str
    guarded: bool

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    def has(self, *modifiers: str) -> bool:
        """Whether all of `modifiers` are among those of the opcode."""
        return set(modifiers) <= set(self.opcode.split(".")[1:])


@dataclass(eq=False)
class Block:
    """Instructions that are executed one after the other, and the blocks that may follow."""

    index: int
    instructions: list[Instruction]
    next: list[Block] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Loop:
    """A natural loop: `always` are the blocks of every iteration, `sometimes` those of a branch.

    Blocks of the loops within it are not among them; they are `nested`.
    """

    head: Block
    always: tuple[Block, ...]
    sometimes: tuple[Block, ...]
    nested: tuple[Block, ...]
    depth: int

    def instructions(self, every: bool = True) -> Iterator[Instruction]:
        """Those of one iteration; with every=False those of `always` only."""
        for block in self.always + (self.sometimes if every else ()):
            yield from block.instructions


def parse(text: str) -> dict[str, list[Instruction | str]]:
    """Instructions and labels (as strings) of each function in the output of `nvdisasm -c`."""
    functions: dict[str, list[Instruction | str]] = {}
    current: list[Instruction | str] | None = None
    for line in text.splitlines():
        if section := _SECTION.match(line):
            current = functions.setdefault(section[1], [])
        elif current is not None and (label := _LABEL.match(line)):
            current.append(label[1])
        elif current is not None and (found := _LINE.match(line)):
            current.append(Instruction(found["opcode"], found["operands"].strip(), found["guard"] is not None))
    return functions


def blocks(items: Iterable[Instruction | str]) -> list[Block]:
    """The flow graph of one function; blocks that the entry cannot reach (padding) are left out."""
    found = [Block(0, [])]
    labels: dict[str, Block] = {}
    for item in items:
        last = found[-1]
        if isinstance(item, str):
            if last.instructions:
                found.append(last := Block(len(found), []))
            labels[item] = last
        else:
            last.instructions.append(item)
            if item.name in ("BRA", "EXIT", "RET", "BRX", "JMP"):
                found.append(Block(len(found), []))
    for block, after in zip(found, [*found[1:], None], strict=True):
        last_one = block.instructions[-1] if block.instructions else None
        falls = True
        if last_one is not None and last_one.name in ("BRA", "EXIT", "RET", "BRX", "JMP"):
            # A branch may be conditional by a guard, a predicate operand (BRA P1, ...) or .DIV.
            falls = last_one.guarded or "," in last_one.operands
            block.next += [labels[t] for t in _TARGET.findall(last_one.operands) if t in labels]
        if falls and after is not None and after not in block.next:
            block.next.append(after)
    reached, waiting = {0}, [found[0]]
    while waiting:
        for follower in waiting.pop().next:
            if follower.index not in reached:
                reached.add(follower.index)
                waiting.append(follower)
    return [b for b in found if b.index in reached]


def loops(graph: list[Block]) -> list[Loop]:
    """Natural loops (Aho, Lam, Sethi, Ullman, section 9.6), outer ones first; loops of one head are one."""
    before: dict[int, list[Block]] = {b.index: [] for b in graph}
    for block in graph:
        for follower in block.next:
            before[follower.index].append(block)
    dominators = _dominators(graph, before)
    bodies: dict[int, set[int]] = {}
    latches: dict[int, list[Block]] = {}
    by_index = {b.index: b for b in graph}
    for block in graph:
        for head in block.next:
            if head.index in dominators[block.index]:
                latches.setdefault(head.index, []).append(block)
                body, waiting = bodies.setdefault(head.index, {head.index}), [block]
                while waiting:
                    one = waiting.pop()
                    if one.index not in body:
                        body.add(one.index)
                        waiting += before[one.index]
    found = []
    for start, body in bodies.items():
        inside: set[int] = set().union(*(b for h, b in bodies.items() if h != start and b < body))
        every = set.intersection(*(dominators[latch.index] for latch in latches[start])) & body
        own = sorted(body - inside)
        found.append(
            Loop(
                by_index[start],
                tuple(by_index[i] for i in own if i in every),
                tuple(by_index[i] for i in own if i not in every),
                tuple(by_index[i] for i in sorted(inside)),
                sum(start in b for b in bodies.values()),
            )
        )
    return sorted(found, key=lambda loop: (loop.depth, loop.head.index))


def _dominators(graph: list[Block], before: dict[int, list[Block]]) -> dict[int, set[int]]:
    """For each block the blocks on every path from the entry to it, by iteration to the fixed point."""
    everything = {b.index for b in graph}
    found = {b.index: ({b.index} if b is graph[0] else set(everything)) for b in graph}
    changed = True
    while changed:
        changed = False
        for block in graph[1:]:
            sets = [found[p.index] for p in before[block.index]]
            new = {block.index} | (set.intersection(*sets) if sets else set())
            if new != found[block.index]:
                found[block.index], changed = new, True
    return found
