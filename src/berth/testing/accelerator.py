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

Random numbers come from torch's CPU generator. Streams have the interface of `torch.cuda`'s, but every operation is
complete when it returns: they only record what was issued on which, and refuse a tensor of another stream that was not
waited for.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from berth.errors import InputError

NAME = "standin"
SPEED = "BERTH_STANDIN_SPEED"  # environment variable: the speed factor of processes that do not set one
MEMORY = "BERTH_STANDIN_MEMORY"  # environment variable: the memory of the device in bytes
_IDLE_LOOKS = 4
_MIN_WAIT_S = 1e-3  # shorter waits are added up: sleeping is not exact
_NO_BACKWARD_PASS = -1  # as torch numbers them
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


@dataclass(frozen=True, slots=True)
class Issued:
    """An operation, in the order of `StandIn.logging`."""

    name: str  # of the operation; `to_device` and `to_host` for copies
    stream: str
    bytes: int = 0  # of a copy


class Queue:
    """A queue of operations, with the interface of `torch.cuda.Stream`."""

    def __init__(self, device: Any = None, name: str = "side") -> None:
        del device  # there is one
        self.name = name
        self.issued = 0
        # Operations of other streams that come before what is issued next.
        self._seen: WeakKeyDictionary[Queue, int] = WeakKeyDictionary()

    def wait_stream(self, other: Queue) -> None:
        """Order what is issued here next after everything that was issued there."""
        self._seen[other] = other.issued

    def is_after(self, other: Queue, number: int) -> bool:
        """Return whether operations issued here next come after an operation of another stream."""
        return other is self or self._seen.get(other, 0) >= number


@dataclass(slots=True)
class StandIn:
    """The device of this process, and what it has counted."""

    speed: float = 1.0  # relative to one thread of this machine
    memory_bytes: int | None = None  # more than this is out of memory; None: the memory of the host
    to_device: Transfers = field(default_factory=Transfers)
    to_host: Transfers = field(default_factory=Transfers)
    operations: int = 0
    device_s: float = 0.0  # virtual time of the device: CPU time of its operations / speed
    used_bytes: int = 0  # counted if there is a limit
    late_error: torch.OutOfMemoryError | None = None  # of a backward pass, raised by the next operation
    stream: Queue = field(default_factory=lambda: Queue(name="default"))  # the current one
    _log: list[Issued] | None = None
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

    @contextmanager
    def logging(self) -> Iterator[list[Issued]]:
        """Yield a list of the operations of the block, in order."""
        outer, self._log = self._log, []
        try:
            yield self._log
        finally:
            self._log = outer

    def record(self, name: str, size: int = 0) -> None:
        """Add an operation to the log, if there is one."""
        if self._log is not None:
            self._log.append(Issued(name, self.stream.name, size))

    def copied(self, direction: str, tensor: Tensor) -> None:
        """Count the copy of a tensor, `to_device` or `to_host`."""
        getattr(self, direction).add(tensor)
        self.record(direction, tensor.numel() * tensor.element_size())

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
_users: dict[int, int] = {}  # tensors of each piece of memory, if there is a limit


def register(speed: float | None = None, memory_bytes: int | None = None) -> StandIn:
    """Register the device `standin` with torch, once per process, and set its speed and memory.

    The defaults are `$BERTH_STANDIN_SPEED`, which child processes inherit, or 1, and `$BERTH_STANDIN_MEMORY` (bytes),
    or that of the host.
    Call it before the first backward pass of the process: torch starts its threads for all known devices then. A
    process can have one backend of this kind.
    """
    global _DEVICE  # noqa: PLW0603 - torch has one device of this kind per process
    speed = _stated(SPEED, "1") if speed is None else speed
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
        if not getattr(torch.__spec__, "_initializing", False):
            _check_threads()  # from an entry point of torch: it imports, so none have started
        _DEVICE = StandIn()
    _DEVICE.speed = speed
    limit = _stated(MEMORY, "0")
    _DEVICE.memory_bytes = memory_bytes if memory_bytes is not None else int(limit) or None
    return _DEVICE


def _stated(variable: str, default: str) -> float:
    text = os.environ.get(variable, default)
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{variable}: expected a number above 0, got {text!r}") from None


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

    Stream = Queue

    def current_stream(self, device: Any = None) -> Queue:
        """Return the stream on which operations are issued."""
        return _DEVICE.stream

    @contextmanager
    def stream(self, stream: Queue) -> Iterator[None]:
        """Issue the operations of the block on a stream."""
        outer, _DEVICE.stream = _DEVICE.stream, stream
        try:
            yield
        finally:
            _DEVICE.stream = outer

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: random numbers are the CPU generator's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return nothing: torch has no autocast rules for a Python backend."""
        return []


class DeviceTensor(Tensor):
    """A tensor of the device; its data is a CPU tensor that only kernels see."""

    _host: Tensor
    _written: tuple[Queue, int]  # the last operation that wrote it

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
        made._written = (_DEVICE.stream, _DEVICE.stream.issued)
        if _DEVICE.memory_bytes is not None:
            _allocate(made, host.untyped_storage())
        return made

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"{self._host!r}, device='{NAME}:0'"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _allocate(tensor: DeviceTensor, storage: torch.UntypedStorage) -> None:
    """Count the memory of a tensor, once for all views of it, until the last of them is gone."""
    place, size = storage.data_ptr(), storage.nbytes()
    if not size:
        return
    if not _users.get(place):
        if _DEVICE.used_bytes + size > (_DEVICE.memory_bytes or 0):
            error = torch.OutOfMemoryError(
                f"{NAME} out of memory. Tried to allocate {size} bytes, {_DEVICE.used_bytes} of"
                f" {_DEVICE.memory_bytes} are in use."
            )
            if torch._C._current_graph_task_id() == _NO_BACKWARD_PASS:
                raise error
            _DEVICE.late_error = _DEVICE.late_error or error
        _DEVICE.used_bytes += size
    _users[place] = _users.get(place, 0) + 1
    finalize(tensor, _release, place, size)


def _release(place: int, size: int) -> None:
    _users[place] -= 1
    if not _users[place]:
        del _users[place]
        _DEVICE.used_bytes -= size


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation without a tensor of the device among its arguments, such as `torch.empty(device=...)`."""
    return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the host data of its arguments, and wrap what it returns."""
    _raise_late_error()
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
    _DEVICE.stream.issued += 1
    _check_streams(name, wrapped.values())
    _count_copies(name, args, to_host)
    begun = time.thread_time()
    result = func(*own_args, **own_kwargs)
    _DEVICE.ran(time.thread_time() - begun)
    if to_host or (name == "aten::copy_" and not isinstance(args[0], DeviceTensor)):
        return args[0] if name == "aten::copy_" else _apart(result, own_args[0])
    return tree_map(lambda value: _wrap(value, wrapped), result)


def _raise_late_error() -> None:
    """Raise what happened in a backward pass after it: torch aborts the process if a tensor of Python raises there."""
    error = _DEVICE.late_error
    if error is not None and torch._C._current_graph_task_id() == _NO_BACKWARD_PASS:
        _DEVICE.late_error = None
        raise error


def _wrap(value: Any, wrapped: dict[int, DeviceTensor]) -> Any:
    """Return the tensor that an in-place operation changed, or a new one of the device."""
    if not isinstance(value, Tensor):
        return value
    known = wrapped.get(id(value))
    if known is None:
        return DeviceTensor(value)
    known._written = (_DEVICE.stream, _DEVICE.stream.issued)
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
            _DEVICE.copied("to_device", value)
            continue
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices,"
            f" {NAME}:0 and {value.device}! (when running {name})"
        )


def _check_streams(name: str, used: Iterable[DeviceTensor]) -> None:
    """Refuse a tensor that another stream wrote, and that this one did not wait for."""
    stream = _DEVICE.stream
    for tensor in used:
        writer, number = tensor._written
        if not stream.is_after(writer, number):
            raise RuntimeError(
                f"{NAME}: {name} on stream {stream.name!r} uses a tensor of stream {writer.name!r}, for which it has"
                " not waited"
            )


def _count_copies(name: str, args: Any, to_host: bool) -> None:
    if name == "aten::copy_":
        target, source = args[0], args[1]
        if isinstance(target, DeviceTensor) and not isinstance(source, DeviceTensor):
            _DEVICE.copied("to_device", source)
        elif isinstance(source, DeviceTensor) and not isinstance(target, DeviceTensor):
            _DEVICE.copied("to_host", source)
    elif name == "aten::_to_copy":
        if to_host and isinstance(args[0], DeviceTensor):
            _DEVICE.copied("to_host", args[0])
        elif not isinstance(args[0], DeviceTensor):
            _DEVICE.copied("to_device", args[0])
    elif name in _NUMBERS:
        _DEVICE.to_host.count += 1
        _DEVICE.to_host.bytes += args[0].element_size()
    else:
        _DEVICE.record(name)
