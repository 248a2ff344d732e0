"""Where the jobs come from: a file, or `generate:jobs=2000,load=0.9`, made for the cluster it will run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from berth.cluster.model import Cluster
from berth.errors import InputError, QuantityError, UnknownNameError
from berth.units import seconds
from berth.workload.arrivals import load_arrivals
from berth.workload.distributions import load_durations, load_sizes
from berth.workload.flexible import FlexibleSpec, generate_flexible
from berth.workload.generate import GenerateSpec, generate, with_defaults
from berth.workload.mix import load_mix
from berth.workload.reading import read_trace
from berth.workload.selection import submitted_at_once
from berth.workload.trace import Trace

PREFIX = "generate:"
_EXAMPLES = {
    "jobs": "1000",
    "load": "0.8",
    "span": "7d",
    "sizes": "philly",
    "durations": "philly",
    "arrivals": "poisson",
    "mix": "none",
    "users": "0",
    "seed": "0",
    "shapes": "none",
}  # all but span are what is taken where nothing is said; jobs and load as in `berth trace generate`


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace by its name on the command line."""

    text: str
    at_once: bool = False  # submit all jobs at time 0, whatever the trace says

    @property
    def generated(self) -> bool:
        """Whether the trace is made up, so that another seed gives another one."""
        return self.text.startswith(PREFIX)

    def trace(self, cluster: Cluster, shift: int = 0) -> Trace:
        """The trace; `shift` moves the seed of a generated one."""
        if not self.generated:
            return self._arriving(_read(self.text))
        made = generate_for(cluster, _parse(self.text.removeprefix(PREFIX)), shift)
        return self._arriving(replace(made, source=self.text))

    def _arriving(self, trace: Trace) -> Trace:
        return submitted_at_once(trace) if self.at_once else trace


def generate_for(cluster: Cluster, options: Mapping[str, str], shift: int = 0) -> Trace:
    """A trace generated for a cluster, from the options that `generate:` takes."""
    given = _EXAMPLES | dict(options)
    if given["shapes"] != "none":
        return _with_shapes(cluster, options, given, shift)
    arrivals = load_arrivals(given["arrivals"], 0.0)
    asked_jobs = _whole("jobs", given) if "jobs" in options else None
    asked_load = _number("load", given) if "load" in options else None
    span_s = _span(given["span"]) if "span" in options else None
    jobs, load = with_defaults(asked_jobs, span_s, asked_load, arrivals)
    spec = GenerateSpec(
        jobs=jobs,
        span_s=span_s,
        load=load,
        gpus=gpus_of(cluster),
        sizes=load_sizes(given["sizes"]),
        durations=load_durations(given["durations"]),
        arrivals=arrivals,
        mix=None if given["mix"] == "none" else load_mix(given["mix"]),
        users=_whole("users", given),
        seed=_whole("seed", given) + shift,
    )
    return generate(spec)


def _with_shapes(cluster: Cluster, options: Mapping[str, str], given: dict[str, str], shift: int) -> Trace:
    """A trace of jobs with alternatives; sizes, models and arrivals are its own."""
    for key in options:
        if key not in ("jobs", "load", "durations", "seed", "shapes"):
            raise InputError(
                f"generate: {key} has no meaning with shapes={given['shapes']}", hint="leave it out"
            )
    durations = given["durations"] if "durations" in options else FlexibleSpec.durations
    spec = FlexibleSpec(
        jobs=_whole("jobs", given),
        load=_number("load", given),
        kind=given["shapes"],
        durations=durations,
        seed=_whole("seed", given) + shift,
    )
    return generate_flexible(spec, cluster)


def gpus_of(cluster: Cluster) -> int:
    """GPUs of all types; a cluster without any is refused."""
    kinds = cluster.device_types
    gpus = sum(cluster.count_of(index) for index, kind in enumerate(kinds) if kind.kind == "gpu")
    if not gpus:
        raise InputError(f"{cluster.name} has no GPUs", hint="jobs ask for GPUs; see berth cluster show")
    return gpus


@cache
def _read(path: str) -> Trace:
    return read_trace(path)


def _parse(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key not in _EXAMPLES:
            raise UnknownNameError("option of generate:", key, _EXAMPLES)
        if not equals or not value:
            raise InputError(f"generate: {key!r} has no value", hint=f"write it like {key}={_EXAMPLES[key]}")
        given[key] = value
    return given


def _span(text: str) -> float:
    try:
        return seconds(text)
    except QuantityError as error:
        raise QuantityError(f"generate: span: {error.what}", hint=error.hint) from None


def _whole(key: str, given: dict[str, str]) -> int:
    value = _number(key, given)
    if not value.is_integer():
        hint = f"write it like {key}={_EXAMPLES[key]}"
        raise InputError(f"generate: {key} {given[key]!r} is not a whole number", hint=hint)
    return int(value)


def _number(key: str, given: dict[str, str]) -> float:
    try:
        return float(given[key])
    except ValueError:
        hint = f"write it like {key}={_EXAMPLES[key]}"
        raise InputError(f"generate: {key} {given[key]!r} is not a number", hint=hint) from None
