"""A whole Slurm on this machine: munged, slurmctld and a slurmd for each of eight nodes, under a folder of its own.

Ports, key and socket are its own too, so several can stand side by side. All of them are children of this process and
die with it, whatever happens to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from berth.live.backends.slurm_attempt import Timeouts

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "scancel")
NODES = tuple(f"n0{number}" for number in range(8))
GPUS = 8
TIMEOUT_S = 300.0  # of everything that is waited for, on a busy machine as well
TIMEOUTS = Timeouts(margin_s=5.0, start_s=120.0, settle_s=1.0)
_PR_SET_PDEATHSIG = 1

_SLURM_CONF = """
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=0
TopologyPlugin=topology/tree
ReturnToService=2
SlurmdTimeout=60
MessageTimeout=20
KillWait=2
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n[00-07] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=16 RealMemory=64000 Gres=gpu:a100:8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_TOPOLOGY = """
SwitchName=r0 Nodes=n[00-03]
SwitchName=r1 Nodes=n[04-07]
SwitchName=top Switches=r[0-1]
"""


# A small training: its first member counts to a number, in step with the others, and goes on from where it was when it
# is started again. It ends when it has counted and is let go. It notices if another of its attempts is alive.
COUNTS = """
[ ! -e finished ] || exit 0
at=$(cat count 2>/dev/null || echo 0)
echo "start $BERTH_ATTEMPT $BERTH_MACHINE $at" >> record
if [ $RANK -gt 0 ]; then
  while [ ! -e finished ]; do
    cp ask answer.$RANK.new 2>/dev/null && mv answer.$RANK.new answer.$RANK
    sleep 0.05
  done
  exit 0
fi
exec 9> lock; flock -n 9 || echo "overlap $BERTH_ATTEMPT" >> record
while [ $at -lt $STEPS ] || [ ! -e go ]; do
  sleep 0.1
  at=$((at + 1))
  echo "$BERTH_ATTEMPT $at" > ask.new && mv ask.new ask
  other=1
  while [ $other -lt $WORLD_SIZE ]; do
    until cmp -s ask answer.$other; do sleep 0.05; done
    other=$((other + 1))
  done
  echo $at > count.new && mv count.new count
done
echo "finish $BERTH_ATTEMPT" >> record
touch finished "$BERTH_FOLDER/done"
"""


def until_file(path: Path) -> str:
    """A command that runs until this file exists."""
    return f"until [ -e {path} ]; do sleep 0.1; done"


def counting(folder: Path, steps: int, *, go: bool = True, **facts) -> dict:
    """A job that counts in this folder."""
    folder.mkdir(exist_ok=True)
    if go:
        (folder / "go").touch()
    return {"run": COUNTS, "cwd": str(folder), "env": {"STEPS": str(steps)}, **facts}


def record(folder: Path, what: str) -> list[list[str]]:
    """What its attempts have written down themselves."""
    try:
        lines = (folder / "record").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.split()[1:] for line in lines if line.startswith(what)]


class SmallSlurm:
    """Two racks of four nodes, eight GPUs each, that are files."""

    nodes = NODES

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # sockets need a short path
        self.home.chmod(0o755)
        self.conf = self.home / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._write()

    def _write(self) -> None:
        home = self.home
        for folder in ("state", "gpus", *(f"spool/{node}" for node in NODES)):
            (home / folder).mkdir(parents=True)
        for number in range(GPUS):
            (home / "gpus" / f"gpu{number}").touch()
        (home / "munge.key").write_bytes(secrets.token_bytes(1024))
        (home / "munge.key").chmod(0o400)
        first = _free_ports(len(NODES) + 1)
        ports = {"first": first, "last": first + len(NODES) - 1, "port": first + len(NODES)}
        names = {"host": socket.gethostname(), "user": getpass.getuser(), "home": home}
        self.conf.write_text(_SLURM_CONF.format(**names, **ports))
        (home / "topology.conf").write_text(_TOPOLOGY)
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (home / "gres.conf").write_text(
            f"NodeName=n[00-07] Name=gpu Type=a100 File={home}/gpus/gpu[0-{GPUS - 1}]\n"
        )

    def conf_with(self, path: Path, **options: int) -> Path:
        """Write the configuration with other options, for commands."""
        kept = [line for line in self.conf.read_text().splitlines() if line.split("=")[0] not in options]
        path.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in options.items())]) + "\n")
        return path

    def start(self) -> None:
        home = self.home
        files = [f"--{name}-file={home}/munge.{name}" for name in ("key", "pid", "seed", "log")]
        self._start("munged", "munged", "--foreground", "--force", f"--socket={home}/munge.socket", *files)
        until((home / "munge.socket").exists, "munged listens")
        self.start_controller("-c")
        for node in NODES:
            self.start_node(node)
        self.until_idle()

    def start_controller(self, *options: str) -> None:
        self._start("slurmctld", "slurmctld", "-D", *options, "-f", str(self.conf))

    def stop_controller(self) -> None:
        """In order: it writes down what it knows."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait(TIMEOUT_S)

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def _start(self, name: str, *argv: str) -> None:
        program = shutil.which(argv[0], path=f"{os.environ['PATH']}:/usr/sbin")
        with (self.home / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [str(program), *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"SLURM_CONF": str(self.conf)},
                preexec_fn=_die_with_parent,  # noqa: PLW1509
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """The daemon alone, at once: what it has started may live on."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def close(self, node: str) -> None:
        """What whoever runs the cluster does about a node that is gone, before Slurm notices by itself.

        Slurm would take a minute: a busy machine must not look like a lost node.
        """
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def lose(self, node: str) -> None:
        """The node with all that runs on it."""
        self.kill(node)
        self._kill_all_on(node)
        self.close(node)

    def _kill_all_on(self, node: str) -> None:
        for pid in _processes_with(f"SLURMD_NODENAME={node}", f"SLURM_CONF={self.conf}"):
            with contextlib.suppress(OSError):
                if (daemon := _step_above(pid)) is not None:
                    os.kill(daemon, signal.SIGKILL)  # first, so that it can't report the end
                os.kill(pid, signal.SIGKILL)

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        nodes = json.loads(self.run("sinfo", "--json"))["nodes"]
        return {node["name"]: " ".join([node["state"], *node["state_flags"]]) for node in nodes}

    def jobs(self) -> list[dict]:
        """Jobs that are not over."""
        jobs = json.loads(self.run("squeue", "--json"))["jobs"]
        return [job for job in jobs if job["job_state"] in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")]

    def until_idle(self) -> None:
        until(
            lambda: set(self.states().values()) == {"idle"}, "all nodes are idle", lambda: str(self.states())
        )

    def tidy(self) -> None:
        """No jobs, and every node as it was."""
        subprocess.run(["scancel", "--user", getpass.getuser()], timeout=TIMEOUT_S, check=False)
        for node in NODES:
            if node not in self._daemons:
                self.start_node(node)
        until(self._is_tidy, "all nodes are idle", lambda: f"{self.states()} {self.jobs()}")

    def _is_tidy(self) -> bool:
        states = self.states()
        for node, state in states.items():
            if "DRAIN" in state or "down" in state:  # it may come back by itself just now
                argv = ["scontrol", "update", f"nodename={node}", "state=resume"]
                subprocess.run(argv, capture_output=True, timeout=TIMEOUT_S, check=False)
        return set(states.values()) == {"idle"} and not self.jobs()

    def stop(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for node in NODES:
            self._kill_all_on(node)  # a step whose slurmd was killed is ended by nothing else
        shutil.rmtree(self.home, ignore_errors=True)


def until(condition, what: str, shown=lambda: "", timeout_s: float = TIMEOUT_S) -> None:
    """Asks again and again; an error if it never comes."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}; {shown()}"
        time.sleep(0.05)


def _free_ports(count: int) -> int:
    """The first of a number of consecutive free ports."""
    for first in range(20000 + os.getpid() % 50 * 100, 27000, 20):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no ports are free")


def _processes_with(*marks: str) -> list[int]:
    """Those with all of these in their environment."""
    found, wanted = [], {mark.encode() for mark in marks}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def _step_above(pid: int) -> int | None:
    """The daemon of the step that a process belongs to, if it is that daemon's child."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parent if Path(f"/proc/{parent}/cmdline").read_bytes().startswith(b"slurmstepd") else None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
