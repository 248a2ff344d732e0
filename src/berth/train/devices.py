"""The torch device of the dense part: found by name, fed from host memory, with a suitable process group.

Rows stay in the store, in host memory. `Embedding` copies the rows of a batch to the device of its keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.backend_registration import _get_custom_mod_func

from berth.errors import InputError
from berth.train.options import TrainOptions
from berth.zoo.layered import map_tensors, tensors

CPU = torch.device("cpu")
BUILT_IN = ("cuda", "xpu", "mps")
_GROUP_BACKENDS = {"cuda": "nccl", "xpu": "xccl"}  # that all-reduce tensors of the device
_PINNED = ("cuda", "xpu")  # devices that copy faster from page-locked memory
_HOST_COPY = "_berth_host_copy"
_REGISTERED_BY = {"standin": "berth.testing.accelerator"}  # modules with a function `register`


def named_device(name: str) -> torch.device:
    """Return a device that may be another machine's; the stand-in accelerator is registered with torch when it is named
    for the first time."""
    kind = name.partition(":")[0]
    if kind in _REGISTERED_BY and kind != torch._C._get_privateuse1_backend_name():
        import_module(_REGISTERED_BY[kind]).register()
    return torch.device(name)


def find_device(name: str, option: str | None = None) -> torch.device:
    """Return the device of this process: `cpu`, `cuda`, `cuda:1`, `xpu`, `mps`, or a backend registered with torch.

    Without a number, processes of one machine take its devices in turn. `option` is what asked for it.
    """
    option = option or f"--device {name or repr(name)}"
    try:
        device = named_device(name)
    except RuntimeError:
        raise _missing(option) from None
    if device.type == "cpu":
        if device.index:
            raise _missing(option)
        return CPU
    count = _device_count(device.type)
    if not count or (device.index or 0) >= count:
        raise _missing(option)
    if device.index is None and count > 1:
        local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
        device = torch.device(device.type, int(local) % count)
    return device


def available_devices() -> list[str]:
    """Return the names of the devices here, `cpu` first."""
    names = ["cpu"]
    for kind in (*BUILT_IN, torch._C._get_privateuse1_backend_name()):
        count = _device_count(kind)
        names += [kind] if count == 1 else [f"{kind}:{index}" for index in range(count)]
    return names


def use_device(device: torch.device) -> None:
    """Make it the current device of this process, where torch has such a thing."""
    module = torch.get_device_module(device)
    if device.index is not None and hasattr(module, "set_device"):
        module.set_device(device)


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the device's own generator, so that a resumed run draws the same numbers; the CPU's is saved instead."""
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(seed)


def group_backend(*devices: torch.device) -> str:
    """Return the backend of the process group of ranks on these devices; what it can't all-reduce on a device is sent
    by host memory."""
    kinds = sorted({device.type for device in devices} & _GROUP_BACKENDS.keys())
    return ",".join(["cpu:gloo", *(f"{kind}:{_GROUP_BACKENDS[kind]}" for kind in kinds)]) if kinds else "gloo"


def reduces_on(device: torch.device) -> bool:
    """Return whether process groups all-reduce tensors of this device."""
    return device.type == "cpu" or device.type in _GROUP_BACKENDS


def autocast(device: torch.device, bf16: bool) -> AbstractContextManager[Any]:
    """Return a context in which matrix products run in bfloat16, or one that does nothing."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


def check_bf16(device: torch.device) -> None:
    """Raise if torch can't autocast to bfloat16 on the device."""
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == torch._C._get_privateuse1_backend_name():
        supported = torch.bfloat16 in _get_custom_mod_func("get_amp_supported_dtype")()
    else:
        supported = True
    if not supported:
        raise InputError(f"--bf16: {device} does not support it", hint="leave it out: float32 is the default")


def check_device(options: TrainOptions) -> None:
    """Raise if this machine has no such device, before any process is started."""
    device = find_device(options.device)
    if options.bf16:
        check_bf16(device)


def staging(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a float32 buffer in host memory, page-locked if that makes copies to the device faster."""
    return torch.empty(shape, dtype=torch.float32, pin_memory=device.type in _PINNED)


class SideStream:
    """Copies to a device beside its computation; on a backend without streams a copy is complete when it returns."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        module = torch.get_device_module(device)
        has_streams = all(hasattr(module, name) for name in ("Stream", "stream", "current_stream"))
        self._module: Any = module if has_streams and device.type != "cpu" else None
        self._stream = self._module.Stream(device) if self._module is not None else None

    def copy(self, host: Tensor) -> Tensor:
        """Return a copy on the device; `wait` for it before it is used."""
        if self._module is None:
            return host.to(self._device)
        with self._module.stream(self._stream):
            return host.to(self._device, non_blocking=True)

    def wait(self, *copies: Tensor) -> None:
        """Let the current stream wait for all copies, and keep the memory of these until it has used them."""
        if self._module is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_stream(self._stream)
        if self._device.type in _PINNED:
            for copy in copies:
                copy.record_stream(current)


def to_device(state: Any, device: torch.device) -> Any:
    """Copy the tensors of a batch to the device; they remember their host copies."""
    if device.type == "cpu":
        return state

    def moved(host: Tensor) -> Tensor:
        copy = (host.pin_memory() if device.type in _PINNED else host).to(device, non_blocking=True)
        setattr(copy, _HOST_COPY, host)
        return copy

    return map_tensors(state, moved)


def on_host(tensor: Tensor) -> Tensor:
    """Return a tensor in host memory, without a transfer if `to_device` made it."""
    if tensor.device.type == "cpu":
        return tensor
    copy: Tensor | None = getattr(tensor, _HOST_COPY, None)
    return copy if copy is not None else tensor.cpu()


def hosted(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors in host memory; all that are on a device are copied in one transfer."""
    found = {number: part for number, part in enumerate(parts) if _needs_copy(part)}
    order = sorted(found, key=lambda number: -found[number].element_size())  # so that each is aligned
    if len(order) == 1:
        copies = [found[order[0]].detach().cpu()]
    else:
        flat = [_bytes_of(found[number]) for number in order]
        whole = torch.cat(flat).cpu() if flat else torch.empty(0, dtype=torch.uint8)
        pieces = whole.split([len(part) for part in flat])
        copies = [_as(piece, found[number]) for piece, number in zip(pieces, order, strict=True)]
    by_number = dict(zip(order, copies, strict=True))
    return [by_number[number] if number in by_number else on_host(part) for number, part in enumerate(parts)]


def to_device_at_once(state: Any, device: torch.device) -> Any:
    """Copy the tensors of a message to the device in one transfer; those without a gradient remember their host
    copies."""
    parts = [part for part in tensors(state) if part.numel()]
    if device.type == "cpu" or not parts:
        return state
    order = sorted(range(len(parts)), key=lambda number: -parts[number].element_size())
    flat = [_bytes_of(parts[number]) for number in order]
    whole = (flat[0] if len(flat) == 1 else torch.cat(flat)).to(device, non_blocking=True)
    pieces = whole.split([len(part) for part in flat])
    there = {id(parts[number]): piece for number, piece in zip(order, pieces, strict=True)}

    def moved(host: Tensor) -> Tensor:
        if not host.numel():
            return host.detach().to(device).requires_grad_(host.requires_grad)
        copy = _as(there[id(host)], host).requires_grad_(host.requires_grad)
        if not host.requires_grad:
            setattr(copy, _HOST_COPY, host)
        return copy

    return map_tensors(state, moved)


def crossing_bytes(state: Any) -> int:
    """Return the bytes that `hosted` copies for the tensors of a message."""
    return sum(part.numel() * part.element_size() for part in tensors(state) if _needs_copy(part))


def _needs_copy(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu" and getattr(tensor, _HOST_COPY, None) is None


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _as(piece: Tensor, like: Tensor) -> Tensor:
    return piece.view(like.dtype).view(like.shape)


@contextmanager
def naming_layers(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Report a mix of devices with the layer in which it occurs."""
    try:
        yield
    except RuntimeError as error:
        if device.type == "cpu" or "device" not in str(error):
            raise
        layer, where = _layer_of(model, error)
        raise InputError(
            f"{layer} mixes devices: {str(error).splitlines()[0]}",
            where=where,
            hint=f"the model runs on {device}: create tensors with device=x.device, or register them as buffers",
        ) from error


@contextmanager
def reporting_memory(device: torch.device) -> Iterator[None]:
    """Report that a device is out of memory with what can be reduced."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{device} is out of memory: {str(error).splitlines()[0]}",
            hint="reduce --batch or --device-cache, use --bf16, or split the model: --plan or --stages",
        ) from error


def _layer_of(model: nn.Module, error: BaseException) -> tuple[str, str | None]:
    """Return the innermost layer of the model in the traceback, and the line in it."""
    names = {id(module): name for name, module in model.named_modules()}
    found: tuple[str, str | None] = ("the loss", None)
    trace = error.__traceback__
    while trace is not None:
        name = names.get(id(trace.tb_frame.f_locals.get("self")))
        if name is not None:
            layer = f"layer {name.removeprefix('chain.')!r}" if name else "the model"
            found = (layer, f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return found


def _device_count(kind: str) -> int:
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "is_available") or not module.is_available():
        return 0
    return int(module.device_count())


def _missing(option: str) -> InputError:
    return InputError(
        f"{option}: there is no such device here", hint=f"here: {', '.join(available_devices())}"
    )
