"""Describes this machine for a profile: its cores, its GPUs, the version of torch."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from berth.cluster.catalogue import known_devices

CORE = "cpu-core"
_VENDORS = {
    "intel": ("intel", "xeon"),
    "amd": ("amd", "epyc", "ryzen"),
    "arm": ("graviton", "neoverse", "ampere", "aarch64", "apple"),
}
_MEMORY_TOLERANCE = 0.15  # drivers reserve some of a GPU's memory


def describe_core() -> str:
    """Return the name of the CPU, with family and model number."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    name = _field(text, "model name") or platform.processor() or platform.machine()
    name = re.sub(r"\((R|TM)\)", "", name)
    model, family = _field(text, "model"), _field(text, "cpu family")
    flags = (_field(text, "flags") or "").split()
    vector = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else ""
    details = [f"family {family} model {model}" if model else "", vector]
    return f"{name} ({', '.join(filter(None, details))})" if any(details) else name


def cpu_vendor(note: str | None = None) -> str:
    """Return the vendor of this machine's CPU, or of the one that the note of a measurement names: intel, amd, arm."""
    text = (describe_core() if note is None else note).lower()
    for vendor, words in _VENDORS.items():
        if any(word in text for word in words):
            return vendor
    return "other"


def core_key(vendor: str) -> str:
    """Return the name in a profile of a core of another vendor than the first one's: cpu-core@intel."""
    return f"{CORE}@{vendor}"


def torch_version() -> str:
    """Return the version of torch without its build: 2.13.0."""
    import torch

    return str(torch.__version__).partition("+")[0]


def local_gpus() -> dict[str, int]:
    """Return the catalogue names of this machine's GPUs, each with the index of its first one."""
    import torch

    if not torch.cuda.is_available():
        return {}
    found: dict[str, int] = {}
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        name = catalogued_gpu(facts.name, facts.total_memory)
        if name is not None:
            found.setdefault(name, number)
    return found


def catalogued_gpu(driver_name: str, memory_bytes: int) -> str | None:
    """Return the catalogue name of a driver's `NVIDIA A100-SXM4-80GB`; None if the catalogue lacks it."""
    words = set(re.split(r"[^a-z0-9]+", driver_name.lower()))
    for name, entry in known_devices().items():
        model = re.sub(r"^rtx-|-\d+$", "", name.lower())
        memory = entry.device.memory_bytes
        if model in words and memory and abs(memory_bytes / memory - 1) < _MEMORY_TOLERANCE:
            return name
    return None


def _field(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(.+?)\s*$", text, flags=re.MULTILINE)
    return match[1] if match else None
