"""Copies of a policy's functions that run within limits: `tick` is called in every loop (see limits.py)."""

from __future__ import annotations
import __future__

import ast
import copy
import dis
import types as python
from collections.abc import Callable
from typing import Any

from berth.native.functions import plain_function, reachable, referenced
from berth.schedule.source import Node, is_own, node_of

_TICK, _RANGE = "_berth_tick", "_berth_range"  # numba allows no other `range` by that name
_LINE_BITS = 16  # of a site: lines below the function's first one; above them its index among those reached
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def copied(function: Callable[..., Any], wrap: Callable[[Any], Any], range_: Any, tick: Any = None) -> Any:
    """A copy of a function that calls copies of its helpers, each one as `wrap` returns it.

    In a user's functions, `range` is `range_`; `tick`, if there is one, is called with the number of a site
    in every turn of a loop and at the beginning of every helper that calls others.
    """
    functions = reachable(function)
    made = [_ticking(one, i) if tick and is_own(one) else _copy(one) for i, one in enumerate(functions)]
    ready = dict(zip(functions, map(wrap, made), strict=True))
    for one, its_copy in zip(functions, made, strict=True):
        scope = its_copy.__globals__
        scope[_TICK], scope[_RANGE] = tick, range_
        for name, value in {"range": range, **referenced(one)}.items():
            if value is range and is_own(one) and (name != "range" or not tick):
                scope[name] = range_
            elif (helper := plain_function(value)) is not None:
                scope[name] = ready[helper]
    return ready[function]


def place_of_site(function: Callable[..., Any], site: int) -> str:
    """`mine.py:12`: where the copy of a function, or of its helper, called `tick` with this number."""
    code = reachable(function)[site >> _LINE_BITS].__code__
    return f"{code.co_filename}:{code.co_firstlineno + site % (1 << _LINE_BITS)}"


def _copy(function: Any, code: Any = None, cells: tuple[Any, ...] | None = None) -> Any:
    """The function, or another code for it, with globals of its own."""
    made = python.FunctionType(
        code or function.__code__,
        dict(function.__globals__),
        function.__name__,
        function.__defaults__,
        function.__closure__ if cells is None else cells,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__ = function.__module__
    return made


def _ticking(function: Any, index: int) -> Any:
    """A copy that calls `tick`; raises where that can't be done."""
    code, node = function.__code__, node_of(function)
    if node is None:
        loops = any("BACKWARD" in step.opname for step in dis.get_instructions(code))
        if index or loops or "range" in code.co_names:
            raise ValueError("its source can't be read, so its loops can't be limited")
        return _copy(function)
    ticking = _Ticking(index << _LINE_BITS, code.co_firstlineno, "range" not in function.__globals__)
    inner = ticking.visit(_bare(node))
    if index and any(map(plain_function, referenced(function).values())):
        inner.body.insert(0, ticking.statement(node))
    around = ast.arguments([], [ast.arg(name) for name in code.co_freevars], None, [], [], None, [])
    outer = ast.copy_location(ast.FunctionDef("_outer", around, [inner], [], None), node)
    text = ast.fix_missing_locations(ast.Module([outer], []))
    made = compile(text, code.co_filename, "exec", code.co_flags & _FUTURE, True)
    for name in ("_outer", inner.name):
        (made,) = (part for part in made.co_consts if getattr(part, "co_name", "") == name)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    return _copy(function, made, tuple(cells[name] for name in made.co_freevars))


def _bare(node: Node) -> ast.FunctionDef:
    """A function without what the original has evaluated already: decorators, annotations, defaults."""
    bare = copy.deepcopy(node)
    if isinstance(bare, ast.Lambda):
        result = ast.copy_location(ast.Return(bare.body), bare.body)
        bare = ast.copy_location(ast.FunctionDef("lambda_", bare.args, [result], [], None), bare)
    bare.decorator_list, bare.returns = [], None
    arguments = bare.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)
    return bare


class _Ticking(ast.NodeTransformer):
    """Inserts calls of `tick`, and replaces the builtin `range`."""

    def __init__(self, sites: int, first_line: int, builtin_range: bool) -> None:
        self._sites, self._first_line, self._builtin_range = sites, first_line, builtin_range

    def _tick(self, node: Any) -> ast.expr:
        site = self._sites + node.lineno - self._first_line
        call = ast.Call(ast.Name(_TICK, ast.Load()), [ast.Constant(site)], [])
        for part in ast.walk(call):
            ast.copy_location(part, node)
        return call

    def statement(self, node: ast.AST) -> ast.stmt:
        """A call of `tick`, on the line of a node."""
        return ast.copy_location(ast.Expr(self._tick(node)), node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._loop(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._loop(node)

    def _loop(self, node: ast.While | ast.For) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, self.statement(node))
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs.insert(0, self._tick(node.target))
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "range" and self._builtin_range:
            node.id = _RANGE
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        raise ValueError("a `try` in compiled code would catch what stops an endless loop")
