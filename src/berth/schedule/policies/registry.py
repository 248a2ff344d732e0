"""Policies by name, with their constants: `fifo`, `dally:mode=manual,machine=12h`, `mine.py:MyPolicy:k=2`."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from berth.errors import InputError, UnknownNameError, nearest
from berth.schedule.checks import check_class, check_policy, own_place
from berth.schedule.policies.berth import Berth
from berth.schedule.policies.constant import Constant, constants_of, parse_constants
from berth.schedule.policies.dally import Dally
from berth.schedule.policies.fifo import Easy, Fifo, FitFirst
from berth.schedule.policies.gandiva import Gandiva
from berth.schedule.policies.lwf import Lwf
from berth.schedule.policies.optimus import Optimus
from berth.schedule.policies.preferences import Preferred, Required, Switches
from berth.schedule.policies.shortest import Sjf, Srsf, Srtf
from berth.schedule.policies.themis import Themis
from berth.schedule.policies.tiresias import Gittins, Tiresias
from berth.schedule.policy import Policy
from berth.schedule.source import class_line

_IN_FILE = re.compile(r"(.+?\.py)(?::(.*))?", re.DOTALL)
_KNOWN: dict[str, type[Policy]] = {
    "berth": Berth,
    "fifo": Fifo,
    "fit-first": FitFirst,
    "easy": Easy,
    "sjf": Sjf,
    "srtf": Srtf,
    "srsf": Srsf,
    "preferred": Preferred,
    "required": Required,
    "switches": Switches,
    "tiresias": Tiresias,
    "gittins": Gittins,
    "gandiva": Gandiva,
    "themis": Themis,
    "optimus": Optimus,
    "lwf": Lwf,
    "dally": Dally,
}


@dataclass(frozen=True, slots=True)
class Description:
    """A policy as a list of policies shows it."""

    name: str
    summary: str
    constants: tuple[Constant, ...]


def policy_names() -> tuple[str, ...]:
    """The policies that come with berth."""
    return tuple(_KNOWN)


def describe(name: str) -> Description:
    """What a policy does and what can be set in it; `name` as for `load_policy`, without constants."""
    kind, _ = _find(name)
    lines = (kind.__doc__ or "").strip().splitlines()
    return Description(name, lines[0] if lines else "", constants_of(kind))


def load_policy(text: str) -> Policy:
    """The policy that `text` names, with the constants it gives."""
    kind, rest = _find(text.strip())
    given = parse_constants(kind, text.removesuffix(rest).rstrip(":"), rest)
    try:
        policy = kind(**given)
    except InputError:
        raise
    except Exception as error:
        where = own_place(error, kind) or f"{inspect.getsourcefile(kind)}:{class_line(kind)}"
        raise InputError(f"{kind.__name__}: {type(error).__name__}: {error}", where=where) from error
    check_policy(policy)
    return policy


def anchored(text: str) -> str:
    """The same name of a policy from every folder: that of a file becomes absolute."""
    if match := _IN_FILE.fullmatch(text.strip()):
        return str(Path(match[1]).absolute()) + text.strip()[match.end(1) :]
    return text


def _find(text: str) -> tuple[type[Policy], str]:
    """The class, and the text after its name."""
    if match := _IN_FILE.fullmatch(text):
        file, rest = match[1], match[2] or ""
        name, _, constants = rest.partition(":")
        if "=" in name:  # mine.py:weight=2, where the file holds one policy
            name, constants = "", rest
        return _from_file(Path(file), name), constants
    name, _, constants = text.partition(":")
    if name not in _KNOWN:
        raise UnknownNameError("policy", name, _KNOWN)
    return _KNOWN[name], constants


def _from_file(path: Path, name: str) -> type[Policy]:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}", hint="write path/to/mine.py:MyPolicy")
    module = _imported(path)
    found = vars(module)
    own = sorted(
        key for key, value in found.items() if _is_policy(value) and value.__module__ == module.__name__
    )
    if not name and len(own) == 1:
        name = own[0]
    if not name:
        choices = " or ".join(f"{path}:{one}" for one in own)
        hint = f"write {choices}" if own else "derive a class from berth.schedule.Policy"
        raise InputError(f"{path} does not say which policy", hint=hint)
    if name not in found:
        near = nearest(name, own)
        where = f"{path}:{inspect.getsourcelines(found[near])[1]}" if near else str(path)
        raise UnknownNameError("policy", name, own, where=where)
    kind = found[name]
    if not _is_policy(kind):
        raise InputError(f"{name!r} is not a subclass of Policy", where=str(path))
    check_class(kind)
    return kind


def _is_policy(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Policy)


def _imported(path: Path) -> ModuleType:
    """Runs the user's file; an error in it is reported with its line."""
    source = path.read_bytes()
    digest = hashlib.sha256(str(path.resolve()).encode() + source).hexdigest()[:12]
    name = f"berth_policy_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        # not by the import system: its byte code is stale after an edit within the same second
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, ValueError) and b"\0" in source:  # what Python before 3.11.4 says to that
            error = SyntaxError(str(error))
        said = error.msg if isinstance(error, SyntaxError) else error
        hint = (
            "write @dataclass(frozen=True) above the class" if "non-frozen dataclass" in str(said) else None
        )
        raise InputError(f"{type(error).__name__}: {said}", where=_where(error, path), hint=hint) from error
    return module


def _where(error: BaseException, path: Path) -> str:
    """file:line of the user's own code."""
    if isinstance(error, SyntaxError):
        return f"{path}:{error.lineno or 1}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    return f"{path}:{own[-1].lineno}" if own else str(path)
