"""`berth submit`: submit a job from a file or from the command line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import complete
from berth.cli.live_options import LiveOptions, in_about
from berth.cli.option_groups import expand_options
from berth.cli.options import argument, flag, option
from berth.cli.quantities import dollars, read, read_positive
from berth.errors import InputError
from berth.report.terminal import console
from berth.units import as_sent, per_second, seconds

if TYPE_CHECKING:
    from berth.live.client import Client
    from berth.live.spec import JobSpec

EXAMPLES = (
    "berth submit --gpus 8 --name resnet -- python train.py --epochs 90",
    "berth submit job.yaml",
    "berth submit --plan plan.yaml -- berth train ctrdnn --checkpoint run1",
    "berth submit --model ctrdnn --examples 2B --deadline 6h",
)


_OF_GOALS = ("examples", "rows", "throughput", "budget")


@dataclass(frozen=True)
class JobOptions:
    """The job, as far as options describe it; None where a file or a default does."""

    gpus: Annotated[int | None, option("N", "Number of devices, all of one type.", min=1)] = None
    name: Annotated[str | None, option("NAME", "Name of the job.")] = None
    device: Annotated[str | None, option("DEVICE", "Required device type.", complete=complete.devices)] = None
    kind: Annotated[str | None, typer.Option(hidden=True)] = None  # its key in the file of a job
    model: Annotated[
        str | None, option("MODEL", "Its model, or a profile in YAML: the cost of distance.")
    ] = None
    duration: Annotated[str | None, option("TIME", "Expected duration: 90m, 6h.")] = None
    priority: Annotated[int | None, option("N", "Higher goes first.")] = None
    required: Annotated[str | None, option("TIER", "Widest tier that it may be spread over.")] = None
    preferred: Annotated[str | None, option("TIER", "Tier within which placement does not matter.")] = None
    per: Annotated[str | None, option("gpu|machine", "One process per GPU or machine.")] = None
    grace: Annotated[str | None, option("TIME", "Time to save its state when it is stopped.")] = None
    restarts: Annotated[int | None, option("N", "Maximum number of restarts after failures.", min=0)] = None
    preemptible: Annotated[
        str | None,
        option(
            "yes|no",
            "Whether it may be evicted for other jobs; no: nor migrated.",
            shown="policy berth: migrated, not evicted; any other, and berth:order=las: both",
        ),
    ] = None
    cwd: Annotated[str | None, option("DIR", "Folder to run in.", shown="this one")] = None
    plan: Annotated[
        str | None, option("FILE", "Run this plan, on the devices that it names, instead of --gpus.")
    ] = None
    deadline: Annotated[
        str | None, option("TIME", "Time from now by which a plan or an alternative must end: 6h.")
    ] = None
    examples: Annotated[
        str | None,
        option("N", "Train --model on N examples (2B), on devices that the controller plans for the goal."),
    ] = None
    rows: Annotated[str | None, option("N", "Rows of all its embedding tables.", shown="the model's")] = None
    throughput: Annotated[str | None, option("RATE", "The goal: examples per second (100k/s).")] = None
    budget: Annotated[
        str | None, option("USD", "The goal: the fastest for at most this ($200); --max-usd of berth plan.")
    ] = None

    def spec(self) -> dict[str, Any]:
        """Return the given options as the API takes them."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if given.pop("device", None) is not None and self.kind not in (None, self.device):
            raise InputError("--device and --kind are two names of one thing", hint="give --device only")
        if self.preemptible is not None:
            if self.preemptible not in ("yes", "no"):
                raise InputError(f"--preemptible: expected yes or no, got {self.preemptible!r}")
            given["preemptible"] = self.preemptible == "yes"
        if self.device is not None:
            given["kind"] = self.device
        given |= {
            name: as_sent(read(f"--{name}", seconds, given[name]))
            for name in ("duration", "grace", "deadline")
            if name in given
        }
        return given | ({"cwd": os.path.abspath(self.cwd)} if self.cwd is not None else {})


@expand_options
def submit(
    *,
    command: Annotated[
        list[str] | None, argument("FILE | -- COMMAND", "A job in YAML, or a command.")
    ] = None,
    job: JobOptions,
    env: Annotated[list[str] | None, option("K=V", "Environment variable. Repeatable.")] = None,
    id_: Annotated[
        str | None, option("ID", "Idempotency key: resubmitting with the same id is a no-op.", "--id")
    ] = None,
    dry_run: Annotated[bool, flag("Only print where and when it would start.", "--dry-run")] = False,
    options: LiveOptions,
) -> None:
    """Submit a job. It is durable once this command returns."""
    client = options.client()
    spec = _spec(command or [], job.spec(), env or [], client)
    body = {"spec": spec, "id": id_} if id_ else {"spec": spec}
    if dry_run:
        _show_dry_run(client.post("dry-run", body=body), options)
        return
    answer = client.post("jobs", body=body)
    url = f"{client.url}/#/job/{answer['job']}"
    note = url if answer["new"] else f"already submitted: {answer['state']}"
    options.show(answer | {"url": url}, f"{answer['job']}  {note}")


def _spec(command: list[str], options: dict[str, Any], env: list[str], client: Client) -> dict[str, Any]:
    """The job of the file or the command, with the options of the command line."""
    given: dict[str, Any] = {}
    if _is_file(command) or "plan" in options:
        _refuse_goal(options)
    if _is_file(command):
        given = _of_file(command[0], options, client)
    elif "plan" in options:
        given = _of_plan(command, options, client)
    elif {"examples", "throughput", "budget"} & options.keys():
        given = _of_goal(command, options, client)
    elif command:
        _check_is_command(command)
        given = {"run": command, "name": os.path.basename(command[-1 if len(command) == 1 else 0])[:200]}
        options.setdefault("cwd", os.getcwd())
    else:
        raise InputError(
            "there is nothing to run", hint="write it like: berth submit --gpus 8 -- python train.py"
        )
    if env:
        given["env"] = given.get("env", {}) | dict(_pair(text) for text in env)
    return given | options | _with_profile(options.get("model"), Path())


def _is_file(command: list[str]) -> bool:
    return len(command) == 1 and command[0].endswith((".yaml", ".yml"))


def _refuse_goal(options: dict[str, Any]) -> None:
    """Refuse options of a goal beside a plan or a job's file."""
    if given := [f"--{name}" for name in _OF_GOALS if name in options]:
        raise InputError(
            f"{' and '.join(given)}: for a goal, and a plan or a file says this itself",
            hint="leave it out (`work: 2B examples` in a job's file is how much there is to do), or give a model "
            "and a goal: berth submit --model ctrdnn --examples 2B --deadline 6h",
        )


def _check_is_command(command: list[str]) -> None:
    """Refuse one word that is a file and can't be executed: it is meant as a job."""
    path = command[0]
    if len(command) == 1 and os.path.isfile(path) and not os.access(path, os.X_OK) and not shutil.which(path):
        raise InputError(
            "is not a command that can be run",
            where=path,
            hint="the name of a job file ends in .yaml; to run a script, name its interpreter: -- python FILE",
        )


def _of_file(path: str, options: dict[str, Any], client: Client) -> dict[str, Any]:
    """The job of a file; with a plan or alternatives, as they are on the controller's cluster."""
    from berth import spec as yaml_spec
    from berth.live.spec import JobSpec

    text, beside = yaml_spec.read_text(path), Path(path).parent
    job = yaml_spec.parse(text, JobSpec, path)
    if job.plan is None and job.alternatives is None and "plan" not in options:
        given = job.to_dict()
        return given | _with_profile(given.get("model"), beside)

    def position(*keys: int | str) -> str:
        line, column = yaml_spec.locate(text, keys)
        return f"{path}:{line}:{column}"

    if (plan := options.pop("plan", None)) is not None:
        if job.alternatives is not None:
            raise InputError(
                "the job has `alternatives`, so --plan can't replace them",
                where=position("alternatives"),
                hint=f"leave out --plan, or add it to them: - plan: {plan}",
            )
        job = job.model_copy(update={"plan": os.path.abspath(plan), "alternatives": None})
        position = _at_option
    return _sent(job, position, beside, options, client)


def _of_plan(command: list[str], options: dict[str, Any], client: Client) -> dict[str, Any]:
    """The job of --plan, with a command or the one that trains the plan's model."""
    from berth.live.spec import JobSpec

    plan = options.pop("plan")
    name = Path(plan).stem[:200]
    job = JobSpec(plan=os.path.abspath(plan), run=command or None, name=name, cwd=os.getcwd())
    return _sent(job, _at_option, Path(), options, client)


def _of_goal(command: list[str], options: dict[str, Any], client: Client) -> dict[str, Any]:
    """The job of a goal: its alternatives are planned by the controller."""
    from berth.live.planned import training_command
    from berth.workload.shapes import parse_work

    model, examples = options.pop("model", None), options.pop("examples", None)
    if model is None or examples is None:
        raise InputError(
            "a goal needs a model and its examples",
            hint="write it like: berth submit --model ctrdnn --examples 2B --deadline 6h",
        )
    amount = parse_work(f"{examples} examples").amount
    body: dict[str, Any] = {"model": model, "examples": amount}
    if "deadline" in options:
        body["deadline_s"] = seconds(options.pop("deadline"))
    if "throughput" in options:
        body["examples_per_s"] = read_positive("--throughput", per_second, options.pop("throughput"))
    if "budget" in options:
        body["budget_usd"] = dollars("--budget", options.pop("budget"))
    goals = len(body) - 2
    if "rows" in options:
        body["rows"] = parse_work(f"{options.pop('rows')} examples").amount
    if goals != 1:
        raise InputError(
            "a job has one goal", hint="give one of --deadline 6h, --throughput 100k/s and --budget 200"
        )
    given: dict[str, Any] = client.post("plans", body=body)
    run = command or training_command(model, "examples", amount)
    return given | {"run": run, "name": model, "cwd": os.getcwd()}


def _sent(
    job: JobSpec, position: Callable[..., str], beside: Path, options: dict[str, Any], client: Client
) -> dict[str, Any]:
    from berth.live.planned import cluster_of, sent_job

    if "deadline" in options:
        job = job.model_copy(update={"deadline": seconds(options.pop("deadline"))})
    return sent_job(job, position, beside, cluster_of(client.get("cluster")), os.getcwd())


def _at_option(*keys: int | str) -> str:
    return "--plan"


def _with_profile(model: Any, beside: Path) -> dict[str, Any]:
    """The model of a job; a profile in a file is sent with the job, because the controller reads no files."""
    if not isinstance(model, str) or not (model.endswith((".yaml", ".yml")) or "/" in model):
        return {} if model is None else {"model": model}
    from berth.live.profiles import inline_of
    from berth.workload.profiles import load_profile

    found = load_profile(beside / model)
    return {"model": inline_of(found).model_dump(mode="json")}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"--env {text!r} must be KEY=VALUE", hint="write it like --env LR=0.1")
    return key, value


def _show_dry_run(answer: dict[str, Any], options: LiveOptions) -> None:
    if options.print_json(answer):
        return
    if answer["starts"] is None:
        text = f"no estimate of its start: {answer['blocker']} (modelled)"
    else:
        machines = ", ".join(f"{name}:{count}" for name, count in answer["machines"].items())
        when = in_about(answer["starts"], answer["now"])
        shape = f" as {answer['shape']}" if answer.get("shape") else ""
        text = f"it would start {when}{shape} within one {answer['tier']} (modelled), on {machines}"
    console().print(text, markup=False)
