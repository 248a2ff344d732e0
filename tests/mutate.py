"""Small changes to a source file: an operator, a constant, a condition or a call, one at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
RECKONED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
CALLED = {"min": "max", "max": "min", "argmin": "argmax", "argmax": "argmin"}


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The ways in which one node can be changed: the field, and its replacement."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARED:
            yield "ops", [COMPARED[type(op)]()]
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in RECKONED:
            yield "op", RECKONED[type(op)]()
        case ast.BoolOp(op=op):
            yield "op", ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "test", ast.UnaryOp(ast.Not(), test)
        case ast.Constant(value=bool(value)):
            yield "value", not value
        case ast.Constant(value=int(value) | float(value)):
            yield "value", value + 1
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            yield "func", ast.Name(CALLED[name], ast.Load())
        case ast.Call(func=ast.Attribute(attr=name)) if name in CALLED:
            yield "func", ast.Attribute(node.func.value, CALLED[name], ast.Load())
        case ast.Expr(value=ast.Call()):
            yield "value", ast.Constant(None)


def sites(tree: ast.AST) -> Iterator[tuple[ast.AST, str, object]]:
    """Every change of a file that is code: annotations, decorators and what is raised are left alone."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise | ast.Assert):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from ((child, *change) for change in changes(child))
                yield from sites(child)


def mutant(text: str, number: int) -> tuple[str, int, str, str]:
    """The file with its change of that number, the line, and the text before and after."""
    tree = ast.parse(text)
    node, field, value = list(sites(tree))[number]
    before, line = ast.unparse(copy.deepcopy(node)), node.lineno
    setattr(node, field, value)
    return (
        ast.unparse(ast.fix_missing_locations(tree)),
        line,
        before.split("\n")[0],
        ast.unparse(node).split("\n")[0],
    )
