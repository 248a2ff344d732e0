"""The members of a gang on one machine: started together, watched, and ended together."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .processes import children_of, descendants_of, prepare_child, resident_bytes, send_signal, with_token

POLL_S = 0.25
PLAN = "plan.yaml"  # the plan that the job runs, in its attempt's folder
GATHER_S = 120.0  # for all parts of a gang to start
# errors of a start that another start on this machine would have too
LASTING = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ENOEXEC,
    errno.E2BIG,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LOGNAME", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class CommandError(Exception):
    """The command can't be started on this machine, and another attempt here would not change that."""


class Part:
    """The members of a gang on one machine."""

    def __init__(self, folder: Path, machine: str, devices: str = "", lifeline: str = "") -> None:
        self.folder = folder
        self.lifeline = int(lifeline) if lifeline else None
        self.launch: dict[str, Any] = json.loads((folder / "launch.json").read_text())
        members = self.launch["members"]
        self.members = [member for member in members if machine in ("", member["machine"])]
        self.parts = [""] if machine == "" else list(dict.fromkeys(member["machine"] for member in members))
        self.machine = machine
        numbers = sorted(number for member in self.members for number in member["devices"])
        names = devices.split(",")  # of this machine, if they match in number
        self.given = dict(zip(numbers, names, strict=True)) if devices and len(names) == len(numbers) else {}
        self.name = f"part-{self.parts.index(machine)}"
        self.signalled = False  # SIGTERM or SIGINT has come
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.codes: dict[int, int] = {}
        self.code = 0  # of the first that failed
        self.cause: str | None = None  # of its end, as in `lifecycle.Cause`

    def run(self) -> None:
        """Run the part from its first report to its last."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        outcome: dict[str, Any] = {}
        stopped = False
        if self._gather():
            try:
                self._start()
            except CommandError as error:
                outcome["error"] = str(error)
                self._could_not_start("command-error", str(error))
            except OSError as error:
                outcome["error"] = str(error)
                self._could_not_start("exit", str(error))
            else:
                try:
                    self._watch()
                except OSError as error:
                    outcome["error"] = str(error)
                    self.code, self.cause = self.code or 127, self.cause or "exit"
                    self._fail()
            stopped = self._cut_short()
            if stopped:
                self.cause = self.cause or "stopped"
                if not (self.folder / "stop").exists():
                    self._fail()  # stopped by others: the gang can't go on without it
            self._end_all()
        elif self.stopping():
            stopped, self.cause = True, "stopped"
        elif not self._failed():
            outcome["lost"], outcome["error"] = True, "not all parts of the gang started"
            self.cause = "not-started"
        if self._fenced():
            outcome["lost"], self.cause = True, "supervisor-lost" if self._orphaned() else "node-lost"
            self._fail()
        outcome |= {
            "cause": self.cause,
            "codes": {str(rank): code for rank, code in sorted(self.codes.items())},
            "code": self.code if self.codes else None,
            "stopped": stopped,
            "done": (self.folder / "done").exists(),
            "time": time.time(),
        }
        self._write("ended", outcome)

    def _could_not_start(self, cause: str, why: str) -> None:
        rank = self.members[0]["rank"]
        self.codes.setdefault(rank, 127)
        self.code, self.cause = 127, cause
        self._fail()
        with contextlib.suppress(OSError):  # such as a full disk
            self._say(rank, f"berth: the command can't be started: {why}")

    def keep(self, child: int) -> None:
        """Wait for the process that runs the part; if it is killed, kill all that it has left."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: send_signal(child, number))
        os.waitpid(child, 0)
        if (self.folder / f"{self.name}.ended").exists():
            return
        while strays := descendants_of(os.getpid())[1:]:
            for pid in strays:
                send_signal(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.01)
        self.reap_orphans()

    def reap_orphans(self) -> None:
        """Kill all processes of a part whose supervisor was killed, and report its end; it never runs again."""
        while strays := with_token(self.launch["token"]):
            for pid in strays:
                send_signal(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._fail()
        outcome = {"codes": {}, "stopped": self.stopping(), "lost": True, "time": time.time()}
        self._write("ended", outcome | {"cause": "supervisor-lost"})

    def _on_signal(self, *_: object) -> None:
        self.signalled = True

    def stopping(self) -> bool:
        """Return whether it is to end, by a signal or by a file."""
        return self.signalled or (self.folder / "stop").exists() or self._fenced()

    def _cut_short(self) -> bool:
        """Return whether the processes were stopped before they ended by themselves."""
        self._reap()
        if (self.folder / "stop").exists() or self._fenced():
            return bool(self.processes)  # only this process stops them
        return self.signalled  # the signal may have reached them too

    def _gather(self) -> bool:
        """Wait for the other parts; the first one has the address of the rendezvous."""
        ready: dict[str, Any] = {"pid": os.getpid()}
        if self.name == "part-0":
            ready |= {"address": _address(self.launch, self.parts), "port": _free_port()}
        self._write("ready", ready)
        until = time.monotonic() + GATHER_S
        while not self.stopping() and not self._failed() and time.monotonic() < until:
            if all((self.folder / f"part-{k}.ready").exists() for k in range(len(self.parts))):
                return True
            time.sleep(POLL_S / 5)
        return False

    def _start(self) -> None:
        first = json.loads((self.folder / "part-0.ready").read_text())
        for member in self.members:
            self.processes[member["rank"]] = self._spawn(member, first)
        pids = {str(rank): process.pid for rank, process in self.processes.items()}
        self._write("running", {"pids": pids, "time": time.time()})

    def _spawn(self, member: dict[str, Any], first: dict[str, Any]) -> subprocess.Popen[bytes]:
        cwd = self.launch["cwd"] or None
        with (self.folder / f"rank-{member['rank']}.log").open("ab") as log:
            try:
                return subprocess.Popen(
                    self.launch["argv"],
                    env=self._environment(member, first),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=prepare_child,  # noqa: PLW1509 - this process has one thread
                )
            except OSError as error:
                if error.errno not in LASTING:
                    raise
                what = f"folder {cwd}" if error.filename == cwd else self.launch["argv"][0]
                raise CommandError(f"{what}: {error.strerror}") from None

    def _environment(self, member: dict[str, Any], first: dict[str, Any]) -> dict[str, str]:
        """Return the variables of torchrun and of berth, and none of this process but a few.

        The programs beside this Python come last, so that a job finds `berth` wherever the controller was started.
        """
        devices = ",".join(str(number) for number in member["devices"])
        machines = list(dict.fromkeys(other["machine"] for other in self.launch["members"]))
        local = [other for other in self.launch["members"] if other["machine"] == member["machine"]]
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        folders = (kept.get("PATH") or os.defpath, os.path.dirname(sys.executable))
        kept["PATH"] = os.pathsep.join(filter(None, folders))
        return kept | {
            **{str(name): str(value) for name, value in self.launch["env"].items()},
            "RANK": str(member["rank"]),
            "LOCAL_RANK": str(member["local_rank"]),
            "WORLD_SIZE": str(len(self.launch["members"])),
            "LOCAL_WORLD_SIZE": str(len(local)),
            "GROUP_RANK": str(machines.index(member["machine"])),
            "MASTER_ADDR": str(first["address"]),
            "MASTER_PORT": str(first["port"]),
            "CUDA_VISIBLE_DEVICES": ",".join(
                self.given.get(number, str(number)) for number in member["devices"]
            ),
            "BERTH_DEVICES": devices,
            "BERTH_MACHINE": member["machine"],
            "BERTH_JOB": self.launch["job"],
            "BERTH_ATTEMPT": str(self.launch["attempt"]),
            "BERTH_ATTEMPT_TOKEN": self.launch["token"],
            "BERTH_FOLDER": str(self.folder),
            **({"BERTH_PLAN": str(self.folder / PLAN)} if self.launch.get("plan") else {}),
            **({"BERTH_PART": member["part"]} if member.get("part") else {}),
        }

    def _watch(self) -> None:
        """Wait until all have ended, one has failed, or they are to stop."""
        while self.processes and not self.stopping():
            for rank, process in list(self.processes.items()):
                if process.poll() is not None:
                    self._note(rank)
            if any(self.codes.values()):
                self.cause = self.cause or ("signal" if self.code > 128 else "exit")
                self._fail()
            if self._failed():
                return
            self._limit_memory()
            self._nap()

    def _nap(self) -> None:
        """Wait until a child ends, at most POLL_S."""
        if not self.processes:
            return
        with contextlib.suppress(ChildProcessError, InterruptedError):
            signal.sigtimedwait([signal.SIGCHLD], POLL_S)

    def _note(self, rank: int) -> None:
        code = self.processes.pop(rank).returncode
        self.codes[rank] = code if code >= 0 else 128 - code
        self.code = self.code or self.codes[rank]

    def _limit_memory(self) -> None:
        limit: int | None = self.launch.get("memory_bytes")
        if limit is None:
            return
        for rank, process in self.processes.items():
            used = sum(resident_bytes(pid) for pid in descendants_of(process.pid))
            if used > limit:
                self._say(rank, f"berth: {used} bytes of memory are in use, the limit is {limit}: killed")
                self.cause = "out-of-memory"
                os.killpg(process.pid, signal.SIGKILL)

    def _say(self, rank: int, line: str) -> None:
        with (self.folder / f"rank-{rank}.log").open("a") as log:
            log.write(f"{line}\n")

    def _end_all(self) -> None:
        """End the members and all their descendants: SIGTERM, the grace period, SIGKILL."""
        until = time.monotonic() + float(self.launch["grace_s"])
        for process in self.processes.values():
            send_signal(process.pid, signal.SIGTERM)
        while self.processes and time.monotonic() < until and not self._fenced():
            self._reap()
            self._nap()
        while self.processes or children_of(os.getpid()):
            for pid in [
                *(process.pid for process in self.processes.values()),
                *descendants_of(os.getpid())[1:],
            ]:
                send_signal(pid, signal.SIGKILL)
            self._reap()
            self._reap_descendants()
            time.sleep(0.01)

    def _reap(self) -> None:
        for rank, process in list(self.processes.items()):
            if process.poll() is not None:
                self._note(rank)

    def _reap_descendants(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while not self.processes and os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _failed(self) -> bool:
        return (self.folder / "failed").exists()

    def _fenced(self) -> bool:
        return self._orphaned() or (self.folder / f"{self.name}.fenced").exists()

    def _orphaned(self) -> bool:
        """Return whether the other end of the lifeline is closed; nothing is ever written to it."""
        return self.lifeline is not None and bool(select.select([self.lifeline], [], [], 0)[0])

    def _fail(self) -> None:
        (self.folder / "failed").touch()

    def _write(self, what: str, facts: dict[str, Any]) -> None:
        """Write a report atomically."""
        part = self.folder / f".{self.name}.{what}.{os.getpid()}"
        with part.open("w") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.folder / f"{self.name}.{what}")


def _address(launch: dict[str, Any], parts: list[str]) -> str:
    """Return the address of the rendezvous: this machine, by a name that the others know."""
    return "127.0.0.1" if len(parts) == 1 else launch.get("address") or socket.getfqdn()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
