"""berth over a real Slurm: eight nodes on this machine, their GPUs files, everything else as it is anywhere."""

from __future__ import annotations

import json
import time

import pytest
import small_slurm

from berth.live import commands
from berth.live.backend import AttemptStatus, BackendError, Forget, Launch, MachineStatus, Member, Stop
from berth.live.backends.slurm import SlurmBackend
from berth.live.backends.slurm_commands import SlurmCommands
from berth.live.folder import Folder

pytestmark = pytest.mark.slow


def env_of(folder: Folder, rank: int) -> dict[str, str]:
    return dict(line.split("=", 1) for line in folder.log(rank).read_text().splitlines() if "=" in line)


def launch_of(token: str, run: str, machines: dict[str, list[int]], **facts) -> Launch:
    members = [
        (machine, local, device)
        for machine, devices in machines.items()
        for local, device in enumerate(devices)
    ]
    return Launch(
        token,
        job="j1",
        attempt=1,
        name="job",
        user="ada",
        argv=("/bin/sh", "-c", run),
        members=tuple(Member(r, local, name, (device,)) for r, (name, local, device) in enumerate(members)),
        grace_s=1.0,
        **facts,
    )


@pytest.fixture
def backend(slurm, tmp_path):
    return SlurmBackend(tmp_path, timeouts=small_slurm.TIMEOUTS)


def until_seen(slurm_module, backend, token: str, state: str) -> AttemptStatus:
    def there() -> bool:
        seen = backend.observe().attempts.get(token)
        return seen is not None and seen.state == state

    slurm_module.until(there, f"{token} is {state}", lambda: str(backend.observe().attempts))
    return backend.observe().attempts[token]


def test_nodes_gpus_and_switches_are_found(backend):
    cluster = backend.cluster()
    assert [tier.name for tier in cluster.tiers] == ["machine", "rack", "network"]
    assert cluster.group_names[1:] == (("r0", "r1"), ("top",))
    assert cluster.groups[1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [kind.name for kind in cluster.device_types] == ["a100"]
    assert {machine.size for machine in cluster.machines} == {8}
    (note,) = cluster.notes
    assert "gpu:a100 may be A100-40 or A100-80" in note


def test_a_gang_over_two_nodes_runs_with_its_environment(desk):
    one = desk()
    job = one.submit("env", gpus=12, per="gpu")
    one.until_over(job)
    assert (one.over(job)["state"], one.over(job)["attempts"], one.over(job)["code"]) == ("finished", 1, 0)
    folder = Folder(one.folder / "attempts", one.store.tokens_of(job)[0])
    envs = [env_of(folder, rank) for rank in range(12)]
    assert [env["RANK"] for env in envs] == [str(rank) for rank in range(12)]
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        assert len({env[name] for env in envs}) == 1
    assert envs[0]["WORLD_SIZE"] == "12"
    places = {(env["BERTH_MACHINE"], env["CUDA_VISIBLE_DEVICES"]) for env in envs}
    assert len(places) == 12
    machines = {env["BERTH_MACHINE"] for env in envs}
    assert len(machines) == 2
    assert machines < {"n00", "n01", "n02", "n03"} or machines < {"n04", "n05", "n06", "n07"}
    assert not any(name.startswith("SLURM") for env in envs for name in env)


def test_a_gang_of_three_here_and_five_there_asks_slurm_for_just_that(backend, slurm, small):
    order = launch_of("t-1", "sleep 600", {"n01": [0, 1, 2], "n06": [3, 4, 5, 6, 7]})
    assert backend.apply([order]) == [order]
    until_seen(small, backend, "t-1", "running")
    held = {job["nodes"]: job["gres_detail"][0].split("(")[0] for job in slurm.jobs()}
    assert held == {"n01": "gpu:a100:3", "n06": "gpu:a100:5"}
    assert all(machine == MachineStatus() for machine in backend.observe().machines.values())
    stop = Stop("t-1", 1.0)
    assert backend.apply([stop]) == [stop]
    seen = until_seen(small, backend, "t-1", "ended")
    assert (seen.stopped, seen.lost, set(seen.codes)) == (True, False, {143})
    forget = Forget("t-1")
    assert backend.apply([forget]) == [forget]
    assert backend.observe().attempts == {}


def test_a_doubled_launch_starts_once_also_if_its_answer_was_lost(backend, slurm, small, tmp_path):
    order = launch_of("t-2", f"echo . >> {tmp_path}/starts; sleep 2", {"n00": [0], "n01": [0]})
    backend.apply([order, order])
    # the answers of sbatch and all that was written about them are gone
    Folder(tmp_path, "t-2").path.joinpath("slurm.json").unlink()
    assert backend.apply([order]) == [order]
    assert SlurmBackend(tmp_path).apply([order]) == [order]
    seen = until_seen(small, backend, "t-2", "ended")
    assert seen.codes == (0, 0)
    assert (tmp_path / "starts").read_text() == ".\n.\n"
    assert len([job for job in SlurmCommands().jobs() if job.ours and job.ours[0] == "t-2"]) == 2


def test_what_was_submitted_but_not_released_is_found_and_not_submitted_again(
    backend, slurm, small, monkeypatch
):
    began, order = time.time(), launch_of("t-3", "true", {"n00": [0], "n05": [0]})

    def cut_short(*_):
        raise BackendError("no answer")

    monkeypatch.setattr(SlurmCommands, "release", cut_short)
    backend.apply([order])
    monkeypatch.undo()
    assert {job["state_reason"] for job in slurm.jobs()} == {"JobHeldUser"}
    status = until_seen(small, backend, "t-3", "ended")
    assert status == AttemptStatus("ended", codes=(0, 0), code=0, ended=status.ended)
    assert began < status.ended <= time.time()
    assert len([job for job in SlurmCommands().jobs() if job.ours and job.ours[0] == "t-3"]) == 2


def test_what_was_cut_short_between_two_submissions_is_gone_on_with(backend, slurm, small, monkeypatch):
    began, order = time.time(), launch_of("t-6", "true", {"n00": [0], "n05": [0]})
    run, submitted = SlurmCommands.run, []

    def cut_short(self, *argv, text=""):
        if argv[0] == "sbatch" and submitted:
            raise BackendError("no answer")
        submitted.extend(argv[:1] if argv[0] == "sbatch" else ())
        return run(self, *argv, text=text)

    monkeypatch.setattr(SlurmCommands, "run", cut_short)
    assert backend.apply([order]) == []
    monkeypatch.undo()
    assert [job["name"] for job in slurm.jobs()] == ["berth:t-6:0"]
    assert "t-6" not in backend.observe().attempts  # so it is asked for again
    assert backend.apply([order]) == [order]
    status = until_seen(small, backend, "t-6", "ended")
    assert status == AttemptStatus("ended", codes=(0, 0), code=0, ended=status.ended)
    assert began < status.ended <= time.time()
    assert len([job for job in SlurmCommands().jobs() if job.ours and job.ours[0] == "t-6"]) == 2


def test_a_job_of_another_user_with_a_name_of_ours_is_neither_adopted_nor_cancelled(backend, slurm, small):
    order = launch_of("t-7", "sleep 600", {"n00": [0]})
    backend.apply([order])
    until_seen(small, backend, "t-7", "running")
    theirs = ("--uid=65534", "--job-name=berth:t-7:0", "--hold", "-o/dev/null", "--chdir=/", "--wrap=true")
    number = int(slurm.run("sbatch", "--parsable", *theirs))
    assert number not in {job.id for job in SlurmCommands().jobs()}
    backend.observe()
    assert [job["job_state"] for job in slurm.jobs() if job["job_id"] == number] == ["PENDING"]
    slurm.run("scancel", str(number))


def test_jobs_ask_for_the_longest_time_that_the_partition_allows(backend, slurm, small):
    slurm.run("scontrol", "update", "partitionname=main", "MaxTime=90", "DefaultTime=1")
    try:
        backend.observe()
        backend.apply([launch_of("t-8", "sleep 600", {"n00": [0]})])
        until_seen(small, backend, "t-8", "running")
        assert [job["time_limit"] for job in slurm.jobs()] == [90]
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "MaxTime=INFINITE", "DefaultTime=INFINITE")


def test_a_stop_before_the_launch_keeps_it_from_ever_starting(backend, slurm):
    stop, order = Stop("t-4", 1.0), launch_of("t-4", "true", {"n00": [0]})
    assert backend.apply([stop]) == [stop]
    assert backend.apply([order]) == [order]
    seen = backend.observe().attempts["t-4"]
    assert (seen.state, seen.stopped, seen.codes) == ("ended", True, ())
    assert slurm.jobs() == []


def test_a_gang_that_slurm_will_not_take_has_failed_and_says_why(backend, slurm, tmp_path):
    order = launch_of("t-5", "true", {"n00": [0], "n99": [0]})
    assert backend.apply([order]) == [order]
    backend.observe()
    seen = backend.observe().attempts["t-5"]
    assert (seen.state, seen.codes, seen.cause) == ("ended", (1,), "refused")
    assert "n99" in seen.detail
    assert "n99" in Folder(tmp_path, "t-5").log(0).read_text()
    assert slurm.jobs() == []


def test_a_controller_of_slurm_that_does_not_answer_is_an_error_and_no_empty_cluster(
    backend, slurm, tmp_path, monkeypatch
):
    elsewhere = slurm.conf_with(tmp_path / "slurm.conf", SlurmctldPort=1, MessageTimeout=2)
    monkeypatch.setenv("SLURM_CONF", str(elsewhere))
    with pytest.raises(BackendError):
        backend.observe()
    with pytest.raises(BackendError):
        SlurmCommands().jobs()


def test_a_drained_node_takes_no_jobs_and_comes_back(desk, slurm):
    one = desk()
    for node in ("n00", "n01", "n02"):
        slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    job = one.submit("sleep 600", gpus=16)
    one.until_running(job)
    assert not {"n00", "n01", "n02"} & set(one.machines(job))
    slurm.run("scontrol", "update", "nodename=n00", "state=resume")
    one.until(lambda: not one.controller.state.unavailable[0], "n00 is open again")
    one.ask(commands.cancel(job))
    one.until_over(job)
    assert one.over(job)["state"] == "cancelled"


def test_gpus_of_an_external_job_are_not_used(desk, slurm, small):
    for node in small.NODES:
        slurm.run(
            "sbatch", f"--nodelist={node}", "--gres=gpu:5", "--mem=1000", "-o/dev/null", "--wrap=sleep 600"
        )
    small.until(lambda: all(job["job_state"] == "RUNNING" for job in slurm.jobs()), "the others run")
    one = desk()
    job = one.submit("sleep 600", gpus=6)
    one.until_running(job)
    assert {one.controller.observer.observation.machines[node].external for node in small.NODES} == {5}
    assert len(one.machines(job)) == 2
    held = [j for j in slurm.jobs() if j["name"].startswith("berth:")]
    assert {j["gres_detail"][0].split("(")[0] for j in held} == {"gpu:a100:3"}


def test_an_evicted_gang_gets_sigterm_and_resumes_elsewhere(desk, slurm, small, tmp_path, two_machines):
    one = desk(cluster=two_machines, policy="srtf")
    folder = tmp_path / "long"
    long = one.submit(**small.counting(folder, 10, go=False, gpus=8, duration="2h"))
    one.until((folder / "count").exists, "it counts")
    [home] = one.machines(long)
    short = one.submit(small.until_file(tmp_path / "enough"), gpus=16, duration="1s")
    one.until_running(short)
    assert not one.running(long)
    slurm.run("scontrol", "update", f"nodename={home}", "state=drain", "reason=test")
    for file in (tmp_path / "enough", folder / "go"):
        file.touch()
    one.until_over(short, long)
    assert {one.over(job)["state"] for job in (short, long)} == {"finished"}
    first, second = small.record(folder, "start")
    assert (first[1], second[1]) == (home, "n01" if home == "n00" else "n00")
    assert int(second[2]) > 0
    assert small.record(folder, "finish") == [[second[0]]]


def until_lost(one, slurm, machine: str) -> None:
    index = slurm.nodes.index(machine)
    one.until(lambda: "lost" in one.controller.state.unavailable[index], f"{machine} is gone")


def test_a_gang_that_lost_a_node_runs_again_and_finishes_once(desk, slurm, small, tmp_path):
    one = desk()
    folder = tmp_path / "gang"
    job = one.submit(**small.counting(folder, 10, go=False, gpus=16))
    one.until((folder / "count").exists, "it counts")
    lost = one.machines(job)[1]
    slurm.lose(lost)
    until_lost(one, slurm, lost)
    (folder / "go").touch()
    one.until_over(job)
    assert (one.over(job)["state"], one.over(job)["failures"]) == ("finished", 0)
    starts = small.record(folder, "start")
    assert [start[0] for start in starts] == ["1", "1", "2", "2"]
    assert lost not in {start[1] for start in starts if start[0] == "2"}
    assert small.record(folder, "finish") == [["2"]]


def test_processes_that_outlive_their_slurmd_end_before_the_job_runs_again(desk, slurm, small, tmp_path):
    one = desk()
    folder = tmp_path / "alone"
    job = one.submit(**small.counting(folder, 10, go=False, gpus=8))
    one.until((folder / "count").exists, "it counts")
    [lost] = one.machines(job)
    slurm.kill(lost)
    slurm.close(lost)
    until_lost(one, slurm, lost)
    reported = int((folder / "count").read_text())
    one.until(lambda: len(small.record(folder, "start")) == 2, "it runs again")
    (folder / "go").touch()
    one.until_over(job)
    first, second = small.record(folder, "start")
    assert (first[0], second[0]) == ("1", "2")
    assert int(second[2]) >= reported > 0  # it ran until it was asked to stop
    assert small.record(folder, "finish") == [["2"]]


def test_a_job_that_was_cancelled_in_slurm_runs_again(desk, slurm, small, tmp_path):
    one = desk()
    folder = tmp_path / "cancelled"
    job = one.submit(**small.counting(folder, 5, go=False, gpus=8))
    one.until((folder / "count").exists, "it counts")
    slurm.run("scancel", *(str(found["job_id"]) for found in slurm.jobs()))
    one.until(lambda: len(small.record(folder, "start")) == 2, "it runs again")
    (folder / "go").touch()
    one.until_over(job)
    assert (one.over(job)["state"], one.over(job)["failures"]) == ("finished", 0)
    assert [start[0] for start in small.record(folder, "start")] == ["1", "2"]


def test_jobs_go_on_when_the_controller_is_killed_and_none_is_lost_or_doubled(
    desk, apart, slurm, small, tmp_path
):
    folders = [tmp_path / f"job{number}" for number in range(10)]
    specs = [
        json.dumps(small.counting(folder, 20 + 5 * number, gpus=8, grace="1s", per="machine"))
        for number, folder in enumerate(folders)
    ]
    store = tmp_path / "store0"
    controller = apart(store, *specs)
    small.until(lambda: any((folder / "count").exists() for folder in folders), "the first one counts")
    controller.kill()
    controller.wait()
    one = desk()
    assert one.store.name == next(iter((store / "attempts" / "live").iterdir())).name.split("-")[0]
    one.until(lambda: not one.controller.state.jobs, "all are over")
    assert {one.over(f"j{number + 1}")["state"] for number in range(10)} == {"finished"}
    for folder in folders:
        assert [start[0] for start in small.record(folder, "start")] == ["1"]
        assert small.record(folder, "finish") == [["1"]]
