"""The same thing has the same name, the same words and the same look in every verb."""

from __future__ import annotations

import lzma
import re
import shlex
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import typer

from berth.cli.main import app


def commands() -> dict[str, Any]:
    """Every command by the words that start it; groups that only hold others are not among them."""
    found: dict[str, Any] = {}

    def visit(command: Any, words: list[str]) -> None:
        parts = getattr(command, "commands", {})
        if not parts or command.invoke_without_command:
            found[" ".join(words)] = command
        for name, part in parts.items():
            visit(part, [*words, name])

    visit(typer.main.get_command(app), [])
    return found


def examples(command: Any) -> list[str]:
    """What its help ends with, line by line."""
    return [line.strip() for line in command.epilog.splitlines()[1:]]


COMMANDS = commands()
EXAMPLES = [one for command in COMMANDS.values() for one in examples(command)]

WITHOUT_JSON = {"up", "view", "logs"}  # servers, and the bytes of a job

# One name for two things: the same idea in another unit, or a list of what is one elsewhere.
SEVERAL_FORMS = {
    "--budget": {"N", "USD"},  # evaluations of a search, the price of a job
    "--checkpoint-every": {"N", "TIME"},  # steps of a training, virtual time of a simulation
    "--congestion": {"X", "LIST"},
    "--load": {"SHARE", "LIST"},
    "--micro": {"N", "N,N"},  # of a training, to choose from in a plan
    "--mix": {"MIX", "LIST"},
    "--out": {"FILE", "DIR"},
    "--patience": {"N", "TIME"},  # evaluations of a training, how long to wait for a start
    "--policy": {"POLICY"},
    "--preemptible": {"yes|no", "SHARE"},  # whether a job is, the share of jobs of a simulation
    "--tables": {"PLACE", "PLACE,PLACE"},  # of a training, to choose from in a plan
}


def options():
    for name, command in COMMANDS.items():
        for param in command.params:
            if param.param_type_name == "option":
                yield name, param


def test_every_command_answers_in_json():
    with_json = {name for name, param in options() if "--json" in param.opts}
    assert set(COMMANDS) - with_json == WITHOUT_JSON


def test_an_option_takes_the_same_in_every_command():
    forms = defaultdict(set)
    for _, param in options():
        if not param.is_flag:
            forms[param.opts[0]].add(param.metavar)
    several = {name: found for name, found in forms.items() if len(found) > 1 or name in SEVERAL_FORMS}
    assert several == SEVERAL_FORMS


def test_commands_that_write_a_named_file_overwrite_it_only_with_force():
    writes = {"--out", "--html", "--job-profile", "--certificate", "--dense", "--log"}
    asked = defaultdict(set)
    for name, param in options():
        asked[name].update(param.opts)
    careless = {name for name, found in asked.items() if found & writes and "--force" not in found}
    assert careless == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_eighty_columns_names_no_python_type_and_ends_with_examples(name, berth, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = berth(*name.split(), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert not [word for word in ("<str>", "<int>", "<float>", "<bool>", "<path>") if word in out]
    shown = " ".join(out.split())
    for example in examples(COMMANDS[name]):
        assert example in shown


@pytest.mark.parametrize("name", sorted({name.partition(" ")[0] for name in COMMANDS if " " in name}))
def test_help_of_a_group_ends_with_an_example_of_it(name, berth):
    _, out, _ = berth(name, "--help")
    assert re.search(rf"Examples?:\s+berth {name} ", out)


def test_a_default_that_help_names_is_shown(berth):
    assert "[default: ($BERTH_STATE)]" in berth("queue", "--help")[1]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_a_command_line_that_is_understood(example):
    command = typer.main.get_command(app)
    called = []

    def hush(part):
        part.callback = lambda *_, **__: called.append(part.name)
        for below in getattr(part, "commands", {}).values():
            hush(below)

    hush(command)
    words = shlex.split(example.partition(" && ")[0])
    assert words[0] == "berth"
    command.main(words[1:], prog_name="berth", standalone_mode=False)
    assert len(called) > 1  # the program itself, and the command


@pytest.mark.slow
def test_the_shell_completes_verbs_and_names(berth, monkeypatch):
    def offered(line):
        words = line.split()
        monkeypatch.setenv("_BERTH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return berth()[1].split()

    assert offered("berth simul") == ["simulate"]
    assert offered("berth simulate jobs.csv --policy tires") == ["tiresias"]
    assert offered("berth cluster show la") == ["lab"]
    assert offered("berth why j") == []  # no controller answers, and a shell is no place to say so


ROOT = Path(__file__).resolve().parents[3]
QUICK = ("cluster", "network", "trace", "models", "policies")
RUN = [example for example in EXAMPLES if example.split()[1] in QUICK]

CLUSTER = "name: mine\nmachines:\n  - count: 2\n    devices: {T4: 4}\n"
TOPOLOGY = "host,switch\na,s0\nb,s0\nc,s1\n"
PROFILE = "name: mine\nbytes: 100MB\nbatch: 8\ncompute: {V100-16: 100ms}\n"


@pytest.fixture
def files(tmp_path):
    """Files of the names that the examples speak of."""
    philly = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
    (tmp_path / "philly.csv.xz").write_bytes(lzma.compress(philly.encode()))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "topology.csv").write_text(TOPOLOGY)
    (tmp_path / "mine.yaml").write_text(PROFILE)
    shutil.copy(ROOT / "examples" / "measurements.csv", tmp_path)


def test_there_are_examples_to_run():
    assert {example.split()[1] for example in RUN} == set(QUICK)


@pytest.mark.parametrize("example", RUN)
def test_every_example_runs(example, files, berth):
    code, out, err = berth(*shlex.split(example)[1:])
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80 or "--json" in example or "generate" in example
