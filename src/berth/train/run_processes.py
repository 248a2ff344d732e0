"""Run a `Trainer` in processes of its own: the side of the caller.

The trainer's arguments are pickled to a private folder. A program (`run_program`) reads them, launches the processes,
and reports events through a named pipe; see docs/design/training.md.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from berth.errors import INTERRUPTED, BerthError, DivergedError, InputError
from berth.train.callbacks import notify_all, wanted_events
from berth.train.evaluate import Evaluation
from berth.train.interruption import Interruption, Stopped
from berth.train.launch import PROGRAM

ARGUMENTS, MAIN, EVENTS, RESULT, ERROR = (
    "arguments.pickle",
    "main.json",
    "events",
    "result.json",
    "error.json",
)
NOTICE = "notice"
_MAIN_NAME = b"__main__"
_POLL_S = 0.2
importing_main = False  # while a worker imports the caller's script


def pickled(arguments: Mapping[str, Any]) -> bytes:
    """Return the arguments of a trainer as bytes; raises for what other processes can't import."""
    try:
        payload = pickle.dumps(arguments)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _not_importable(_unpicklable(arguments), str(error)) from None
    if _MAIN_NAME in payload and _main_module() is None:
        part = next(name for name, value in arguments.items() if _MAIN_NAME in pickle.dumps(value))
        raise _not_importable(part, "it is defined in a notebook or by `python -c`, which has no file")
    return payload


def run(
    payload: bytes,
    options: Mapping[str, Any],
    goal: int | None,
    *,
    callbacks: Sequence[Any],
    notify: Callable[[str], None],
) -> dict[str, Any]:
    """Run the program to its end; returns the fields of the result."""
    if importing_main:
        raise InputError(
            "a worker imports the script that defines the model, and the script starts training again",
            hint='put what starts it below `if __name__ == "__main__":`',
        )
    with tempfile.TemporaryDirectory(prefix="berth-run-") as name:
        folder = Path(name)
        more = pickle.dumps({"options": options, "goal": goal, "events": wanted_events(callbacks)})
        (folder / ARGUMENTS).write_bytes(payload + more)
        main = _main_module() if _MAIN_NAME in payload else None
        (folder / MAIN).write_text(json.dumps({"main": main, "path": sys.path, "argv": sys.argv}))
        os.mkfifo(folder / EVENTS, 0o600)
        notices: list[str] = []

        def handle(event: str, data: Any) -> None:
            if event == NOTICE:
                notices.append(data)
                notify(data)
            else:
                notify_all(callbacks, event, data)

        code = _run_program(folder, handle)
        if code == 0:
            return _result(json.loads((folder / RESULT).read_text()))
        raise _failure(folder, code, notices)


def _run_program(folder: Path, handle: Callable[[str, Any], None]) -> int:
    """Start the program, handle its events until it ends, and forward requests to stop; returns its exit code."""
    pipe = os.open(folder / EVENTS, os.O_RDWR | os.O_NONBLOCK)  # also as a writer, so that it never ends
    command = [sys.executable, "-m", PROGRAM, str(folder)]
    try:
        with Interruption() as interruption:
            process = subprocess.Popen(command, process_group=0)  # Ctrl-C is forwarded, once
            try:
                forwarded, rest = False, b""
                while process.poll() is None:
                    if interruption.requested and not forwarded:
                        forwarded = True
                        process.send_signal(signal.SIGINT if interruption.by_keyboard else signal.SIGTERM)
                    rest = _handle_events(pipe, rest, handle, _POLL_S)
                _handle_events(pipe, rest, handle, 0.0)
            finally:
                process.kill()  # after an exception; its processes end with it
                process.wait()
            return process.returncode
    finally:
        os.close(pipe)


def _handle_events(pipe: int, rest: bytes, handle: Callable[[str, Any], None], wait_s: float) -> bytes:
    """Handle the events in the pipe; returns the beginning of one that is not complete."""
    while select.select([pipe], [], [], wait_s)[0]:
        *lines, rest = (rest + os.read(pipe, 1 << 16)).split(b"\n")
        for line in lines:
            handle(*json.loads(line))
        wait_s = 0.0
    return rest


def _result(document: dict[str, Any]) -> dict[str, Any]:
    for name in ("evaluation", "best"):
        document[name] = document[name] and Evaluation.from_json(document[name])
    return document


def _failure(folder: Path, code: int, notices: list[str]) -> BaseException:
    """Return the exception of a run that failed."""
    if (folder / ERROR).exists():
        error = json.loads((folder / ERROR).read_text())
        if "traceback" in error:
            return RuntimeError(f"a worker failed:\n{error['traceback']}")
        kind = DivergedError if error["diverged"] else InputError
        return kind(error["what"], where=error["where"], hint=error["hint"])
    if code == INTERRUPTED and (folder / RESULT).exists():
        return Stopped(json.loads((folder / RESULT).read_text())["step"], saved=True)
    if code == INTERRUPTED:
        return KeyboardInterrupt()
    return BerthError(notices[-1] if notices else f"the run ended with exit code {code}")


def _main_module() -> dict[str, str] | None:
    """Return how to import the caller's script: by its module name (`python -m`) or path; None if it has no file."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return {"name": spec.name.removesuffix(".__main__") if spec.name.endswith(".__main__") else spec.name}
    path = getattr(main, "__file__", None)
    return {"path": os.path.abspath(path)} if path and Path(path).is_file() else None


def _unpicklable(arguments: Mapping[str, Any]) -> str:
    for name, value in arguments.items():
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError):
            return name
    return "model"


def _not_importable(part: str, reason: str) -> InputError:
    return InputError(
        f"{part} can't be passed to other processes: {reason}",
        hint="define it at the top level of a module or script and import it, or name a model as path.py:make_model",
    )
