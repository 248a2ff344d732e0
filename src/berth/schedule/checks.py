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
from enum import IntEnum
from numbers import Real
from pathlib import Path
from typing import Any

from berth.errors import InputError, nearest
from berth.schedule import rules as forms
from berth.schedule.lint import Roles, check_hook
from berth.schedule.policy import (
    SIGNATURES,
    WITH_CLUSTER,
    Policy,
    Rules,
    array_names,
    constant_fields,
    constant_type,
    names_of,
    ranks_by_cluster,
    state_of,
    takes_cluster,
)
from berth.schedule.records import MAX_PARAMS, RENAMED, STATE_SLOTS
from berth.schedule.source import class_line, is_own, place_of
from berth.schedule.views import JobView

_METHODS = ("rules", "timers", "prepare", "constants")  # of a policy, beside its hooks
_ROLES = {"job": "job", "victim": "job", "stats": "stats", "params": "params", "cluster": "cluster"}
_passed: set[type[Policy]] = set()
_KEYWORD = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


def check_policy(policy: Policy) -> None:
    """Refuses a policy whose class, constants or rules can't be used."""
    kind = type(policy)
    check_class(kind)
    for field in constant_fields(kind):
        _check_constant(kind, field.name, getattr(policy, field.name), constant_type(field))
    rules_of(policy)


def check_class(kind: type[Policy]) -> None:
    """Refuses a class with names that berth does not know, or with functions that can only go wrong."""
    if kind in _passed:
        return
    for owner in (base for base in kind.__mro__ if issubclass(base, Policy) and is_own(base)):
        _check_fields(owner)
        for name in vars(owner):
            _check_name(owner, name)
        if "Job" in vars(owner):
            _check_state(owner)
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
    if ranks_by_cluster(kind):
        _check_order_by_cluster(kind, rules)
    return rules


def _check_order_by_cluster(kind: type[Policy], rules: Rules) -> None:
    """Refuses rules that an order by totals can't keep: totals change whenever a job starts or ends."""
    if isinstance(rules.preempt, forms.PreemptByOrder):
        why, form = "can't preempt: a job that starts would go later at once", "PreemptByOrder"
    elif rules.order is not None:
        why, form = "is not static: it changes whenever a job starts or ends", "StaticOrder"
    else:
        return
    what = f"{kind.__name__}: an order by `cluster` {why}"
    raise InputError(what, where=where_of(kind, "rules"), hint=f"leave {form} out of the rules")


def _unknown_rule(error: Exception) -> tuple[str, str] | None:
    """What to say where a rule is misspelt."""
    found = _KEYWORD.search(str(error))
    kind = getattr(forms, found[1], None) if found else None
    if found is None or kind is None:
        return None
    name, known = found[2], [field.name for field in fields(kind)]
    moved = forms.MOVED.get(name) if kind is Rules else None
    near = moved or RENAMED.get(name) or nearest(name, known)
    hint = f"did you mean {near!r}?" if near else "docs/guides/policies.md lists the rules"
    if moved:
        hint = f"write Rules({moved})"
    return f"there is no rule {name!r}" if kind is Rules else f"{found[1]} has no {name!r}", hint


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
    given = [*wanted.parameters, *(["cluster"] if takes_cluster(function) else [])]
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        hint = f"write def {hook}({', '.join(wanted.parameters)}):"
        raise InputError(f"{name}: {error}", where=place_of(function), hint=hint) from error
    last = [*inspect.signature(function).parameters][-1]
    if takes_cluster(function) and (hook not in WITH_CLUSTER or last != "cluster"):
        hooks = f"{', '.join(WITH_CLUSTER[:-1])} or {WITH_CLUSTER[-1]}"
        raise InputError(f"{name}: cluster is the last parameter, of {hooks}", where=place_of(function))
    if not is_own(function):
        return  # one of berth's own, under a name of the user's
    check_hook(hook, function, _roles(function, wanted), names_of(kind))


def _roles(function: Any, wanted: inspect.Signature) -> Roles:
    """What the function's own names for its arguments stand for."""
    given = zip(inspect.signature(function).parameters, [*wanted.parameters, "cluster"], strict=False)
    return tuple((own, _ROLES[name]) for own, name in given if name in _ROLES)


def _check_fields(owner: type[Policy]) -> None:
    """A class with constants is a dataclass, with names that nothing else has, and not too many of them."""
    if inspect.get_annotations(owner) and not (is_dataclass(owner) and "__dataclass_fields__" in vars(owner)):
        what = f"{owner.__name__!r} has constants but is not a dataclass"
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
        hint = "put numbers into an array(), which holds 512"
        raise InputError(what, where=where_of(owner, found[MAX_PARAMS].name), hint=hint)
    if len(arrays := array_names(owner)) > 1:
        raise InputError(f"{owner.__name__} has more than one array()", where=where_of(owner, arrays[1]))


def _check_state(owner: type[Policy]) -> None:
    """The policy's `Job` adds numbers to those of `JobView`, not too many, and `update` sets them."""
    where = where_of(owner, "Job")
    if not isinstance(owner.Job, type) or JobView not in owner.Job.__mro__:
        raise InputError(f"{owner.__name__}.Job is not a subclass of JobView", where=where)
    state = state_of(owner)
    for name, kind in state:
        if kind not in (int, float):
            raise InputError(f"{owner.__name__}.Job.{name} must be an int or a float", where=where)
        if name in inspect.get_annotations(JobView) or hasattr(owner.Job, name):
            why = "every job has it" if name in inspect.get_annotations(JobView) else "it begins at 0"
            raise InputError(f"{owner.__name__}.Job.{name} can't be set here: {why}", where=where)
    if len(state) > STATE_SLOTS:
        raise InputError(
            f"{owner.__name__}.Job has {len(state)} fields, and at most {STATE_SLOTS} fit", where=where
        )
    if state and owner.update is Policy.update:
        hint = "write @staticmethod above `def update(job, now, params):`"
        raise InputError(f"{owner.__name__}.Job has fields that no `update` sets", where=where, hint=hint)


def _check_constant(kind: type[Policy], name: str, value: Any, wanted: type) -> None:
    """A constant is a number, a bool, or a member of an IntEnum."""
    if issubclass(wanted, IntEnum):
        if isinstance(value, wanted):
            return
        near = nearest(str(value).upper(), wanted.__members__) or next(iter(wanted.__members__))
        hint = f"write {wanted.__name__}.{near}"
    elif isinstance(value, Real) and not math.isnan(float(value)):
        return
    else:
        hint = "a constant is a number, a bool, or a member of an IntEnum"
    raise InputError(f"{kind.__name__}: constant {name} is {value!r}", where=where_of(kind, name), hint=hint)
