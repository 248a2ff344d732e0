"""`berth network`: the iteration time of a job by distance.

A first word that is not a command is a model: `berth network bert-large` is `berth network show bert-large`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from berth.cli import complete, network_fit
from berth.cli.options import AsJson, argument, flag, option
from berth.cli.verbs import Group, Verbs
from berth.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from berth.cluster.model import Cluster, DeviceType
    from berth.network.fabric import Fabric
    from berth.network.measured import Measured
    from berth.report.network import Answer
    from berth.workload.profile import JobProfile

_DEFAULT = "show"
_MAX_BESIDE = 64
_HELP = ("-h", "--help")
_EXAMPLES = (
    "berth network bert-large --gpus 16 --cluster 4x20x8:A100",
    "berth network vgg16 resnet50 --gpus 8 --cluster lab --congestion 5",
    "berth network vgg16 --gpus 8 --cluster 8x2x8:V100 --congestion 5 --beside 1",
    "berth network --all --gpus 16",
)


class _ModelOrCommand(Group):
    """A group that passes anything but a command to `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = Verbs(
    cls=_ModelOrCommand,
    subcommand_metavar="MODEL ... | COMMAND",
    help="Show the iteration times of a model by distance. "
    "`berth network MODEL` is short for `berth network show MODEL`.",
    examples=_EXAMPLES,
)
app.verb(*network_fit.EXAMPLES)(network_fit.fit)


@app.verb(*_EXAMPLES)
def show(
    models: Annotated[
        list[str] | None,
        argument("MODEL ...", "Names, or YAML files with profiles.", complete=complete.models),
    ] = None,
    gpus: Annotated[int, option("N", "GPUs of the job.")] = 8,
    cluster: Annotated[
        str, option("CLUSTER", "A shape (4x20x8:A100), a preset or a file.", complete=complete.clusters)
    ] = "4x20x8",
    congestion: Annotated[
        float,
        option(
            "X", "Background load, from 1 (none) to 1,000,000: divides every bandwidth above the machine."
        ),
    ] = 1.0,
    device: Annotated[
        str | None,
        option(
            "DEVICE", "The type of GPU, where there are several or none is named.", complete=complete.devices
        ),
    ] = None,
    measured: Annotated[
        str | None,
        option("FILE", "CSV of measured iterations: model,gpus,machines,seconds[,racks,tier,placement]."),
    ] = None,
    beside: Annotated[
        int | None, option("N", "Also show the iteration beside N gangs like it on the same links.")
    ] = None,
    every: Annotated[bool, flag("Every model that berth knows, most sensitive first.", "--all")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the iteration time of a model at every distance, or the sensitivity of several models."""
    from berth.cluster.load import load_cluster
    from berth.network.fabric import Fabric
    from berth.network.measured import read_measured
    from berth.report import network as report

    if beside is not None and not 1 <= beside <= _MAX_BESIDE:
        raise InputError(f"--beside must be from 1 to {_MAX_BESIDE} (given: {beside})")
    fabric = Fabric(load_cluster(cluster), congestion)
    chosen = _device(fabric.cluster, device)
    table = read_measured(measured, fabric.cluster) if measured else {}
    profiles = _profiles(models or [], every)
    if len(profiles) == 1 and measured and _measured_of(profiles[0], table) is None:
        raise UnknownNameError("model with measurements", profiles[0].name, table, where=measured)
    answers = [_answer(profile, gpus, fabric, chosen, table, beside) for profile in profiles]
    report.print_answers(answers, fabric, as_json=as_json)


def _profiles(models: list[str], every: bool) -> list[JobProfile]:
    from berth.workload.profiles import all_profiles, load_profile

    if every and models:
        raise InputError("--all and names of models exclude each other", hint="leave one out")
    if not every and not models:
        raise InputError("no model is named", hint="try: berth network bert-large --gpus 16, or --all")
    return all_profiles() if every else [load_profile(name) for name in models]


def _device(cluster: Cluster, wanted: str | None) -> DeviceType:
    """The named device type, or the most common one of the cluster, GPUs first."""
    from berth.cluster.catalogue import UNNAMED, device_type, resolve

    types = cluster.device_types
    if wanted is None:
        index = max(range(len(types)), key=lambda i: (types[i].kind == "gpu", cluster.count_of(i)))
        return types[index]
    if all(one.name == UNNAMED for one in types):
        return device_type(wanted)
    for one in types:
        if one.name.lower() == wanted.lower() or one.name == resolve(wanted):
            return one
    raise UnknownNameError(f"device in cluster {cluster.name!r}", wanted, [one.name for one in types])


def _measured_of(profile: JobProfile, table: dict[str, Measured]) -> Measured | None:
    names = {name.lower() for name in (profile.name, *profile.aliases)}
    return next((measured for model, measured in table.items() if model.lower() in names), None)


def _answer(
    profile: JobProfile,
    gpus: int,
    fabric: Fabric,
    device: DeviceType,
    table: dict[str, Measured],
    others: int | None,
) -> Answer:
    """One model at every distance; a cluster of unnamed GPUs is taken whole, whatever the device."""
    from berth.cluster.catalogue import UNNAMED
    from berth.network.contention import beside
    from berth.network.distances import distances
    from berth.network.spread import usable_devices
    from berth.report.network import Answer

    here = any(kind.name == device.name for kind in fabric.cluster.device_types)
    usable = usable_devices(fabric.cluster, device.name if here else None)
    known = None if device.name == UNNAMED else device
    rows = distances(profile.traffic(known), gpus, fabric, _measured_of(profile, table), usable)
    name = profile.reference_device if known is None else known.name
    answer = Answer(profile.name, gpus, name, profile.compute(known).source, rows)
    if others is not None:
        traffic = profile.traffic(known)
        pairs = [
            (beside(traffic, row.placement, fabric, 0), beside(traffic, row.placement, fabric, others))
            for row in rows
        ]
        answer = replace(answer, others=others, shared=pairs)
    return answer
