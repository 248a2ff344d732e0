"""The command line: all commands, and error handling."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

import typer

from berth.cli.commands import NAMES, build
from berth.errors import BerthError
from berth.extras import MODULES, missing
from berth.report.terminal import printable

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer vendors click, or depends on it
BAD_INPUT, CLOSED_PIPE = 2, 141
OTHER_NAMES = {
    **dict.fromkeys(("status", "ps", "ls", "list", "jobs", "squeue"), "queue"),
    **dict.fromkeys(("run", "sbatch", "srun"), "submit"),
    **dict.fromkeys(("kill", "stop", "scancel", "delete"), "cancel"),
    **dict.fromkeys(("machines", "sinfo"), "nodes"),
    **dict.fromkeys(("start", "serve"), "up"),
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def __getattr__(name: str) -> Any:
    """`app`, with every command, is built when it is first asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = found = build()
    return found


def main() -> None:
    """Run the command line: invalid input gives one message and exit code 2, never a traceback."""
    _ready_streams()
    try:
        code = _run()
    except (BrokenPipeError, SystemExit) as left:
        if isinstance(left, SystemExit) and not isinstance(left.__context__, BrokenPipeError):
            raise
        _drop(sys.stdout, sys.stderr)  # the reader (head, less) has exited; rich and typer would exit with 1
        code = CLOSED_PIPE
    sys.exit(code)


def _run() -> int:
    """Run the command and return its exit code."""
    try:
        code = _app()(prog_name="berth", standalone_mode=False)
        sys.stdout.flush()  # here, where a full disk or a closed pipe is handled
    except BrokenPipeError:
        raise
    except Exception as error:
        message = _user_message(error)
        if message is None or "--debug" in sys.argv:
            raise
        if message:
            typer.echo(f"error: {printable(message)}", err=True)
        return error.exit_code if isinstance(error, BerthError) else BAD_INPUT
    return code if isinstance(code, int) else 0


def _app() -> typer.Typer:
    """The app with the command that was called alone: the others, and what they import, would double its start."""
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    one = asked in NAMES and "_BERTH_COMPLETE" not in os.environ
    return build(asked) if one else __getattr__("app")


def _ready_streams() -> None:
    """Replace characters that the terminal can't show by `?`; replace closed streams by /dev/null."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop(*streams: TextIO) -> None:
    """Discard buffered output."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _user_message(error: Exception) -> str | None:
    """The message for an error that the user can fix; empty if already shown; None for a bug in berth."""
    if isinstance(error, BerthError):
        return str(error)
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, ModuleNotFoundError) and error.name in MODULES:
        return str(missing(error.name, _verb()))
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _FULL:
        _drop(sys.stdout)
        return f"the output can't be written: {error.strerror}"
    place = _in_own_policy(error)
    return None if place is None else f"{type(error).__name__}: {error}\n  {place}"


def _verb() -> str:
    """The command that was called, without its arguments: `berth train`."""
    words = (word for word in sys.argv[1:] if not word.startswith("-"))
    return f"berth {next(words, '')}".rstrip()


def _usage(error: Any) -> str:
    """The message of a usage error of typer."""
    context = error.ctx
    near = getattr(error, "possibilities", None)
    text = error.message if near else error.format_message()
    if not text:
        return ""  # a group without a command has shown its help
    text, _, meant = f"{text[:1].lower()}{text[1:]}".removesuffix(".").partition(". Did you mean ")
    meant = meant or (f"{' or '.join(near)}?" if near else "")
    meant = meant or _other_name(text)
    hints = [f"did you mean {meant}"] if meant else []
    hints += _example(context) if text.startswith("missing ") else []
    hints += [f"see {_path(context)} --help"] if context is not None else []
    return "\n  ".join([text.replace(": Input should", ": should"), *hints])


def _other_name(text: str) -> str:
    """Return the command that is meant by its first letters or by its name in other schedulers."""
    _, _, word = text.partition("no such command ")
    word = word.strip("'")
    begun = [name for name in sorted(NAMES) if len(word) > 1 and name.startswith(word)]
    found = OTHER_NAMES.get(word) or (begun[0] if len(begun) == 1 else None)
    return f"{found!r}?" if found else ""


def _example(context: Any) -> list[str]:
    """The first example of the command that was called."""
    lines = (context.command.epilog or "").splitlines() if context is not None else []
    return [f"example: {line.strip()}" for line in lines if line.strip().startswith("berth ")][:1]


def _path(context: Any) -> str:
    """`berth plan check`, without the arguments that a group may take before its command."""
    words = [word for word in context.command_path.split() if not word.startswith("[")]
    return " ".join(words)


def _in_own_policy(error: Exception) -> str | None:
    """The position in a user's policy that raised the error; None if it is a bug in berth."""
    notes = getattr(error, "__notes__", [])
    if not notes:
        return None
    from berth.schedule.failures import RAISED

    return next((note for note in notes if note.startswith(RAISED)), None)


if __name__ == "__main__":
    main()
