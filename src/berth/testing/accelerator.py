"""A stand-in accelerator: a torch device that computes on the CPU and is as strict as a GPU.

    from berth.testing.accelerator import register

    standin = register()
    model.to("standin")

It is for tests of device code on machines without an accelerator. Tensors of the device are wrappers that keep their
data in host memory, out of reach of CPU code: an operation on tensors of both devices fails as on a GPU, and every
copy between them is counted. Kernels are those of the CPU, so results equal the CPU's bit for bit.

It says nothing about the speed of a real device. Its speed factor is relative to one thread of this machine: a factor
below 1 really waits, so that measured wall-clock times hold; a factor above 1 can't make anything faster, and only
`device_s`, the virtual time of the device, accounts for it.

Random numbers come from torch's CPU generator. There are no streams: every operation is complete when it returns.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from berth.errors import InputError

NAME = "standin"
SPEED = "BERTH_STANDIN_SPEED"  # environment variable: the speed factor of processes that do not set one
_IDLE_LOOKS = 4
_MIN_WAIT_S = 1e-3  # shorter waits are added up: sleeping is not exact
_COPIES = {"aten::copy_", "aten::_to_copy"}
_CPU_INDICES = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"}  # as on CUDA
# `torch.tensor` copies below the level of the fallback; the others are an empty tensor that is resized, which a wrapper
# can't follow.
_EXPLICIT = (
    *("copy_", "arange", "arange.start", "arange.start_step"),
    *("linspace", "logspace", "randperm", "eye", "eye.m"),
)
_NUMBERS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"}  # the host reads one number


@dataclass(slots=True)
class Transfers:
    """Copies in one direction."""

    count: int = 0
    bytes: int = 0

    def add(self, tensor: Tensor) -> None:
        """Count the copy of a tensor."""
        self.count += 1
        self.bytes += tensor.numel() * tensor.element_size()


@dataclass(slots=True)
class StandIn:
    """The device of this process, and what it has counted."""

    speed: float = 1.0  # relative to one thread of this machine
    to_device: Transfers = field(default_factory=Transfers)
    to_host: Transfers = field(default_factory=Transfers)
    operations: int = 0
    device_s: float = 0.0  # virtual time of the device: CPU time of its operations / speed
    _owed_s: float = 0.0

    @contextmanager
    def counting(self) -> Iterator[StandIn]:
        """Yield an object that has, after the block, the counts of the block alone."""
        part = StandIn(self.speed)
        before = replace(self, to_device=replace(self.to_device), to_host=replace(self.to_host))
        try:
            yield part
        finally:
            for name in ("to_device", "to_host"):
                new, old, own = (getattr(counts, name) for counts in (self, before, part))
                own.count, own.bytes = new.count - old.count, new.bytes - old.bytes
            part.operations = self.operations - before.operations
            part.device_s = self.device_s - before.device_s

    def ran(self, took_s: float) -> None:
        """Account for an operation that took this long on the CPU."""
        self.operations += 1
        self.device_s += took_s / self.speed
        if self.speed < 1.0:
            self._owed_s += took_s / self.speed - took_s
            if self._owed_s > _MIN_WAIT_S:
                started = time.perf_counter()
                time.sleep(self._owed_s)
                self._owed_s -= time.perf_counter() - started


_DEVICE = StandIn()
_registered: list[Any] = []  # the libraries must stay alive


def register(speed: float | None = None) -> StandIn:
    """Register the device `standin` with torch, once per process, and set its speed.

    The default is `$BERTH_STANDIN_SPEED`, which child processes inherit, or 1.
    Call it before the first backward pass of the process: torch starts its threads for all known devices then. A
    process can have one backend of this kind.
    """
    global _DEVICE  # noqa: PLW0603 - torch has one device of this kind per process
    speed = _stated_speed() if speed is None else speed
    if not speed > 0:
        raise InputError(f"the speed of the stand-in accelerator must be above 0, got {speed}")
    if not _registered:
        if torch._C._get_privateuse1_backend_name() != "privateuseone":
            raise InputError(
                f"this process already has the backend {torch._C._get_privateuse1_backend_name()!r}",
                hint="torch supports one; use the stand-in accelerator in a process of its own",
            )
        _setup_privateuseone_for_python_backend(NAME, _Module())
        everything, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        everything.fallback(_fallback, "PrivateUse1")
        for name in _EXPLICIT:
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            own.impl(name, partial(_fallback, operation), "PrivateUse1")
        _registered.extend((everything, own))
        atexit.register(wait_for_threads)
        _check_threads()
        _DEVICE = StandIn()
    _DEVICE.speed = speed
    return _DEVICE


def _stated_speed() -> float:
    text = os.environ.get(SPEED, "1")
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{SPEED}: expected a number above 0, got {text!r}") from None


def _check_threads() -> None:
    """Run a backward pass: torch has no thread for a device that is registered after the first one."""
    number = torch.ones((), device=NAME, requires_grad=True)
    try:
        (number * number).backward()
    except RuntimeError:
        raise InputError(
            "the stand-in accelerator must be registered before the first backward pass of the process",
            hint="call register() where torch is imported",
        ) from None


def wait_for_threads(limit_s: float = 10.0) -> None:
    """Wait until no other thread of this process runs; called when the interpreter exits.

    torch's thread for the device may free Python objects shortly after a backward pass has returned. If it asks for
    the interpreter's lock while the interpreter shuts down, the process aborts. A thread that waits for the lock looks
    idle, so threads must be idle several times in a row; between these looks the lock is free.
    """
    own = str(threading.get_native_id())
    give_up, idle = time.monotonic() + limit_s, 0
    while idle < _IDLE_LOOKS and time.monotonic() < give_up:
        time.sleep(0.005)  # without the lock, so that a thread that waits for it runs
        others = (task for task in Path("/proc/self/task").glob("*/stat") if task.parent.name != own)
        idle = 0 if any(_runs(task) for task in others) else idle + 1


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(") ")[2].startswith("R")
    except OSError:  # it has just ended
        return False


class _Module:
    """`torch.standin`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def is_in_bad_fork(self) -> bool:
        return False

    _is_in_bad_fork = is_in_bad_fork

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: random numbers are the CPU generator's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return nothing: torch has no autocast rules for a Python backend."""
        return []


class DeviceTensor(Tensor):
    """A tensor of the device; its data is a CPU tensor that only kernels see."""

    _host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        """Return a tensor of the device with this data."""
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(NAME, 0),
        )
        made._host = host
        return made

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"{self._host!r}, device='{NAME}:0'"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation without a tensor of the device among its arguments, such as `torch.empty(device=...)`."""
    return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the host data of its arguments, and wrap what it returns."""
    name = func._schema.name
    to_host = _target(kwargs) == "cpu"
    wrapped: dict[int, DeviceTensor] = {}
    if name not in _COPIES:
        _check_devices(name, args, kwargs)

    def host(value: Any) -> Any:
        if isinstance(value, DeviceTensor):
            wrapped[id(value._host)] = value
            return value._host
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        return value

    own_args, own_kwargs = tree_map(host, (args, kwargs))
    _count_copies(name, args, to_host)
    begun = time.thread_time()
    result = func(*own_args, **own_kwargs)
    _DEVICE.ran(time.thread_time() - begun)
    if to_host or (name == "aten::copy_" and not isinstance(args[0], DeviceTensor)):
        return args[0] if name == "aten::copy_" else _apart(result, own_args[0])
    return tree_map(lambda value: _wrap(value, wrapped), result)


def _wrap(value: Any, wrapped: dict[int, DeviceTensor]) -> Any:
    """Return the tensor that an in-place operation changed, or a new one of the device."""
    if not isinstance(value, Tensor):
        return value
    known = wrapped.get(id(value))
    if known is None:
        return DeviceTensor(value)
    if known.shape != value.shape or known.stride() != value.stride():
        raise NotImplementedError(f"{NAME}: an operation that changes the shape of a tensor in place")
    return known


def _apart(result: Tensor, source: Tensor) -> Tensor:
    """Return a copy that shares no memory with the device."""
    return result.clone() if result.data_ptr() == source.data_ptr() else result


def _target(kwargs: dict[str, Any]) -> str | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device).type


def _check_devices(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse CPU tensors, except numbers, as a GPU does."""
    found = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    if not any(isinstance(value, DeviceTensor) for value in found):
        return
    for value in found:
        if isinstance(value, DeviceTensor) or value.ndim == 0:
            continue
        if name in _CPU_INDICES and not value.is_floating_point():
            _DEVICE.to_device.add(value)
            continue
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices,"
            f" {NAME}:0 and {value.device}! (when running {name})"
        )


def _count_copies(name: str, args: Any, to_host: bool) -> None:
    if name == "aten::copy_":
        target, source = args[0], args[1]
        if isinstance(target, DeviceTensor) and not isinstance(source, DeviceTensor):
            _DEVICE.to_device.add(source)
        elif isinstance(source, DeviceTensor) and not isinstance(target, DeviceTensor):
            _DEVICE.to_host.add(source)
    elif name == "aten::_to_copy":
        if to_host and isinstance(args[0], DeviceTensor):
            _DEVICE.to_host.add(args[0])
        elif not isinstance(args[0], DeviceTensor):
            _DEVICE.to_device.add(args[0])
    elif name in _NUMBERS:
        _DEVICE.to_host.count += 1
        _DEVICE.to_host.bytes += args[0].element_size()
