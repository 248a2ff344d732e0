"""Finds the source of a policy's functions and classes."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

Node = ast.FunctionDef | ast.Lambda

# Python 3.11's parser counts its depth per process: two threads in it disturb each other
_PARSER = threading.Lock()


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


def may_return_none(function: Callable[..., Any]) -> bool:
    """Whether a path of a function ends without a value: at its end, by `return`, or by `return None`."""
    code = list(dis.get_instructions(function))
    return any(
        last.opname == "RETURN_VALUE" and before.opname == "LOAD_CONST" and before.argval is None
        for before, last in pairwise(code)
    )


def class_line(kind: type, name: str = "") -> int:
    """The line on which a class, or a name in its body, is defined; 1 where that is not known."""
    try:
        with _PARSER:
            lines, first = inspect.getsourcelines(kind)
    except (OSError, TypeError):
        return 1
    for node in ast.walk(_parse(inspect.cleandoc("\n" + "".join(lines)))):
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


def _parse(text: str, file: str = "<source>") -> ast.Module:
    with _PARSER:
        return ast.parse(text, file)


@lru_cache(maxsize=32)
def _nodes(file: str, text: str) -> list[Node]:
    try:
        tree = _parse(text, file)
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]


def _first_line(node: Node) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(part.lineno for part in decorators)])
