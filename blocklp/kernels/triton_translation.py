"""A Python function of one block, written out as a Triton function of many, one block a lane.

Conditions may differ between lanes.  What stands under one is computed by all lanes and kept by those for
which it holds; a loop goes on while some lane is in it.  Variables are real, whole or true-or-false whatever
is assigned to them, as the widest of all; real numbers are in the working precision.

Coordinates are variables of their own where loops over them can be written out (``unrolled``); else they are
in memory, and loops are loops: a lane then reads what it has written itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blocklp.kernels.triton_expressions import Expressions, TooLong, TritonTerm, known, load, number, refuse
from blocklp.kernels.triton_symbols import ARRAYS, ORDER, REAL, TRUTH, WHOLE

LONGEST = 400
"""Most statements of a function that is written out."""


@dataclass
class Loop:
    """A loop under translation: the lanes that are in it, and those that are in its present turn."""

    go: str
    turn: str


def leaves(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    """Whether a statement may leave a loop or the function; loops inside keep their own exits."""
    if isinstance(node, kinds):
        return True
    inner = (ast.Return,) if isinstance(node, ast.For | ast.While) else kinds
    return any(leaves(child, inner) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


EXITS = (ast.Break, ast.Continue, ast.Return)


@dataclass
class Translation(Expressions):
    """Translates the body of one function."""

    def body(self, statements: list[ast.stmt], named: list[str]) -> tuple[list[str], str]:
        """Translate statements.

        Parameters
        ----------
        statements : list of ast.stmt
            The body of the function.
        named : list of str
            Variables that there are already, which are real.

        Returns
        -------
        lines, result : list of str, str
            The lines, and the expression that is returned, empty for none.
        """
        while True:
            before = dict(self.kinds)
            self.begin()
            self.early: list[str] = []  # variables whose first value some lanes alone set
            self.defined.update(named)
            self.kinds.update(dict.fromkeys(named, REAL))
            self.loops: list[Loop] = []
            self.once = once_assigned(statements)
            self.result = ""
            self._function(statements)
            if self.kinds == before:
                return [*self._prologue(), *self.lines], self.result

    def _prologue(self) -> list[str]:
        """Numbers in the working precision, block data, and variables first set under a condition."""
        lines = [f"number_{k} = tl.full([], {number(v)}, KIND)" for k, v in enumerate(self.numbers)]
        for name, own in self.data.items():
            k = own.number
            at = f"data[{k}] + row * strides[{2 * k}] + block.to(tl.int64) * strides[{2 * k + 1}]"
            lines.append(f"at_{name} = {at}")
            if not own.shape:
                lines.append(f"data_{name} = {load(f'at_{name}', own.kind, 'mine')}")
        lines += [f"{name} = {code}" for name, code in self.loaded.items()]
        zero = {
            REAL: "tl.full(mine.shape, 0, KIND)",
            WHOLE: "tl.full(mine.shape, 0, tl.int64)",
            TRUTH: "mine & ~mine",
        }
        return lines + [f"{name} = {zero[self.kinds[name]]}" for name in self.early]

    def _function(self, statements: list[ast.stmt]) -> None:
        """Translate all; a value that is returned at several places is a variable."""
        last = statements[-1]
        direct = isinstance(last, ast.Return) and not any(leaves(s, (ast.Return,)) for s in statements[:-1])
        self.returned = None if direct or not any(leaves(s, (ast.Return,)) for s in statements) else "open_0"
        if self.returned:
            self.emit("open_0 = mine")
        self._block(statements[:-1] if direct else statements, self.returned)
        if direct and isinstance(last, ast.Return) and last.value is not None:
            self.result = self.text(REAL, self.term(last.value, None))
        elif self.returned and "result" in self.kinds:
            self.result = "result"

    def _block(self, statements: list[ast.stmt], mask: str | None) -> None:
        """Translate statements for the lanes of a mask, None for all."""
        for statement in statements:
            self._statement(statement, mask)
            if leaves(statement, EXITS):
                flags = [loop.turn for loop in self.loops[-1:]] or ([self.returned] if self.returned else [])
                mask = self.temporary(" & ".join(dict.fromkeys([*([mask] if mask else []), *flags])))

    def _statement(self, node: ast.stmt, mask: str | None) -> None:
        """Translate one statement."""
        if isinstance(node, ast.Assign):
            self._assign(node.targets, node.value, mask)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign([node.target], node.value, mask)
        elif isinstance(node, ast.AugAssign):
            there = ast.parse(ast.unparse(node.target), mode="eval").body
            self._set(node.target, self.term(ast.BinOp(there, node.op, node.value), mask), mask)
        elif isinstance(node, ast.If):
            self._if(node, mask)
        elif isinstance(node, ast.For) and not node.orelse:
            self._for(node, mask)
        elif isinstance(node, ast.While) and not node.orelse:
            go = self.temporary(f"{mask or 'mine'} & {self.text(TRUTH, self.term(node.test, mask))}")
            self._turns(go, f"some({go})", lambda inside: self._block(node.body, inside), node)
        elif isinstance(node, ast.Break | ast.Continue):
            loop = self.loops[-1]
            for flag in dict.fromkeys((loop.turn, loop.go) if isinstance(node, ast.Break) else (loop.turn,)):
                self.emit(f"{flag} = {flag} & ~{mask}")
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self._name("result", self.term(node.value, mask), mask)
            for flag in dict.fromkeys(["open_0", *(f for loop in self.loops for f in (loop.go, loop.turn))]):
                self.emit(f"{flag} = {flag} & ~{mask}")
        elif not isinstance(node, ast.Pass) and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            refuse(node)

    def _assign(self, targets: list[ast.expr], value: ast.expr, mask: str | None) -> None:
        """Assign to names, coordinates, or several of them at once."""
        if len(targets) > 1:
            refuse(targets[1])
        target = targets[0]
        if not isinstance(target, ast.Tuple):
            self._set(target, self.term(value, mask), mask)
            return
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(target.elts):
            refuse(value)
        found = [self.kept(self.term(v, mask)) for v in value.elts]
        for own, term in zip(target.elts, found, strict=True):
            self._set(own, term, mask)

    def _set(self, target: ast.expr, term: TritonTerm, mask: str | None) -> None:
        """Assign to one name or coordinate."""
        if isinstance(target, ast.Name):
            taken = target.id in self.bound and target.id not in self.once
            if taken or target.id in (*ARRAYS, *self.data):
                refuse(target)
            if target.id in self.once and term.value is not None and mask is None and not self.depth:
                self.bound[target.id] = term
            else:
                self._name(f"v_{target.id}", term, mask)
            return
        if (
            not isinstance(target, ast.Subscript)
            or not isinstance(target.value, ast.Name)
            or target.value.id != "point"
        ):
            refuse(target)
        if isinstance(target.slice, ast.Slice) and ast.unparse(target.slice) == ":":
            term = self.kept(term)
            if self.unrolled:
                for i in range(self.dim):
                    self._name(f"point_{i}", term, mask)
                return
            self.emit(f"for every in range({self.dim}):")
            self.emit(f"    tl.store(point + every * stride, {self.text(REAL, term)}, mask={mask or 'mine'})")
            return
        at = self.index(target.slice, (self.dim,), mask)
        if not self.unrolled:
            value = self.text(REAL, term)
            self.emit(f"tl.store(point + {at.code} * stride, {value}, mask={mask or 'mine'})")
        elif at.value is None:
            raise TooLong(ast.unparse(target))
        else:
            self._name(f"point_{at.value}", term, mask)

    def _name(self, name: str, term: TritonTerm, mask: str | None) -> None:
        """Assign to a variable, all lanes or those of a mask."""
        kind = max(term.kind, self.kinds.get(name, TRUTH), key=ORDER.__getitem__)
        self.kinds[name] = kind
        if name not in self.defined and (mask is not None or self.depth):
            self.early.append(name)
        self.defined.add(name)
        code = self.text(kind, term)
        if kind == WHOLE:  # numbers in the text are of half the size
            code = (
                f"tl.where(mine, {code}, {code}).to(tl.int64)" if not term.lanes else f"({code}).to(tl.int64)"
            )
        if mask is not None:
            code = f"tl.where({mask}, {code}, {name})"
        elif not term.lanes:
            code = f"tl.where(mine, {code}, {code})"
        self.emit(f"{name} = {code}")

    def _if(self, node: ast.If, mask: str | None) -> None:
        """Both branches, for the lanes that take them."""
        test = self.term(node.test, mask)
        if test.value is not None:
            self._block(node.body if test.value else node.orelse, mask)
            return
        holds = self.temporary(self.text(TRUTH, test))
        within = f"{mask} & " if mask else ""
        other = self.temporary(f"{within}~{holds}") if node.orelse else ""
        self._block(node.body, self.temporary(f"{within}{holds}") if mask else holds)
        if node.orelse:
            self._block(node.orelse, other)

    def _for(self, node: ast.For, mask: str | None) -> None:
        """A loop over a range, written out where it goes over coordinates that are variables."""
        call = node.iter
        if (
            not isinstance(call, ast.Call)
            or ast.unparse(call.func) != "range"
            or not isinstance(node.target, ast.Name)
        ):
            refuse(node.iter)
        ends = [self.term(a, mask) for a in call.args]
        first, stop, step = {1: (known(0), *ends, known(1)), 2: (*ends, known(1))}.get(len(ends), tuple(ends))
        if any(t.kind == REAL for t in ends) or not step.value:
            refuse(node.iter)
        name = node.target.id
        if name in (*self.bound, *ARRAYS, *self.data):
            refuse(node.target)
        fixed = None not in (first.value, stop.value)
        if self.unrolled and fixed and indexes(node, name):
            turns = range(int(first.value or 0), int(stop.value or 0), int(step.value))
            if len(turns) * len(node.body) > LONGEST or len(self.lines) > LONGEST:
                raise TooLong(ast.unparse(node.iter))
            self._written_out(node, turns, mask)
        else:
            self._counted(node, (first, stop, step), mask)
        del self.bound[name]
        self.defined.discard(f"v_{name}")  # it has another value now

    def _written_out(self, node: ast.For, turns: range, mask: str | None) -> None:
        """A loop, turn after turn."""
        assert isinstance(node.target, ast.Name)
        exits = any(leaves(s, EXITS) for s in node.body)
        loop = Loop("", "")
        if exits:
            go = self.temporary(mask or "mine")
            loop = Loop(go, self.temporary(go))
            self.loops.append(loop)
        for turn in turns:
            self.bound[node.target.id] = known(turn)
            if exits:
                self.emit(f"{loop.turn} = {loop.go}")
            self._block(node.body, loop.turn if exits else mask)
        if exits:
            self.loops.pop()

    def _counted(
        self, node: ast.For, ends: tuple[TritonTerm, TritonTerm, TritonTerm], mask: str | None
    ) -> None:
        """A loop that stays one."""
        assert isinstance(node.target, ast.Name)
        first, stop, step = ends
        exits = any(leaves(s, EXITS) for s in node.body)
        self.count += 1
        name = f"i_{self.count}"
        counted = None not in (first.value, stop.value) and not exits
        self.bound[node.target.id] = TritonTerm(name, WHOLE, lanes=not counted)
        if counted:
            turns = range(int(first.value or 0), int(stop.value or 0), int(step.value or 1))
            self.within[name] = (min(turns, default=0), max(turns, default=0))
            self.emit(f"for {name} in range({first.code}, {stop.code}, {step.code}):")
            self._deeper(lambda: self._block(node.body, mask))
            return
        end = self.kept(stop).code
        self.emit(f"{name} = tl.full(mine.shape, 0, tl.int64) + {first.code}")
        side = "<" if int(step.value or 0) > 0 else ">"
        go = self.temporary(f"{mask or 'mine'} & ({name} {side} {end})")

        def turn(inside: str) -> None:
            self._block(node.body, inside)
            self.emit(f"{name} = {name} + ({step.code})")
            self.emit(f"{go} = {go} & ({name} {side} {end})")

        self._turns(go, f"some({go})", turn, None)

    def _turns(self, go: str, test: str, body: Callable[[str], None], again: ast.While | None) -> None:
        """A loop while some lane is in it; with ``again`` the condition is asked after each turn."""
        statements = again.body if again is not None else []
        loop = Loop(go, go)
        if again is None or any(leaves(s, (ast.Continue,)) for s in statements):
            loop = Loop(go, self.temporary(go))
        self.loops.append(loop)
        self.emit(f"while {test}:")

        def inside() -> None:
            if loop.turn != go:
                self.emit(f"{loop.turn} = {go}")
            body(loop.turn)
            if again is not None:
                self.emit(f"{go} = {go} & {self.text(TRUTH, self.term(again.test, go))}")

        self._deeper(inside)
        self.loops.pop()

    def _deeper(self, inside: Callable[[], None]) -> None:
        """Emit lines one level further in."""
        self.depth += 1
        inside()
        self.depth -= 1


def once_assigned(statements: list[ast.stmt]) -> set[str]:
    """Names that a function assigns to once, and not within a loop or under a condition."""
    found = [name for s in statements for name in _stored(s)]
    plain = [name for s in statements if isinstance(s, ast.Assign) for t in s.targets for name in _stored(t)]
    return {name for name in plain if found.count(name) == 1}


def _stored(node: ast.AST) -> Iterator[str]:
    """Names that are assigned to."""
    for own in ast.walk(node):
        if isinstance(own, ast.Name) and isinstance(own.ctx, ast.Store):
            yield own.id


def indexes(node: ast.For, name: str) -> bool:
    """Whether a loop's number is part of an index within it."""
    within = (own.slice for own in ast.walk(node) if isinstance(own, ast.Subscript))
    return any(isinstance(n, ast.Name) and n.id == name for at in within for n in ast.walk(at))
