"""How a model is to be trained (`WorldOptions`), and what the numbers of a problem come from (`ProblemSource`).

docs/design/planning.md has the formulas and the sources of the constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError, UnknownNameError
from berth.plan.problem import MICRO_BATCHES
from berth.plan.profile.host import HostRates
from berth.plan.profile.layer_profile import LayerProfile
from berth.plan.rented import Rented

SYNC, ASYNC = "sync", "async"
MODES = (SYNC, ASYNC)
SERVERS, DISK, MACHINE, REPLICAS = "servers", "disk", "machine", "replicas"
TABLES = (SERVERS, DISK, MACHINE, REPLICAS)
DEFAULT_STEPS = 16  # times the profile's batch, the default batch of a sync step
MESSAGE_S = 50e-6  # software and latency of a message between two machines
KEY_BYTES = 8
HOT_ROWS = 0.1  # share of the rows that servers with a disk tier keep in memory
COLD_LOOKUPS = 0.05  # share of distinct rows that are then read from disk
UTILISATION = 0.7  # of server and reader cores and of their NICs: beyond it, requests queue


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """How the model is to be trained; None is a default that `problem_for` derives from the profile."""

    mode: str = SYNC
    batch: int | None = None  # examples of one step of all replicas (sync)
    batch_per_replica: int | None = None  # of one step of a replica (async)
    staleness: int | None = None  # async: steps by which a gradient may be old; None: any
    rows: float | None = None  # of all tables together
    tables: tuple[str, ...] = TABLES  # places to choose from
    whole_machines: bool = False  # rent machines instead of devices
    micro: tuple[int, ...] = MICRO_BATCHES  # numbers of micro-batches to choose from
    # share of the other cores of a machine that compute too: all, where machines are rented
    busy_cores: float = 1.0
    nic_share: float | None = None  # bytes per second of each device; None: its share of its machine's NIC

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        for place in self.tables:
            if place not in TABLES:
                raise UnknownNameError("place for tables", place, TABLES)
        if not self.tables:
            raise InputError("there is no place for tables", hint=f"choose among {', '.join(TABLES)}")


@dataclass(frozen=True)
class ProblemSource:
    """Where the numbers of a problem come from."""

    profile: LayerProfile
    cluster: Cluster | None
    rented: tuple[Rented, ...]
    host: Rented | None  # of servers and readers; None: the catalogue's core
    rates: HostRates
    options: WorldOptions
    rows: float  # of all tables; 0: the model has none
    fixed_is_stated: bool = False
    devices: tuple[DeviceType, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(one.device for one in self.rented))
