"""Reads a policy's functions before they run, and refuses what could only go wrong, with file:line.

It follows each hook into the functions that it calls with a job: fields that do not exist, writes to fields
that a policy does not own, constant indices out of bounds, anything that makes two runs differ (randomness,
clocks, files, module state that changes) and recursion. What it can't see, an alias made in a roundabout way
say, is refused when the hook is compiled or called: see sealed.py.
"""

from __future__ import annotations

import ast
import builtins
import types as python
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from berth.errors import InputError, nearest
from berth.schedule.records import JOB, WAIT_STATS
from berth.schedule.sealed import READABLE, WRITABLE, not_writable, unknown_field
from berth.schedule.source import TURNS, Node, is_own, node_of, place_of

_MY = "params"
_SHAPES = {"job": JOB, "stats": WAIT_STATS}
_IMPURE = {
    "random": "is random",
    "numpy.random": "is random",
    "secrets": "is random",
    "uuid": "is random",
    "time": "reads a clock",
    "datetime": "reads a clock",
    "os": "depends on the machine",
    "sys": "depends on the process",
    "io": "reads or writes files",
    "pathlib": "reads or writes files",
    "socket": "uses the network",
    "subprocess": "starts processes",
    "threading": "depends on other threads",
    "itertools.count": "may never end",
    "itertools.cycle": "may never end",
    "itertools.repeat": "may never end",
}
_IMPURE_BUILTINS = {
    "open": "reads or writes files",
    "input": "waits for the keyboard",
    "id": "differs from run to run",
    "hash": "differs from run to run",
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), "runs code that can't be checked"),
    **dict.fromkeys(("globals", "locals", "vars", "setattr", "delattr"), "changes things unseen"),
}
_MUTATORS = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse"}
_MUTATORS |= {"setdefault", "sort", "update"}
Roles = tuple[tuple[str, str], ...]  # of parameters: job, stats or params


def check_hook(hook: str, function: Callable[..., Any], roles: Roles, constants: Iterable[str]) -> None:
    """Refuses what is wrong with a hook and the functions it calls; `constants` are the names in `params`."""
    _Lint(hook, tuple(constants), function, roles, (), set()).run()


class _Lint(ast.NodeVisitor):
    """One function, with the roles of its parameters."""

    def __init__(
        self,
        hook: str,
        constants: tuple[str, ...],
        function: Callable[..., Any],
        roles: Roles,
        callers: tuple[Any, ...],
        seen: set[Any],
    ) -> None:
        self.hook, self.constants, self.function = hook, constants, function
        self.roles = dict(roles)
        self.turns = 1  # of the comprehensions around what is visited
        self.callers, self.seen = (*callers, function.__code__), seen
        self.writable = WRITABLE if hook == "order" else ()
        self.around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def run(self) -> None:
        key = self.function.__code__, tuple(sorted(self.roles.items()))
        node = node_of(self.function)
        if node is None or key in self.seen:
            return
        self.seen.add(key)
        self.locals = _bound_names(node)
        for part in node.body if isinstance(node, ast.FunctionDef) else [node.body]:
            self.visit(part)

    def refuse(self, node: ast.AST, what: str, hint: str | None = None) -> NoReturn:
        raise InputError(what, where=place_of(self.function, node), hint=hint)

    # -- what names stand for

    def role(self, node: ast.AST) -> str | None:
        """job, stats or params, if an expression is just that."""
        if isinstance(node, ast.NamedExpr):
            return self.role(node.value)
        return self.roles.get(node.id) if isinstance(node, ast.Name) else None

    def value(self, node: ast.AST) -> Any:
        """The object of the module, or of what surrounds the function, that an expression names."""
        if isinstance(node, ast.Name):
            return self.global_value(node.id)
        if isinstance(node, ast.Attribute):
            base = self.value(node.value)
            if isinstance(base, python.ModuleType | type):
                return getattr(base, node.attr, _UNKNOWN)
        return _UNKNOWN

    def global_value(self, name: str) -> Any:
        if name in self.locals:
            return _UNKNOWN
        if name in self.around:
            try:
                return self.around[name].cell_contents
            except ValueError:
                return _UNKNOWN
        return self.function.__globals__.get(name, getattr(builtins, name, _UNKNOWN))

    def index(self, node: ast.AST) -> int | None:
        """A constant index: a number, or the name of one."""
        try:
            found = ast.literal_eval(node)
        except ValueError:
            found = self.value(node)
        return found if type(found) is int else None

    # -- statements

    def visit_Assign(self, node: ast.Assign) -> None:
        """`other = job` makes another name for it."""
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)
            for name, value in _pairs(target, node.value):
                self.rename(name, value)

    def rename(self, name: str, value: ast.AST) -> None:
        role = self.role(value)
        if role is None:
            self.roles.pop(name, None)
        else:
            self.roles[name] = role

    def visit_Global(self, node: ast.Global) -> None:
        self.refuse(node, f"a hook may not change the module's {', '.join(node.names)}", _PURE)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.refuse(node, f"a hook may not change {', '.join(node.names)} around it", _PURE)

    # -- expressions

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.check_pure(node, node.id, self.global_value(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        role = self.role(node.value)
        if role == _MY:
            self.check_constant(node)
        elif role is not None:
            self.check_field(node, role)
        else:
            self.check_pure(node, ast.unparse(node), self.value(node))
            if not isinstance(node.ctx, ast.Load):
                self.check_not_global(node, node.value)
        self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        role = self.role(node.value)
        if role is not None and role != _MY:
            self.refuse(node, f"{role}[...] is not how fields are read", f"write {role}.gpus, say")
        inner = node.value
        owner = self.role(inner.value) if isinstance(inner, ast.Attribute) else None
        if isinstance(inner, ast.Attribute) and owner is not None:
            self.check_element(node, inner, owner)
        elif not isinstance(node.ctx, ast.Load):
            self.check_not_global(node, inner)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = self.value(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            self.check_not_global(node, node.func.value)
        if isinstance(called, python.FunctionType) and is_own(called):
            self.follow(node, called)
        self.generic_visit(node)

    def follow(self, node: ast.Call, called: Callable[..., Any]) -> None:
        """Into a function of the user's, which gets what this one hands over."""
        if called.__code__ in self.callers:
            self.refuse(node, f"{called.__name__} calls itself, which may never end", "write a loop")
        given = dict(zip(_parameters(called), node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg}
        roles = tuple((name, role) for name, value in given.items() if (role := self.role(value)))
        _Lint(self.hook, self.constants, called, roles, self.callers, self.seen).run()

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self.check_turns(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self.check_turns(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self.check_turns(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self.check_turns(node)

    def check_turns(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        """The turns of a comprehension are not counted when it runs, so they must be known before."""
        around = self.turns
        for part in node.generators if is_own(self.function) else ():
            self.turns *= self.turns_of(part.iter)
        if self.turns > TURNS:
            self.refuse(node, f"this comprehension takes more than {TURNS:,} turns")
        self.generic_visit(node)
        self.turns = around

    def turns_of(self, node: ast.expr) -> int:
        """The turns over a range of constants; 1 for what exists in memory already."""
        if not isinstance(node, ast.Call) or not node.args:
            return 1
        if self.value(node.func) is not range:
            return max(map(self.turns_of, node.args))  # enumerate(range(...)), say
        inner = node.args[0] if len(node.args) == 1 else None
        if isinstance(inner, ast.Call) and self.value(inner.func) is len:
            return 1
        bounds = [self.index(part) for part in node.args]
        known = [bound for bound in bounds if bound is not None]
        if len(known) < len(bounds):
            what = f"{ast.unparse(node)} in a comprehension may take any number of turns"
            self.refuse(node, what, "give it a constant, or write a loop, whose turns are counted")
        first, last, step = (*((0, known[0]) if len(known) == 1 else known[:2]), *known[2:], 1)[:3]
        return max(0, -((first - last) // step)) if step else 1

    # -- what is refused

    def check_constant(self, node: ast.Attribute) -> None:
        if node.attr not in self.constants:
            near = nearest(node.attr, self.constants)
            known = f"constants: {', '.join(self.constants)}" if self.constants else "it has no constants"
            hint = f"did you mean {near!r}?" if near else known
            self.refuse(node, f"the policy has no constant {node.attr!r}", hint)
        if not isinstance(node.ctx, ast.Load):
            self.refuse(node, f"params.{node.attr} may not be written: constants are constant")

    def check_field(self, node: ast.Attribute, role: str) -> None:
        if node.attr not in READABLE[role]:
            self.refuse(node, unknown_field(role, node.attr))
        if not isinstance(node.ctx, ast.Load) and node.attr not in self.writable:
            self.refuse(node, not_writable(role, node.attr))

    def check_element(self, node: ast.Subscript, field: ast.Attribute, role: str) -> None:
        written = not isinstance(node.ctx, ast.Load)
        if role == _MY:
            if written:
                self.refuse(node, f"params.{field.attr} may not be written: constants are constant")
            return
        if field.attr not in READABLE[role]:
            return  # told when the field is visited
        if written and field.attr not in self.writable:
            self.refuse(node, not_writable(role, field.attr))
        shape, index = _SHAPES[role][field.attr].shape, self.index(node.slice)
        if not shape:
            self.refuse(node, f"{role}.{field.attr} is one number, not an array")
        if index is not None and not 0 <= index < shape[0]:
            what = f"{role}.{field.attr}[{index}] is out of bounds"
            self.refuse(node, what, f"{role}.{field.attr} has {shape[0]} entries, 0 to {shape[0] - 1}")

    def check_not_global(self, node: ast.AST, base: ast.AST) -> None:
        root = base
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name) and self.global_value(root.id) is not _UNKNOWN:
            self.refuse(node, f"a hook may not change {ast.unparse(base)}, which outlives the call", _PURE)

    def check_pure(self, node: ast.AST, text: str, value: Any) -> None:
        why = _impurity(value)
        if why is not None:
            self.refuse(node, f"{text} can't be used in a hook: it {why}", _PURE)


_PURE = "a hook computes from its arguments alone, or two runs would differ"
_UNKNOWN: Any = object()


def _impurity(value: Any) -> str | None:
    """Why a function or module can't be used in a hook; None: it can."""
    if value is _UNKNOWN:
        return None
    if isinstance(value, python.BuiltinFunctionType) and value.__module__ == "builtins":
        return _IMPURE_BUILTINS.get(value.__name__)
    name = value.__name__ if isinstance(value, python.ModuleType) else _home(value)
    return next((why for one, why in _IMPURE.items() if name == one or name.startswith(f"{one}.")), None)


def _home(value: Any) -> str:
    """`module.name` of a function or class; a method bound to an object is at home with that object."""
    if not callable(value):
        return ""
    bound = getattr(value, "__self__", None)
    if bound is not None and not isinstance(bound, python.ModuleType | type):
        value = type(bound)
    return f"{getattr(value, '__module__', None) or ''}.{getattr(value, '__qualname__', '')}"


def _pairs(target: ast.AST, value: ast.AST) -> list[tuple[str, ast.AST]]:
    """The names that an assignment binds, each with its value; a, b = job, other binds two."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
        if len(values) == len(target.elts):
            return [pair for one, part in zip(target.elts, values, strict=True) for pair in _pairs(one, part)]
    return []


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _bound_names(node: Node) -> set[str]:
    """All names that a function, or one inside it, binds."""
    names = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    stored = (
        part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    )
    inner = (part.name for part in ast.walk(node) if isinstance(part, ast.FunctionDef) and part is not node)
    changed = [part.names for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal)]
    return (names | {part.id for part in stored} | set(inner)).difference(*changed)
