"""A policy's functions in plain Python: where they can't be compiled, and to find out why one failed.

Nothing can be raised through compiled code. A call that raises, or returns what can't be used, leaves its
arguments in the run's own record of constants and an idle answer behind; so do all later calls. At the next
halt `raise_failure` makes the same call once more, in plain Python, and raises what is wrong with its line. A call
that exceeded a limit (limits.py) is not made again: it left the place where it was stopped.
"""

from __future__ import annotations

import ctypes
import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
from numba import types

from berth.errors import InputError
from berth.native.kernels import FunctionPointer
from berth.schedule import limits
from berth.schedule.checks import own_place
from berth.schedule.copies import copied, place_of_site
from berth.schedule.elements import elements_of
from berth.schedule.policy import SIGNATURES, WITH_CLUSTER, Names, Policy, names_of, takes_cluster
from berth.schedule.records import CLUSTER, JOB, MAX_TIERS, WAIT_STATS, Array
from berth.schedule.sealed import View
from berth.schedule.source import is_own, place_of

HOOKS = tuple(SIGNATURES)
HOOK_BITS = 4  # of `failed`: 1 + the hook's number; above them what `limits.stopped` returned
IDLE = {types.float64: math.inf, types.int64: 0}  # the answers after a failure, until the run stops
RAISED = "raised by the policy"
_UNTIMED = ""
_FINITE = "order", "tie_break"  # infinities would tie with each other, or hide behind them
_RANGES: dict[
    str, tuple[int, str]
] = {  # the largest answer of hooks that return a whole number, and what it is
    "spread": (1, "0 or 1"),
    "allowed_tier": (MAX_TIERS - 1, f"a tier from 0 to {MAX_TIERS - 1}, such as job.widest_tier"),
}
_C_TYPES: dict[Any, Any] = {types.float64: ctypes.c_double, types.int64: ctypes.c_int64}
_raised: dict[int, BaseException] = {}  # by the address of a run's record of constants


def function_of(kind: type[Policy], hook: str) -> Any:
    """The function of a policy that answers to a hook."""
    owner = next(base for base in kind.__mro__ if hook in vars(base))
    return vars(owner)[hook].__func__


def constants_from(params: tuple[tuple[str, type], ...], record: Any) -> Any:
    """`params`, out of the record that compiled code reads."""
    made: Any = namedtuple("My", [name for name, _ in params] or ["nothing"])  # type: ignore[misc]
    values = [_constant(name, kind, record, i) for i, (name, kind) in enumerate(params)]
    return made._make(values or [0.0])


def _constant(name: str, kind: type, record: Any, index: int) -> Any:
    if kind is not Sequence:
        value = record["value"][index]
        return value if kind is float else kind(int(value))
    table = elements_of(record["table"], f"params.{name}")
    table.flags.writeable = False
    return table


def wrong_answer(hook: str, answer: Any) -> str | None:
    """What is wrong with a hook's answer; None: nothing."""
    number = isinstance(answer, Real | np.bool_)
    if hook == "update":
        number, answer = answer is None, 0.0
    if SIGNATURES[hook].return_type == types.int64:
        if not number or not isinstance(answer, Integral | np.bool_):
            return "it must return a whole number"
        most, what = _RANGES[hook]
        return None if 0 <= int(answer) <= most else f"it must return {what}"
    if not number:
        return "it must not return a value" if hook == "update" else "it must return a number"
    if math.isnan(answer):
        return "it must not be NaN"
    if hook in _FINITE and math.isinf(answer):
        return "it must return a finite number"
    return "a timer can't be negative" if hook == "observe" and answer < 0.0 else None


def interpreted(function: Callable[..., Any], names: Names, hook: str) -> FunctionPointer:
    """A Python function behind the same kind of address as a compiled one, which hands records over as pointers."""
    signature = SIGNATURES[hook]
    readers = [_reader(kind) for kind in signature.args]
    plain, idle = plain_function(function), IDLE[signature.return_type]

    def call(*arguments: Any) -> Any:
        values = [read(argument) for read, argument in zip(readers, arguments, strict=True)]
        record = values.pop()
        if record["failed"]:
            return idle
        before = [value.copy() if isinstance(value, np.void) else value for value in values]
        try:
            answer = plain(*_given(function, hook, values, names, record))
            if wrong_answer(hook, answer) is None:
                return 0.0 if hook == "update" else answer
        except BaseException as error:  # noqa: BLE001 - nothing may pass through compiled code
            _raised[arguments[-1]] = error
        _leave(record, hook, before)
        return idle

    kinds = [_C_TYPES.get(kind, ctypes.c_void_p) for kind in signature.args]
    callback = ctypes.CFUNCTYPE(_C_TYPES[signature.return_type], *kinds)(call)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return FunctionPointer(address, signature, callback)


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in plain Python; a user's raises `LimitError` where it exceeds a limit."""
    plain = _plain(function)
    return (lambda *arguments: limits.Watch(plain).call(*arguments)) if is_own(function) else plain


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast(Callable[..., Any], copied(function, lambda copy: copy, limits.bounded_range))


def _given(function: Any, hook: str, values: list[Any], names: Names, record: Any) -> list[Any]:
    """What a hook is called with, out of the arguments that compiled code has for it."""
    state, writable = names.state, hook == "update"
    views = [View(value, state, writable) if isinstance(value, np.void) else value for value in values]
    last = [views.pop()] if hook in WITH_CLUSTER else []
    return [*views, constants_from(names.params, record), *(last if takes_cluster(function) else [])]


def _leave(record: Any, hook: str, values: list[Any]) -> None:
    """Writes down a call that failed."""
    record["failed"] = -1 - HOOKS.index(hook)
    numbers = [value for value in values if not isinstance(value, np.void)]
    record["failed_with"][: len(numbers)] = numbers
    for name, value in zip(
        record_slots(hook), (value for value in values if isinstance(value, np.void)), strict=True
    ):
        record[name] = np.frombuffer(value.tobytes(), np.int64)


def record_slots(hook: str) -> list[str]:
    """Where the records that a hook is called with are kept."""
    if hook == "observe":
        return ["failed_stats"]
    second = {"cost": ["failed_other"]} | {name: ["failed_cluster"] for name in WITH_CLUSTER}
    return ["failed_job", *second.get(hook, [])]


def _reader(kind: Any) -> Callable[[Any], Any]:
    """How an argument of compiled code becomes a Python value: a pointer becomes a record."""
    if kind in _C_TYPES:
        return lambda value: value
    memory: Any = ctypes.c_char * kind.dtype.itemsize
    return lambda address: np.frombuffer(memory.from_address(address), kind.dtype)[0]


def failure_of(policy: Policy, params: Array, name_of: Callable[[int], str]) -> str | None:
    """What went wrong in a function of the policy, in one line and without the time; None: nothing."""
    code = int(params[0]["failed"])
    if not code:
        return None
    about = _about(HOOKS[abs(code) % (1 << HOOK_BITS) - 1], params[0], name_of, _UNTIMED)
    try:
        raise_failure(policy, params, name_of, _UNTIMED)
    except InputError as error:
        return f"{error.where}: {error.what}" if error.where else error.what
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of a user's function
        place = own_place(error, type(policy)) or type(policy).__name__
        return f"{place}: {error or type(error).__name__}{about}"
    raise AssertionError("a call that failed is made again, and raises")


def raise_failure(
    policy: Policy, params: Array, name_of: Callable[[int], str] = str, moment: str = " at {:g} s"
) -> None:
    """Raises what went wrong in a function of the policy, if anything did; `name_of` a job by its row."""
    record = params[0]
    code = int(record["failed"])
    if not code:
        return
    hook = HOOKS[abs(code) % (1 << HOOK_BITS) - 1]
    raised = _raised.pop(params.ctypes.data, None) if code < 0 else None
    record["failed"] = 0
    if code >> HOOK_BITS > 0:
        site, why = limits.site_and_limit(code >> HOOK_BITS)
        raised = limits.LimitError(why, place_of_site(function_of(type(policy), hook), site))
    if isinstance(raised, limits.LimitError):
        raise limit_exceeded(policy, hook, _about(hook, record, name_of, moment), raised)
    if raised is not None:
        raise _placed(raised, policy)
    _call_again(policy, hook, record, _about(hook, record, name_of, moment))


def limit_exceeded(policy: Policy, hook: str, about: str, error: limits.LimitError) -> InputError:
    """What to say about a call that exceeded a limit."""
    hint = "a hook is called for every job at every event: bound its loops, and what they keep"
    return InputError(f"{type(policy).__name__}.{hook}{about} {error}", where=error.place, hint=hint)


def _call_again(policy: Policy, hook: str, record: Any, about: str) -> None:
    """Makes the call that failed once more, and raises what is wrong with it."""
    kind = type(policy)
    function = function_of(kind, hook)
    values = _arguments(
        hook, [_kept(record, name) for name in record_slots(hook)], list(record["failed_with"])
    )
    given = _given(function, hook, values, names_of(kind), record)
    watch = limits.Watch(_plain(function))
    with np.errstate(all="ignore"):
        try:
            answer = watch.call(*given)
        except limits.LimitError as error:
            what = f"{kind.__name__}.{hook}{about} fails when compiled; interpreted, to find the line, it {error}"
            raise InputError(what, where=error.place) from None
        except Exception as error:
            _placed(error, policy)
            raise
    wrong = wrong_answer(hook, answer)
    if wrong is None:
        wrong = f"compiled it fails, and interpreted it returns {answer!r}"
    else:
        about = f" returned {answer!r}{about}"
    file = place_of(function).rpartition(":")[0]
    raise InputError(f"{kind.__name__}.{hook}{about}: {wrong}", where=f"{file}:{watch.line}")


def _kept(record: Any, name: str) -> Any:
    kind = {"failed_stats": WAIT_STATS, "failed_cluster": CLUSTER}.get(name, JOB)
    return np.frombuffer(bytearray(record[name].tobytes()), kind)[0]


def _arguments(hook: str, records: list[Any], numbers: list[float]) -> list[Any]:
    """The arguments in their order, without the constants."""
    found = []
    for kind in SIGNATURES[hook].args[:-1]:
        if kind in _C_TYPES:
            number = float(numbers.pop(0))
            found.append(number if kind == types.float64 else int(number))
        else:
            found.append(records.pop(0))
    return found


def _about(hook: str, record: Any, name_of: Callable[[int], str], moment: str) -> str:
    """Which job was asked about, and when."""
    numbers = _arguments(hook, [None] * len(record_slots(hook)), list(record["failed_with"]))
    job = "" if hook == "observe" else f" for job {name_of(int(_kept(record, 'failed_job')['id']))}"
    now = [number for number in numbers if number is not None][-1]
    return job + moment.format(now)


def _placed(error: BaseException, policy: Policy) -> BaseException:
    """The error, with a note of where a user's policy raised it."""
    place = own_place(error, type(policy))
    if is_own(type(policy)) and isinstance(error, Exception):
        error.add_note(f"{RAISED} {type(policy).__name__}, {place or type(policy).__module__}")
    return error
