"""A plan file, a scale, and the processes that follow from them."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
from typer.testing import CliRunner

from berth.cli.main import app
from berth.errors import InputError
from berth.plan.profile import load_layer_profile
from berth.plan.profile.files import write_profile
from berth.train.launch_config import resolve
from berth.train.options import TrainOptions
from berth.train.orchestrate import start
from berth.train.planned import planned_run, read_scale
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from berth.train.stages.cut import StageCut
from berth.train.worker import worker_session
from berth.units import format_count
from berth.zoo import make_model

HEAD = "model: {model}\ndevices: [cpu-core, T4]\nthroughput: 10/s\nsamples: 1000000\nrows: 1000000\n"


@cache
def layer_names(model: str) -> tuple[str, ...]:
    """Return the names of a model's layers; to make nce takes half a second."""
    return tuple(make_model(model, rows=1).names)


def plan_file(path, *stages: str, model: str = "nce", more: str = "batch: 64\nmicro_batches: 2\n"):
    text = HEAD.format(model=model) + more + "stages:\n"
    path.write_text(text + "".join(f"  - {{{stage}}}\n" for stage in stages))
    return str(path)


def two_stages(path, first: int = 8, second: int = 5, servers: int = 3, **more):
    names = layer_names("nce")
    return plan_file(
        path,
        f"layers: {names[0]}, type: cpu-core, replicas: {first}, tables: servers, servers: {servers}",
        f"layers: {names[1]} .. {names[-1]}, type: T4, replicas: {second}, tables: servers, servers: {servers}",
        **more,
    )


def one_stage(
    path, replicas: int = 7, *, more: str = "batch: 64\nmicro_batches: 2\n", tables: str = "servers"
):
    names = layer_names("ctrdnn-8")
    servers = ", servers: 2" if tables == "servers" else ""
    stage = (
        f"layers: {names[0]} .. {names[-1]}, type: cpu-core, replicas: {replicas}, tables: {tables}{servers}"
    )
    return plan_file(path, stage, model="ctrdnn-8", more=more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.yaml"


def test_a_plans_stages_are_those_of_its_file(path):
    names = layer_names("nce")
    run = planned_run(two_stages(path), "nce", names, {"T4": 2.0})
    assert run.cuts == (StageCut(0, 0, "cpu-core"), StageCut(1, len(names) - 1, "T4", 2.0))
    assert (run.layout.replicas, run.servers, run.batch, run.micro_batches) == ((8, 5), (3, 3), 64, 2)
    with pytest.raises(InputError, match="this plan is for nce"):
        planned_run(str(path), "ctrdnn", layer_names("ctrdnn"), {})
    with pytest.raises(InputError, match="the plan does not use H100"):
        planned_run(str(path), "nce", names, {"H100": 2.0})


def test_a_plan_for_a_profile_of_ones_own_is_held_against_its_layers(path, tmp_path):
    names = layer_names("nce")
    write_profile(load_layer_profile("nce"), tmp_path / "mine.yaml")
    two_stages(path, model="mine.yaml")
    assert [cut.last for cut in planned_run(str(path), "my_model", names, {}).cuts] == [0, len(names) - 1]
    with pytest.raises(InputError, match=r"for mine\.yaml with 5 layers, not for my_model with 4"):
        planned_run(str(path), "my_model", names[1:], {})


@pytest.mark.parametrize(
    ("scale", "replicas", "servers"),
    [("1", (8, 5), (3, 3)), ("1/2", (4, 3), (2, 2)), ("1/3", (3, 2), (1, 1)), ("0.001", (1, 1), (1, 1))],
)
def test_every_count_is_scaled_and_rounded_up(path, scale, replicas, servers):
    run = planned_run(two_stages(path), "nce", layer_names("nce"), {}, scale)
    assert (run.layout.replicas, run.servers) == (replicas, servers)
    assert run.batch == 64  # what is learned does not depend on the scale


@pytest.mark.parametrize(
    "text", ["", "0", "1/0", "0/3", "-1/2", "2", "3/2", "half", "1/x", "nan", "inf", "1/2/3"]
)
def test_a_scale_that_leaves_nothing_or_is_not_understood_is_one_message(text):
    with pytest.raises(InputError) as error:
        read_scale(text)
    assert str(error.value).splitlines() == [
        f'--scale: expected a fraction above 0 and up to 1, got "{text}"',
        "  for example --scale 1/10",
    ]


def test_a_scale_may_be_a_fraction_or_a_decimal():
    assert read_scale("1/10") == read_scale("0.1") == read_scale(" 1 / 10 ") == Fraction(1, 10)


def test_what_was_planned_started_and_not_started_is_printed(path):
    made = make_recipe("nce", batch=64)
    options = TrainOptions(
        plan=two_stages(path, more="batch: 64\nmicro_batches: 2\nreaders: 2\n"), scale="1/4"
    )
    assert resolve(made, options, None, print).describe(made) == [
        f"{path}: planned 13 workers in 2 stages, 6 servers, 2 readers",
        "  started at scale 1/4: 4 workers, 2 servers (sync)",
        "  stage 1: context_embedding; planned 8 x cpu-core, started 2 processes",
        "  stage 2: pooling .. loss; planned 5 x T4, started 2 processes, emulated on cores",
        "  not started: 9 workers (--scale 1/4)",
        "  not started: 4 servers of 6",
        "  not started: 2 readers; the 2 workers of stage 1 read in a thread",
    ]


def test_a_plan_of_one_stage_has_its_workers_and_servers(path):
    made = make_recipe("ctrdnn-8", batch=64)
    config = resolve(made, TrainOptions(plan=one_stage(path)), None, print)
    assert (config.layout.replicas, config.cuts, config.servers) == ((7,), (), 2)
    assert config.server.workers == 7
    lines = config.describe(made)
    assert "  stage 1: embedding .. loss; planned 7 x cpu-core, started 7 processes" in lines
    assert "  not started: 2 micro-batches; workers of one stage have no pipeline" in lines


@pytest.mark.parametrize("place", ["replicas", "machine"])
def test_tables_planned_in_memory_are_in_the_memory_of_workers(path, place):
    made = make_recipe("ctrdnn-8", batch=64)
    config = resolve(made, TrainOptions(plan=one_stage(path, tables=place)), None, print)
    assert (config.servers, config.resident) == (0, True)
    lines = config.describe(made)
    assert lines[1] == "  started: 7 workers, tables in their memory (sync)"
    assert not any("tables" in line for line in lines if "not started" in line)


@pytest.mark.parametrize("asked", [{"tables": "servers"}, {"servers": 1}], ids=str)
def test_tables_planned_in_memory_are_on_servers_if_asked_for_which_is_printed(path, asked):
    made = make_recipe("ctrdnn-8", batch=64)
    config = resolve(made, TrainOptions(plan=one_stage(path, tables="replicas"), **asked), None, print)
    assert (config.servers, config.resident) == (1, False)
    assert "  not started: tables in the memory of workers; they are on servers here" in config.describe(made)


def test_tables_of_an_async_plan_are_on_servers_with_the_reason(path):
    made = make_recipe("ctrdnn-8", batch=64)
    plan = one_stage(path, 2, tables="replicas", more="mode: async\nbatch_per_replica: 64\n")
    config = resolve(made, TrainOptions(plan=plan, mode="async"), None, print)
    assert (config.servers, config.resident) == (1, False)
    (line,) = [line for line in config.describe(made) if "not started: tables" in line]
    assert line.endswith("they are on servers here: mode async excludes them")


def mixed(path):
    """Tables in the memory of the two replicas of stage 1, and on three servers for stage 2."""
    names = layer_names("nce")
    return plan_file(
        path,
        f"layers: {names[0]} .. {names[2]}, type: cpu-core, replicas: 2, tables: replicas",
        f"layers: {names[3]} .. {names[-1]}, type: cpu-core, replicas: 4, tables: servers, servers: 3",
    )


@pytest.mark.parametrize(("asked", "servers"), [({}, 3), ({"servers": 1}, 1)], ids=str)
def test_tables_in_memory_and_on_servers_are_where_they_are_planned(path, asked, servers):
    made = make_recipe("nce", batch=64)
    config = resolve(made, TrainOptions(plan=mixed(path), **asked), None, print)
    assert (config.servers, config.resident_stages, config.server.workers) == (servers, {0}, 6)
    lines = config.describe(made)
    counts = format_count(servers, "server")
    assert (
        lines[1] == f"  started: 6 workers, {counts}, tables of stage 1 in the memory of its workers (sync)"
    )
    assert not any("not started: tables" in line for line in lines)


def test_memory_and_compression_of_a_mixed_plan_are_those_of_its_servers(path):
    options = TrainOptions(plan=mixed(path), memory="30MB", codec="bf16")
    config = resolve(make_recipe("nce", batch=64), options, None, print)
    assert (config.resident_stages, config.servers, config.server.memory_bytes) == ({0}, 3, 10_000_000)


def test_tables_of_a_mixed_plan_are_all_on_servers_if_asked_for_which_is_printed(path):
    made = make_recipe("nce", batch=64)
    config = resolve(made, TrainOptions(plan=mixed(path), tables="servers"), None, print)
    assert (config.servers, config.resident) == (3, False)
    assert "  not started: tables in the memory of workers; they are on servers here" in config.describe(made)


def test_a_mixed_plan_needs_a_server(path):
    with pytest.raises(InputError, match=r"takes a server\n.*--servers 1 or more"):
        resolve(make_recipe("nce", batch=64), TrainOptions(plan=mixed(path), servers=0), None, print)


def test_options_that_exclude_planned_resident_tables_are_one_message(path):
    made = make_recipe("ctrdnn-8", batch=64)
    options = TrainOptions(plan=one_stage(path, tables="replicas"), memory="1GiB")
    with pytest.raises(
        InputError, match=r"as planned, and --memory exclude each other.*\n.*--tables servers"
    ):
        resolve(made, options, None, print)


def test_servers_can_be_set_beside_a_plan(path):
    made = make_recipe("ctrdnn-8", batch=64)
    config = resolve(made, TrainOptions(plan=one_stage(path), servers=1), None, print)
    assert config.servers == 1
    assert "  not started: 1 server of 2" in config.describe(made)


def test_ranks_of_the_environment_run_a_plan_of_one_stage(path):
    """As a job of the scheduler does, with a process for each machine."""
    made = make_recipe("ctrdnn-8", batch=64)
    config = resolve(made, TrainOptions(plan=one_stage(path)), RankInfo(0, 2, "10.0.0.1", 1), print)
    assert config.layout.replicas == (2,)
    assert "  not started: 5 workers (2 were provided)" in config.describe(made)
    as_planned = resolve(made, TrainOptions(plan=str(path)), RankInfo(0, 7, "10.0.0.1", 1), print)
    assert as_planned.layout.replicas == (7,)


def test_stages_need_a_rank_for_each_replica(path):
    made = make_recipe("nce", batch=64)
    config = resolve(made, TrainOptions(plan=two_stages(path)), RankInfo(0, 2, "127.0.0.1", 1), print)
    with pytest.raises(
        InputError, match=r"2 processes were started, but the stages need 8 \+ 5 = 13\n.*--scale"
    ):
        worker_session(made, config, RankInfo(0, 2, "127.0.0.1", 1))


def test_the_only_process_of_a_job_launches_those_of_the_plan(path, monkeypatch):
    for name, value in RankInfo(0, 1, "127.0.0.1", 1).environment().items():
        monkeypatch.setenv(name, value)
    launched = []
    monkeypatch.setattr(
        "berth.train.launch.launch", lambda command, config, notify: launched.append(config) or 0
    )
    made = make_recipe("ctrdnn-8", batch=64)
    assert start(made, TrainOptions(plan=one_stage(path)), ["berth"], lambda line: None) == 0
    assert launched[0].layout.replicas == (7,)


def test_a_plan_that_is_far_too_large_for_the_machine_needs_a_scale(path):
    names = layer_names("ctrdnn-8")
    large = planned_run(one_stage(path, 300), "ctrdnn-8", names, {})
    with pytest.raises(InputError, match=r"the plan has 302 processes, this machine 2 cores\n.*--scale 1/19"):
        large.check_size(cores=2)
    large.check_size(cores=96)
    for scale in ("1/19", "1"):
        planned_run(str(path), "ctrdnn-8", names, {}, scale).check_size(cores=2)


def test_the_mode_is_that_of_the_plan(path):
    made = make_recipe("ctrdnn-8", batch=64)
    text = one_stage(path, 4, more="mode: async\nbatch_per_replica: 32\n")
    assert planned_run(text, "ctrdnn-8", made.model.names, {}, "1/2").batch == 64  # two replicas of 32
    with pytest.raises(InputError, match="the plan is for mode async, not sync"):
        resolve(made, TrainOptions(plan=text), None, print)
    assert resolve(made, TrainOptions(plan=text, mode="async"), None, print).server.mode == "async"


def test_stages_train_in_mode_sync_only(path):
    made = make_recipe("nce", batch=64)
    text = two_stages(path, more="mode: async\nbatch_per_replica: 32\n")
    with pytest.raises(InputError, match="stages train in mode sync"):
        resolve(made, TrainOptions(plan=text, mode="async"), None, print)
    with pytest.raises(InputError, match="stages train in mode sync"):
        TrainOptions(stages=2, mode="half-async")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plan": "p", "workers": 2}, "--plan and --workers exclude each other"),
        ({"scale": "1/2"}, "--scale applies to the counts of a plan"),
        ({"micro_batches": 2}, "--micro applies to models that are split into stages"),
    ],
)
def test_options_that_a_plan_leaves_no_meaning_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        TrainOptions(**options)


@pytest.fixture
def shown(path):
    """The report of a plan of which one worker is started, in this process."""
    plan = one_stage(path, 7, tables="replicas", more="batch: 64\nmicro_batches: 2\nreaders: 2\n")
    done = CliRunner().invoke(app, ["train", "ctrdnn-8", "--plan", plan, "--scale", "1/7", "--steps", "5"])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.mark.slow
def test_a_run_in_one_process_prints_what_was_planned_and_the_comparison_too(shown):
    out, said = shown
    assert "planned 7 workers in 1 stage, 0 servers, 2 readers" in said
    assert "started at scale 1/7: 1 worker, tables in its memory (sync)" in said
    assert "ctrdnn-8: done at step 5: 320 examples" in out  # batches as planned
    assert "Plan: time of a step of 64 examples" in out
    rows = {line.split()[0]: line.split() for line in out.partition("Plan:")[2].splitlines() if line.split()}
    assert rows["1"][1:5] == ["cpu-core", "1", "of", "7"]
    assert len(rows["1"]) == 9  # predicted, measured, ratio, source
    assert rows["examples/s"][-1] == "modelled"
    assert "not started: 6 workers (--scale 1/7)" in out
    assert "tables in the memory" not in out  # they are in the worker, as planned
    assert max(map(len, out.splitlines())) <= 80


def test_an_emulated_device_slows_workers_of_a_plan_with_one_stage_down(path):
    made = make_recipe("ctrdnn-8", batch=64)
    config = resolve(made, TrainOptions(plan=one_stage(path), slowdowns={"cpu-core": 3.0}), None, print)
    assert config.slowdown == 3.0


@pytest.mark.slow
def test_micro_batches_are_those_of_the_plan_unless_given(path):
    made, plan = make_recipe("nce", batch=64), two_stages(path, 2, 1, 1)
    assert resolve(made, TrainOptions(plan=plan), None, print).micro_batches == 2
    assert resolve(made, TrainOptions(plan=plan, micro_batches=3), None, print).micro_batches == 3
    assert resolve(made, TrainOptions(stages=2), None, print).micro_batches == 4
    made = make_recipe("ctrdnn-8", batch=64)
    with pytest.raises(InputError, match="--micro applies to models that are split"):
        resolve(made, TrainOptions(plan=one_stage(path.with_name("one.yaml")), micro_batches=2), None, print)
