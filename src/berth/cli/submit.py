"""`berth submit`: a job from a file or from the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from berth.cli import complete
from berth.cli.live_options import State, Url, client, in_about
from berth.cli.options import AsJson
from berth.errors import InputError
from berth.units import seconds

EXAMPLES = ("berth submit --gpus 8 --name resnet -- python train.py --epochs 90", "berth submit job.yaml")


def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE | -- COMMAND", help="A job in YAML, or what to run."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", min=1, help="Devices, all of one type.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What to call it.")] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", autocompletion=complete.devices, help="Device type it needs."),
    ] = None,
    kind: Annotated[str | None, typer.Option(hidden=True)] = None,  # as the file of a job has it
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Its model, or a profile in YAML: how much distance costs it."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="About how long it takes: 90m, 6h.")
    ] = None,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Higher goes first.")] = None,
    required: Annotated[
        str | None, typer.Option(metavar="TIER", help="Tier it is never spread beyond.")
    ] = None,
    preferred: Annotated[
        str | None, typer.Option(metavar="TIER", help="Tier that is near enough for it.")
    ] = None,
    per: Annotated[str | None, typer.Option(metavar="gpu|machine", help="One process for each.")] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time to save its state when it must move.")
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="How often it may fail and be tried again.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Environment. Repeatable.")] = None,
    cwd: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder to run in.", show_default="this one")
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="An id of your own: sent twice, it is taken once."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say where and when it would start.")
    ] = False,
    state: State = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job. It is durable once this command returns."""
    from berth.live.spec import as_sent

    options = {
        "gpus": gpus,
        "name": name,
        "kind": _one_of(device, kind),
        "model": model,
        "duration": as_sent(seconds(duration)) if duration is not None else None,
        "priority": priority,
        "required": required,
        "preferred": preferred,
        "per": per,
        "grace": as_sent(seconds(grace)) if grace is not None else None,
        "restarts": restarts,
        "cwd": os.path.abspath(cwd) if cwd is not None else None,
    }
    spec = _spec(
        command or [], {key: value for key, value in options.items() if value is not None}, env or []
    )
    asked = client(state, url)
    body = {"spec": spec, "id": id_} if id_ else {"spec": spec}
    if dry_run:
        _print_dry_run(asked.post("dry-run", body=body), as_json)
        return
    answer = asked.post("jobs", body=body)
    where = f"{asked.url}/#/job/{answer['job']}"
    if as_json:
        from berth.report.terminal import print_json

        print_json(answer | {"url": where})
    elif answer["new"]:
        typer.echo(f"{answer['job']}  {where}")
    else:
        typer.echo(f"{answer['job']}  was taken before: {answer['state']}")


def _spec(command: list[str], options: dict[str, Any], env: list[str]) -> dict[str, Any]:
    """The job as the file says, with what the command line says instead."""
    from berth import spec as yaml_spec
    from berth.live.spec import JobSpec

    given: dict[str, Any] = {}
    if len(command) == 1 and command[0].endswith((".yaml", ".yml")):
        beside = Path(command[0]).parent
        job = yaml_spec.load(command[0], JobSpec)
        if job.plan is not None:
            from berth.live.planned import with_plan

            job = with_plan(job, beside)
        given = job.plain()
        given |= _with_profile(given.get("model"), beside)
    elif command:
        given = {"run": command, "name": os.path.basename(command[-1 if len(command) == 1 else 0])[:200]}
        options.setdefault("cwd", os.getcwd())
    else:
        raise InputError(
            "there is nothing to run", hint="write it like: berth submit --gpus 8 -- python train.py"
        )
    if env:
        given["env"] = given.get("env", {}) | dict(_pair(text) for text in env)
    return given | options | _with_profile(options.get("model"), Path())


def _with_profile(model: Any, beside: Path) -> dict[str, Any]:
    """The model of a job; the profile in a file is sent with the job, because a controller reads no files."""
    if not isinstance(model, str) or not (model.endswith((".yaml", ".yml")) or "/" in model):
        return {} if model is None else {"model": model}
    from berth.live.profiles import inline_of
    from berth.workload.profiles import load_profile

    found = load_profile(beside / model)
    return {"model": inline_of(found).model_dump(mode="json")}


def _one_of(device: str | None, kind: str | None) -> str | None:
    """The device type, under either of its names."""
    if device is not None and kind not in (None, device):
        raise InputError("--device and --kind are two names of one thing", hint="give --device only")
    return device or kind


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"--env {text!r} must be KEY=VALUE", hint="write it like --env LR=0.1")
    return key, value


def _print_dry_run(told: dict[str, Any], as_json: bool) -> None:
    from berth.report.terminal import print_json

    if as_json:
        print_json(told)
    elif told["starts"] is None:
        from berth.report.terminal import console

        console().print(f"no estimate of its start: {told['blocker']} (modelled)", markup=False)
    else:
        from berth.report.terminal import console

        machines = ", ".join(f"{name}:{count}" for name, count in told["machines"].items())
        when = in_about(told["starts"], told["now"])
        text = f"it would start {when} within one {told['tier']} (modelled), on {machines}"
        console().print(text, markup=False)
