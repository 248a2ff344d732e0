"""The program that runs a `Trainer` in processes of its own: `python -m berth.train.run_program FOLDER`.

Without a rank it launches itself in every worker; with one it is that worker. Rank 0 writes the result.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from berth.errors import INTERRUPTED, BerthError, DivergedError, InputError
from berth.train import run_processes as files
from berth.train.callbacks import EventPipe
from berth.train.launch import PROGRAM
from berth.train.rendezvous import rank_from_environment

_PDEATHSIG = 1


def main() -> int:
    """Run this process's part; returns the exit code."""
    folder = Path(sys.argv[1])
    rank_info = rank_from_environment()
    reports = rank_info is None or rank_info.rank == 0
    if rank_info is None:
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)  # save and stop if the caller is killed
    try:
        return _run(folder, reports)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BerthError as error:
        if reports:
            _write(folder / files.ERROR, _document(error))
        else:
            print(f"error: {error}", file=sys.stderr)  # to the log of this worker
        return error.exit_code
    except Exception:  # noqa: BLE001 - of the user's code, raised again by the caller
        if reports:
            _write(folder / files.ERROR, {"traceback": traceback.format_exc()})
        traceback.print_exc()
        return 1


def _run(folder: Path, reports: bool) -> int:
    arguments, rest = _arguments(folder)
    from berth.train.trainer import Trainer
    from berth.train.worker import exit_if_peer_lost

    pipe = EventPipe(folder / files.EVENTS, rest["events"]) if reports else None
    notify: Callable[[str], None] = print if pipe is None else lambda text: pipe.send(files.NOTICE, text)
    trainer = Trainer(**{**arguments, **rest["options"]}, notify=notify, callbacks=pipe)
    command = [sys.executable, "-m", PROGRAM, str(folder)]
    session = trainer.start(rest["goal"], command)
    if isinstance(session, int):
        return session
    with ExitStack() as stack:
        stack.callback(session.close)
        stack.enter_context(exit_if_peer_lost(session.rank_info, notify))
        result = session.run(rest["goal"])
        if reports:
            document = {name: getattr(result, name) for name in result.__slots__ if name != "model"}
            for name in ("evaluation", "best"):
                document[name] = document[name] and document[name].to_json()
            _write(folder / files.RESULT, document)
    return 0


def _arguments(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the trainer's arguments, after importing the script that defines some of them."""
    how = json.loads((folder / files.MAIN).read_text())
    sys.path[:], sys.argv[:] = how["path"], how["argv"]
    if how["main"] is not None:
        files.importing_main = True
        _import_main(how["main"])
        files.importing_main = False
    with (folder / files.ARGUMENTS).open("rb") as file:
        return pickle.load(file), pickle.load(file)


def _import_main(how: dict[str, str]) -> None:
    """Import the caller's script under another name, so that what is below its main guard does not run."""
    module = ModuleType("__mp_main__")
    if "name" in how:
        found = runpy.run_module(how["name"], run_name="__mp_main__", alter_sys=True)
    else:
        found = runpy.run_path(how["path"], run_name="__mp_main__")
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _document(error: BerthError) -> dict[str, Any]:
    if not isinstance(error, InputError):
        return {"what": str(error), "where": None, "hint": None, "diverged": False}
    diverged = isinstance(error, DivergedError)
    return {"what": error.what, "where": error.where, "hint": error.hint, "diverged": diverged}


def _write(path: Path, document: dict[str, Any]) -> None:
    """Write a file at once: the caller may read it while this process is killed."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document))
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
