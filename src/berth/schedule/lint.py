"""Reads a policy's functions before they run, and refuses what could only go wrong, with file:line.

It follows each hook into the functions that it calls with a job: fields that do not exist, writes to fields
that a policy does not own, constant indices out of bounds, anything that makes two runs differ (randomness,
clocks, files, module state that changes), recursion, and what escapes the limits on a call. What it can't see,
an alias made in a roundabout way say, is refused when the hook is compiled or called: see sealed.py, limits.py.
"""

from __future__ import annotations

import ast
import builtins
import types as python
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from berth.errors import InputError, nearest
from berth.native.functions import plain_function
from berth.schedule.elements import out_of_bounds
from berth.schedule.policy import Names
from berth.schedule.records import CLUSTER, JOB, WAIT_STATS
from berth.schedule.sealed import READABLE, not_writable, unknown_field
from berth.schedule.source import Node, is_own, node_of, place_of

_MY = "params"
_SHAPES = {"job": JOB, "stats": WAIT_STATS, "cluster": CLUSTER}
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
    "ctypes": "runs code that has no limits",
    "numba": "runs code that has no limits",
}
_ENDLESS = (
    *(f"itertools.{name}" for name in ("combinations", "combinations_with_replacement", "count", "cycle")),
    *(f"itertools.{name}" for name in ("permutations", "product", "repeat")),
    *(f"math.{name}" for name in ("comb", "factorial", "perm")),
)
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
Roles = tuple[tuple[str, str], ...]  # of parameters: job, stats, cluster or params


def check_hook(hook: str, function: Callable[..., Any], roles: Roles, names: Names) -> None:
    """Refuses what is wrong with a hook and the functions it calls."""
    _Lint(hook, names, function, roles, (), set()).run()


class _Lint(ast.NodeVisitor):
    """One function, with the roles of its parameters."""

    def __init__(
        self,
        hook: str,
        names: Names,
        function: Callable[..., Any],
        roles: Roles,
        callers: tuple[Any, ...],
        seen: set[Any],
    ) -> None:
        self.hook, self.names, self.function = hook, names, function
        self.constants, self.state = [name for name, _ in names.params], [name for name, _ in names.state]
        self.roles = dict(roles)
        self.callers, self.seen = (*callers, function.__code__), seen
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

    def visit_Import(self, node: ast.Import) -> None:
        self.refuse(node, "a hook may not import", "import at the top of the file")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.refuse(node, "a hook may not import", "import at the top of the file")

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.refuse(node, f"a hook may not change {', '.join(node.names)} around it", _PURE)

    # -- expressions

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            value = self.global_value(node.id)
            self.check_pure(node, node.id, value)
            self.follow(node, value)

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
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            self.check_not_global(node, node.func.value)
        called = self.value(node.func)
        self.check_pure(node, ast.unparse(node.func), called)
        if self.follow(node, called, node.args, node.keywords):
            for part in [*node.args, *node.keywords]:
                self.visit(part)
        else:
            self.generic_visit(node)

    def follow(
        self, node: ast.AST, value: Any, given: Sequence[ast.expr] = (), words: Sequence[ast.keyword] = ()
    ) -> bool:
        """Into a function of the user's, which gets what this one hands over; False: it is not one."""
        called = plain_function(value)
        if called is None or not is_own(called):
            return False
        if called.__code__ in self.callers:
            self.refuse(node, f"{called.__name__} calls itself, which may never end", "write a loop")
        named = dict(zip(_parameters(called), given, strict=False))
        named |= {word.arg: word.value for word in words if word.arg}
        roles = tuple((name, role) for name, part in named.items() if (role := self.role(part)))
        _Lint(self.hook, self.names, called, roles, self.callers, self.seen).run()
        return True

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """What stops a call that exceeds a limit is not an `Exception`."""
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if any(one is None or self.value(one) is BaseException for one in caught):
            self.refuse(node, "this catches everything, berth's own limits too", "write `except Exception:`")
        self.generic_visit(node)

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
        own = role == "job" and node.attr in self.state
        if not own and node.attr not in READABLE[role]:
            near = nearest(node.attr, self.state) if role == "job" else None
            self.refuse(node, unknown_field(role, node.attr), f"did you mean {near!r}?" if near else None)
        if not isinstance(node.ctx, ast.Load) and not (own and self.hook == "update"):
            self.refuse(node, not_writable(role, node.attr, own))

    def check_element(self, node: ast.Subscript, field: ast.Attribute, role: str) -> None:
        written = not isinstance(node.ctx, ast.Load)
        if role == _MY:
            if written:
                self.refuse(node, f"params.{field.attr} may not be written: constants are constant")
            return
        own = role == "job" and field.attr in self.state
        if not own and field.attr not in READABLE[role]:
            return  # reported when the field is visited
        if written and not own:
            self.refuse(node, not_writable(role, field.attr))
        shape = () if own else _SHAPES[role][field.attr].shape
        index = self.index(node.slice)
        if not shape:
            self.refuse(node, f"{role}.{field.attr} is one number, not an array")
        if index is not None and not 0 <= index < shape[0]:
            self.refuse(node, out_of_bounds(f"{role}.{field.attr}", index, shape[0]))

    def check_not_global(self, node: ast.AST, base: ast.AST) -> None:
        root = base
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        outlives = isinstance(root, ast.Name) and self.global_value(root.id) is not _UNKNOWN
        if outlives and not isinstance(self.value(base), python.ModuleType):  # np.sort(...) changes nothing
            self.refuse(node, f"a hook may not change {ast.unparse(base)}, which outlives the call", _PURE)

    def check_pure(self, node: ast.AST, text: str, value: Any) -> None:
        why = _impurity(value)
        if why is not None:
            self.refuse(node, f"{text} can't be used in a hook: it {why}", _PURE)


_PURE = "a hook computes from its arguments alone, with Python's arithmetic and loops"
_UNKNOWN: Any = object()


def _impurity(value: Any) -> str | None:
    """Why a function or module can't be used in a hook; None: it can."""
    if value is _UNKNOWN:
        return None
    if isinstance(value, python.BuiltinFunctionType) and value.__module__ == "builtins":
        return _IMPURE_BUILTINS.get(value.__name__)
    if type(value).__module__.startswith("numba.") and plain_function(value) is None:
        return _IMPURE["numba"]  # whatever module it was defined in
    name = value.__name__ if isinstance(value, python.ModuleType) else _home(value)
    if name in _ENDLESS:
        return "may take forever, in one operation"
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
