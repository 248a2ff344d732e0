"""The source of a policy's functions: found again for the checks, and copied with a limit on every loop."""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import linecache
import types as python
from collections.abc import Callable
from functools import lru_cache
from typing import Any

TURNS = 1_000_000  # of all loops of one call of a function; a hook looks at a few tiers, or at a table of 512
_COUNTER, _LIMIT = "_berth_turns", "_berth_limit"
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag

Node = ast.FunctionDef | ast.Lambda


class EndlessLoopError(RuntimeError):
    """A policy's function went round its loops too often."""

    def __init__(self) -> None:
        super().__init__(f"a loop did not end after {TURNS:,} turns")


def is_own(value: Any) -> bool:
    """Whether a class or function is a user's, not one of berth's."""
    return not str(getattr(value, "__module__", "")).startswith("berth.")


def place_of(function: Callable[..., Any], node: ast.AST | None = None) -> str:
    """`mine.py:12`: a node of a function, or where it is defined."""
    found = node or node_of(function)
    line = getattr(found, "lineno", function.__code__.co_firstlineno)
    return f"{function.__code__.co_filename}:{line}"


def node_of(function: Callable[..., Any]) -> Node | None:
    """The syntax tree of a function; None where its source is not to be had."""
    code = function.__code__
    for node in _nodes(code.co_filename, _text(function)):
        name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
        if name == code.co_name and _first_line(node) == code.co_firstlineno:
            return node
    return None


def class_line(kind: type, name: str = "") -> int:
    """The line on which a class, or a name in its body, is defined; 1 where that is not known."""
    try:
        lines, first = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return 1
    for node in ast.walk(ast.parse(inspect.cleandoc("\n" + "".join(lines)))):
        if not isinstance(node, ast.ClassDef) or node.name != kind.__name__:
            continue
        found = next((part for part in node.body if name in _defined(part)), node)
        return first - 1 + found.lineno
    return first


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement of a class body defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text(function: Callable[..., Any]) -> str:
    name = function.__code__.co_filename
    linecache.checkcache(name)
    return "".join(linecache.getlines(name, function.__globals__))


@lru_cache(maxsize=32)
def _nodes(file: str, text: str) -> list[Node]:
    try:
        tree = ast.parse(text, file)
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]


def _first_line(node: Node) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(part.lineno for part in decorators)])


def limited(function: Callable[..., Any]) -> Any:
    """A copy of a user's function, with globals of its own, whose loops raise after `TURNS` turns."""
    node = node_of(function) if is_own(function) else None
    if not isinstance(node, ast.FunctionDef) or not _loops(node):
        return _copy(function, function.__code__, dict(function.__globals__))
    text = ast.Module([_counting(node, function.__code__.co_freevars)], [])
    flags = function.__code__.co_flags & _FUTURE
    code = compile(ast.fix_missing_locations(text), function.__code__.co_filename, "exec", flags, True)
    (outer,) = (part for part in code.co_consts if isinstance(part, python.CodeType))
    (inner,) = (part for part in outer.co_consts if getattr(part, "co_name", "") == node.name)
    scope = dict(function.__globals__) | {_LIMIT: EndlessLoopError}
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return _copy(function, inner, scope, tuple(cells[name] for name in inner.co_freevars))


def _copy(
    function: Callable[..., Any], code: Any, scope: dict[str, Any], cells: tuple[Any, ...] | None = None
) -> Any:
    closure = function.__closure__ if cells is None else cells
    made = python.FunctionType(code, scope, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__ = function.__module__
    return made


def _loops(node: ast.FunctionDef) -> bool:
    return any(isinstance(part, ast.While | ast.For) for part in ast.walk(node))


def _counting(node: ast.FunctionDef, free: tuple[str, ...]) -> ast.FunctionDef:
    """The function with a counter, inside one that defines the names it takes from around it."""
    bare = copy.deepcopy(node)
    bare.decorator_list, bare.returns = (
        [],
        None,
    )  # the original has these, and its defaults, evaluated already
    for argument in [*bare.args.posonlyargs, *bare.args.args, *bare.args.kwonlyargs]:
        argument.annotation = None
    bare.args.defaults, bare.args.kw_defaults = [], [None] * len(bare.args.kwonlyargs)
    arguments = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
    outer = ast.FunctionDef("_outer", arguments, [_Counting().visit(bare)], [], None)
    return ast.copy_location(outer, node)


class _Counting(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if _loops(node):
            node.body.insert(0, _at(node, ast.parse(f"{_COUNTER} = 0").body[0]))
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._count(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._count(node)

    def _count(self, node: ast.While | ast.For) -> ast.AST:
        self.generic_visit(node)
        text = f"{_COUNTER} += 1\nif {_COUNTER} > {TURNS}:\n    raise {_LIMIT}()"
        node.body[:0] = [_at(node, statement) for statement in ast.parse(text).body]
        return node


def _at(node: ast.AST, statement: ast.stmt) -> ast.stmt:
    """A statement that counts as standing on the line of another."""
    for part in ast.walk(statement):
        ast.copy_location(part, node)
    return statement
