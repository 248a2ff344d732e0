"""Refuses a policy that berth would run otherwise than it is written: misspelt hooks, constants, rules.

Each message has the file and line of the policy's own source. A class is checked once, and an object with its
rules and constants whenever it goes into a run.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from dataclasses import fields, is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from berth.errors import InputError, nearest
from berth.schedule.lint import Roles, check_hook
from berth.schedule.policy import SIGNATURES, Policy, Rules, constant_fields
from berth.schedule.records import MAX_PARAMS, RENAMED
from berth.schedule.source import class_line, is_own, place_of

_METHODS = ("rules", "timers", "prepare", "table", "constants")  # of a policy, beside its hooks
_ROLES = {"job": "job", "victim": "job", "stats": "stats", "params": "params"}
_passed: set[type[Policy]] = set()
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")


def check_policy(policy: Policy) -> None:
    """Refuses a policy whose class, constants or rules can't be used."""
    kind = type(policy)
    check_class(kind)
    for field in constant_fields(kind):
        _check_constant(kind, field.name, getattr(policy, field.name), field.metadata.get("words"))
    rules_of(policy)


def check_class(kind: type[Policy]) -> None:
    """Refuses a class with names that berth does not know, or with functions that can only go wrong."""
    if kind in _passed:
        return
    for owner in (base for base in kind.__mro__ if issubclass(base, Policy) and is_own(base)):
        _check_fields(owner)
        for name in vars(owner):
            _check_name(owner, name)
        for hook in (name for name in SIGNATURES if name in vars(owner)):
            _check_hook(kind, owner, hook)
    _passed.add(kind)


def rules_of(policy: Policy) -> Rules:
    """The policy's rules; what is wrong with them is reported with its line."""
    kind = type(policy)
    try:
        rules = policy.rules()
    except InputError as error:
        error.where = error.where or own_place(error, kind)
        raise
    except Exception as error:
        where = own_place(error, kind)
        if where is None or not is_own(kind):
            raise
        what, hint = _unknown_rule(error) or (f"{kind.__name__}.rules: {type(error).__name__}: {error}", None)
        raise InputError(what, where=where, hint=hint) from error
    if not isinstance(rules, Rules):
        what = f"{kind.__name__}.rules() returned {rules!r}"
        raise InputError(what, where=where_of(kind, "rules"), hint="return Rules(...)")
    return rules


def _unknown_rule(error: Exception) -> tuple[str, str] | None:
    """What to say where a rule is misspelt."""
    unknown = _KEYWORD.search(str(error))
    if unknown is None or "Rules." not in str(error):
        return None
    near = RENAMED.get(unknown[1]) or nearest(unknown[1], [field.name for field in fields(Rules)])
    hint = f"did you mean {near!r}?" if near else "docs/guides/policies.md lists the rules"
    return f"there is no rule {unknown[1]!r}", hint


def own_place(error: BaseException, kind: type) -> str | None:
    """`mine.py:12`, if the error passed through the file of a class."""
    try:
        file = Path(inspect.getsourcefile(kind) or "").resolve()
    except TypeError:  # its module has no file
        return None
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve() == file]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def where_of(kind: type, name: str = "") -> str:
    """Where a class defines a name."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), kind)
    try:
        file = inspect.getsourcefile(owner)
    except TypeError:
        file = None
    return f"{file or owner.__module__}:{class_line(owner, name)}"


def _check_name(owner: type[Policy], name: str) -> None:
    """A public name is a hook, a method that berth calls, or a constant."""
    value = vars(owner)[name]
    known = (*SIGNATURES, *_METHODS)
    if name.startswith("_") or name in known or not _is_code(value):
        return
    near = RENAMED.get(name) or nearest(name, known)
    hint = (
        f"did you mean {near!r}?"
        if near
        else f"hooks: {', '.join(SIGNATURES)}; a helper is a function of the module, or begins with _"
    )
    raise InputError(f"{owner.__name__} has no hook {name!r}", where=where_of(owner, name), hint=hint)


def _is_code(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, staticmethod | classmethod | property)


def _check_hook(kind: type[Policy], owner: type[Policy], hook: str) -> None:
    member, name = vars(owner)[hook], f"{owner.__name__}.{hook}"
    wanted = inspect.signature(getattr(Policy, hook))
    if not isinstance(member, staticmethod):
        hint = f"write @staticmethod above `def {hook}`; a constant can't have this name"
        raise InputError(f"{name} must be a function", where=where_of(owner, hook), hint=hint)
    function = member.__func__
    if not inspect.isfunction(function):
        raise InputError(f"{name} must be a plain Python function", where=where_of(owner, hook))
    try:
        inspect.signature(function).bind(*wanted.parameters)
    except TypeError as error:
        hint = f"write def {hook}({', '.join(wanted.parameters)}):"
        raise InputError(f"{name}: {error}", where=place_of(function), hint=hint) from error
    if not is_own(function):
        return  # one of berth's own, under a name of the user's
    names = [field.name for field in constant_fields(kind)]
    table = ["table"] if kind.table is not Policy.table else []
    check_hook(hook, function, _roles(function, wanted), [*names, *table])


def _roles(function: Any, wanted: inspect.Signature) -> Roles:
    """What the function's own names for its arguments stand for."""
    given = zip(inspect.signature(function).parameters, wanted.parameters, strict=False)
    return tuple((own, _ROLES[name]) for own, name in given if name in _ROLES)


def _check_fields(owner: type[Policy]) -> None:
    """A class with constants is a dataclass, with names that nothing else has, and not too many of them."""
    if inspect.get_annotations(owner) and not (is_dataclass(owner) and "__dataclass_fields__" in vars(owner)):
        what = f"{owner.__name__!r} has constants but is no dataclass"
        raise InputError(what, where=where_of(owner), hint="write @dataclass(frozen=True) above the class")
    found = constant_fields(owner)
    for field in found:
        taken = field.name in SIGNATURES or field.name in _METHODS
        if taken or field.name.startswith("_"):
            why = f"berth calls {field.name}() itself" if taken else "it begins with _"
            what = f"{owner.__name__}: a constant can't be called {field.name!r}: {why}"
            raise InputError(what, where=where_of(owner, field.name), hint="choose another name")
    if len(found) > MAX_PARAMS:
        what = f"{owner.__name__} has {len(found)} constants, and at most {MAX_PARAMS} fit"
        hint = "put numbers into table(), which holds 512"
        raise InputError(what, where=where_of(owner, found[MAX_PARAMS].name), hint=hint)


def _check_constant(kind: type[Policy], name: str, value: Any, words: tuple[str, ...] | None) -> None:
    """A constant is a number, or one of its words."""
    if words:
        if value in words:
            return
        near = nearest(str(value), words)
        hint = f"did you mean {near!r}?" if near else f"one of {', '.join(words)}"
    elif isinstance(value, Real) and not math.isnan(float(value)):
        return
    else:
        hint = "a constant is a number; words come from berth.schedule.policies.constant.word"
    raise InputError(f"{kind.__name__}: constant {name} is {value!r}", where=where_of(kind, name), hint=hint)
