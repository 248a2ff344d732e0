"""What is wrong with a policy is reported in one message with file:line, on the command line and from Python."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from policy_files import HEAD, ROWS, hook, policy

from berth.errors import InputError
from berth.schedule.hooks import compiled_notes
from berth.schedule.policies.registry import load_policy
from berth.schedule.policy import Policy
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs

pytestmark = pytest.mark.slow

STATE = "class Job(JobView):\n    queue: int\n    served_s: float"
UPDATE = hook("pass", "update")
NAMES = {
    "a misspelt hook": (
        policy("@staticmethod\ndef ordr(job, now, params):  # HERE\n    return 0.0"),
        ["Mine has no hook 'ordr'", "did you mean 'order'?"],
    ),
    "a misspelt method": (
        policy("def rule(self):  # HERE\n    return Rules()"),
        ["Mine has no hook 'rule'", "did you mean 'rules'?"],
    ),
    "a helper with a public name": (
        policy("@staticmethod\ndef quicksand(x):  # HERE\n    return x"),
        ["no hook 'quicksand'", "begins with _"],
    ),
    "a misspelt rule": (
        policy("def rules(self):\n    return Rules(preemt=1)  # HERE"),
        ["no rule 'preemt'", "did you mean 'preempt'?"],
    ),
    "a misspelt field": (policy(hook("return job.gpuz  # HERE")), ["job has no field 'gpuz'", "'gpus'?"]),
    "a field by its old name": (
        policy(hook("return job.remaining  # HERE")),
        ["job has no field 'remaining'", "'estimated_remaining_s'?"],
    ),
    "a hook by its old name": (
        policy("@staticmethod\ndef reach(job, now, params):  # HERE\n    return 0"),
        ["Mine has no hook 'reach'", "'allowed_tier'?"],
    ),
    "a rule by its old name": (
        policy("def rules(self):\n    return Rules(steady=True)  # HERE"),
        ["no rule 'steady'", "write Rules(order=StaticOrder())"],
    ),
    "a rule that is part of another now": (
        policy("def rules(self):\n    return Rules(reserve_after_s=60.0)  # HERE"),
        ["no rule 'reserve_after_s'", "write Rules(reserve=Reserve(after_s=...))"],
    ),
    "a misspelt part of a rule": (
        policy("def rules(self):\n    return Rules(preempt=PreemptByGain(margn=1.0))  # HERE"),
        ["PreemptByGain has no 'margn'", "'margin'?"],
    ),
    "a field that policies had for their own": (
        policy(hook("return job.notes[0]  # HERE")),
        ["job has no field 'notes'", "class Job(JobView)"],
    ),
    "a misspelt field of its own": (
        policy(hook("return job.served  # HERE") + "\n" + UPDATE, fields=STATE),
        ["job has no field 'served'", "'served_s'?"],
    ),
    "cluster where there is none": (
        policy("@staticmethod\ndef cost(victim, job, now, params, cluster):  # HERE\n    return 1.0"),
        ["Mine.cost: cluster is the last parameter, of update, order"],
    ),
    "cluster not at the end": (
        policy("@staticmethod\ndef order(job, cluster, now, params):  # HERE\n    return 1.0"),
        ["Mine.order: cluster is the last parameter"],
    ),
    "a total that does not exist": (
        policy(hook("return cluster.user_gpu  # HERE", arguments="job, now, params, cluster")),
        ["cluster has no field 'user_gpu'", "'user_gpus'?"],
    ),
    "a misspelt field in a helper": (
        policy(hook("return rank(job)"), after="def rank(one):\n    return one.estimated_remainig_s  # HERE"),
        ["job has no field 'estimated_remainig_s'", "'estimated_remaining_s'?"],
    ),
    "a field that only the simulator knows": (
        policy(hook("return job.true_remaining_s  # HERE")),
        ["job.true_remaining_s", "simulator"],
    ),
    "a misspelt constant": (
        policy(hook("return params.wieght  # HERE"), fields="weight: float = 1.0"),
        ["no constant 'wieght'", "'weight'?"],
    ),
    "a constant named as a method": (
        policy(hook("return 1.0"), fields="timers: float = 1.0  # HERE"),
        ["can't be called 'timers'"],
    ),
    "a constant named as a hook": (policy("", fields="order: float = 1.0  # HERE"), ["Mine", "order"]),
    "a hidden constant": (policy("", fields="_weight: float = 1.0  # HERE"), ["'_weight'"]),
}
WRITES = {
    "a field": (policy(hook("job.true_remaining_s = 1.0  # HERE\nreturn 1.0")), ["job.true_remaining_s"]),
    "a request": (policy(hook("job.gpus = 1  # HERE\nreturn 1.0")), ["job.gpus may not be written"]),
    "by another name": (
        policy(hook("record = job\nrecord.gpus -= 1  # HERE\nreturn 1.0")),
        ["job.gpus may not"],
    ),
    "in a helper": (
        policy(hook("shrink(job)\nreturn 1.0"), after="def shrink(it):\n    it.gpus = 1  # HERE"),
        ["job.gpus may not be written"],
    ),
    "by setattr": (policy(hook("setattr(job, 'gpus', 1)  # HERE\nreturn 1.0")), ["setattr"]),
    "an element": (
        policy(hook("job.slowdown[0] = 1.0  # HERE\nreturn 1.0")),
        ["job.slowdown may not be written"],
    ),
    "by index": (policy(hook("job['gpus'] = 1  # HERE\nreturn 1.0")), ["job[...]"]),
    "its own field, outside update": (
        policy(hook("job.queue += 1  # HERE\nreturn 1.0") + "\n" + UPDATE, fields=STATE),
        ["job.queue may be written by the hook `update` only"],
    ),
    "its own field, outside update, in a roundabout way": (
        policy(
            hook("for one in (job,):\n    one.queue = 1  # HERE\nreturn 1.0") + "\n" + UPDATE, fields=STATE
        ),
        ["job.queue may be written by the hook `update` only"],
    ),
    "another field, in update": (
        policy(hook("job.gpus = 1  # HERE", "update"), fields=STATE),
        ["job.gpus may not be written"],
    ),
    "a total": (
        policy(hook("cluster.user_gpus = 0  # HERE\nreturn 1.0", arguments="job, now, params, cluster")),
        ["cluster.user_gpus may not be written"],
    ),
    "a constant": (
        policy(hook("params.weight = 1.0  # HERE\nreturn 1.0"), fields="weight: float = 1.0"),
        ["params.weight may not be written"],
    ),
    "the module": (policy(hook("SEEN[1] = now  # HERE\nreturn now")), ["may not change SEEN"]),
    "the module by a method": (policy(hook("SEEN.update(a=1)  # HERE\nreturn now")), ["may not change SEEN"]),
    "a global": (policy(hook("global SLOT  # HERE\nSLOT = 1\nreturn 1.0")), ["SLOT"]),
    "through a list, compiled away": (
        policy(hook("for one in (job,):\n    one.gpus = 1  # HERE\nreturn 1.0")),
        ["job.gpus may not be written"],
    ),
    "through a dictionary, interpreted": (
        policy(hook("box = {'a': job}\nbox['a'].gpus = 1  # HERE\nreturn 1.0")),
        ["job.gpus may not be written"],
    ),
}
ANSWERS = {
    "NaN": (
        policy(hook("if job.gpus < 8:\n    return math.nan  # HERE\nreturn 1.0")),
        ["Mine.order returned nan"],
    ),
    "infinite order": (policy(hook("return math.inf  # HERE")), ["Mine.order returned inf", "finite"]),
    "NaN from tie_break": (
        policy(hook("return now * math.nan  # HERE", "tie_break")),
        ["Mine.tie_break returned nan"],
    ),
    "NaN from wake": (policy(hook("return math.nan  # HERE", "wake")), ["Mine.wake returned nan"]),
    "NaN, interpreted": (
        policy(hook("return SEEN.get(1, math.nan)  # HERE")),
        ["Mine.order returned nan"],
    ),
    "a tuple": (
        policy("@staticmethod\ndef order(job, now, params):  # HERE\n    return (now, 1.0)"),
        ["a tuple"],
    ),
    "text": (policy("@staticmethod\ndef order(job, now, params):  # HERE\n    return 'first'"), ["text"]),
    "nothing": (policy(hook("job.gpus  # HERE")), ["Mine.order returned None", "must return a number"]),
    "nothing on some paths": (
        policy(
            "@staticmethod\ndef order(job, now, params):  # HERE\n    if job.gpus > 4:\n        return 1.0"
        ),
        ["nothing on some paths"],
    ),
    "a fraction of a tier": (
        policy("@staticmethod\ndef allowed_tier(job, now, params):  # HERE\n    return job.widest_tier / 2"),
        ["must return a whole number"],
    ),
    "a fraction, interpreted": (
        policy(hook("return SEEN.get(1, 0.5)  # HERE", "allowed_tier")),
        ["Mine.allowed_tier returned 0.5", "whole number"],
    ),
    "a tier below 0": (
        policy(hook("return -1  # HERE", "allowed_tier")),
        ["Mine.allowed_tier returned -1", "a tier from 0 to 7, such as job.widest_tier"],
    ),
    "a tier that no cluster has": (
        policy(hook("return 99  # HERE", "allowed_tier")),
        ["Mine.allowed_tier returned 99", "a tier from 0 to 7"],
    ),
    "a tier that no cluster has, interpreted": (
        policy(hook("return SEEN.get(1, 99)  # HERE", "allowed_tier")),
        ["Mine.allowed_tier returned 99", "a tier from 0 to 7"],
    ),
    "text, interpreted": (policy(hook("return SEEN.get(1, 'x')  # HERE")), ["Mine.order returned 'x'"]),
}
IMPURE = {
    "an import": (
        policy(hook("import random  # HERE\nreturn random.random()")),
        ["a hook may not import", "at the top of the file"],
    ),
    "an import from": (
        policy(hook("from os import system  # HERE\nreturn float(system('true'))")),
        ["a hook may not import"],
    ),
    "an import in a helper": (
        policy(
            hook("return draw()"), before="def draw():\n    import random  # HERE\n    return random.random()"
        ),
        ["may not import"],
    ),
    "random": (policy(hook("return random.random()  # HERE")), ["random.random can't be used", "is random"]),
    "imported from": (
        policy(hook("return dice()  # HERE"), before="from random import random as dice"),
        ["dice can't be used", "is random"],
    ),
    "numpy": (
        policy(hook("return np.random.random()  # HERE"), before="import numpy as np"),
        ["np.random", "is random"],
    ),
    "a clock": (policy(hook("return time.time()  # HERE")), ["time", "reads a clock"]),
    "a file": (policy(hook("return float(len(open('x').read()))  # HERE")), ["open", "files"]),
    "a hash": (policy(hook("return float(hash('a'))  # HERE")), ["hash", "differs from run to run"]),
}
RULES = {
    "a string": (
        policy("def rules(self):\n    return Rules(preempt='BY_ORDER')  # HERE"),
        ["preempt is 'BY_ORDER'", "PreemptByOrder(...)"],
    ),
    "as it was written before": (
        policy("def rules(self):\n    return Rules(preempt=Preempt.BY_ORDER)  # HERE"),
        ["write preempt=PreemptByOrder()"],
    ),
    "an order by totals that preempts": (
        policy(
            hook("return cluster.user_gpus", arguments="job, now, params, cluster")
            + "\ndef rules(self):  # HERE\n    return Rules(preempt=PreemptByOrder())"
        ),
        ["an order by `cluster` can't preempt"],
    ),
    "a number for a rule": (
        policy("def rules(self):\n    return Rules(blocked=1)  # HERE"),
        ["Blocked.SKIP"],
    ),
    "negative": (
        policy("def rules(self):\n    return Rules(preempt=PreemptByOrder(period_s=-1.0))  # HERE"),
        ["PreemptByOrder.period_s is -1.0"],
    ),
    "NaN": (
        policy("def rules(self):\n    return Rules(preempt=PreemptByGain(margin=math.nan))  # HERE"),
        ["margin is nan"],
    ),
    "text": (
        policy("def rules(self):\n    return Rules(worst_fit='yes')  # HERE"),
        ["worst_fit is 'yes'", "True or False"],
    ),
    "nothing": (policy("def rules(self):  # HERE\n    Rules()"), ["Mine.rules() returned None"]),
    "an error": (
        policy("def rules(self):\n    return Rules(link_ratio=1 / 0)  # HERE"),
        ["ZeroDivisionError"],
    ),
}
LOADING = {
    "a tuple": (policy("", fields="weights: tuple = (1, 2)  # HERE"), ["constant weights is (1, 2)"]),
    "two arrays": (
        policy("", fields="one: tuple = array()\ntwo: tuple = array()  # HERE"),
        ["more than one array()"],
    ),
    "state that nothing sets": (
        policy("", fields="class Job(JobView):  # HERE\n    queue: int"),
        ["fields that no `update` sets"],
    ),
    "state that is text": (
        policy(UPDATE, fields="class Job(JobView):  # HERE\n    name: str"),
        ["Mine.Job.name must be an int or a float"],
    ),
    "state that every job has": (
        policy(UPDATE, fields="class Job(JobView):  # HERE\n    gpus: int"),
        ["Mine.Job.gpus", "every job has it"],
    ),
    "state with a default": (
        policy(UPDATE, fields="class Job(JobView):  # HERE\n    queue: int = 3"),
        ["Mine.Job.queue", "it begins at 0"],
    ),
    "too much state": (
        policy(
            UPDATE, fields="class Job(JobView):  # HERE\n" + "\n".join(f"    s{i}: int" for i in range(7))
        ),
        ["Mine.Job has 7 fields", "at most 6"],
    ),
    "state of another class": (
        policy(UPDATE, fields="class Job:  # HERE\n    queue: int"),
        ["Mine.Job is not a subclass of JobView"],
    ),
    "too many constants": (
        policy(
            "",
            fields="\n".join(f"c{i}: float = 0.0" + ("  # HERE" if i == 24 else "") for i in range(25)),
        ),
        ["25 constants", "at most 24"],
    ),
    "no default": (policy("", fields="weight: float"), ["mine.py:", "weight"]),
    "an error in the constructor": (
        policy("def __post_init__(self):\n    raise ValueError('no')  # HERE"),
        ["ValueError: no"],
    ),
    "not a policy": (HEAD + "class Mine:\n    pass", ["'Mine' is not a subclass of Policy"]),
    "not frozen": (
        HEAD + "@dataclass  # HERE\nclass Mine(Policy):\n    weight: float = 1.0",
        ["cannot inherit non-frozen dataclass", "write @dataclass(frozen=True) above the class"],
    ),
    "syntax": (HEAD + "def f(:  # HERE", ["SyntaxError"]),
    "an import": (HEAD + "import nothing_like_it  # HERE", ["nothing_like_it"]),
}
ALL = {
    f"{group}: {name}": case
    for group, cases in {
        "names": NAMES,
        "writes": WRITES,
        "answers": ANSWERS,
        "impure": IMPURE,
        "rules": RULES,
        "loading": LOADING,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", ALL)
def test_a_mistake_is_one_message_with_its_line(refused, case):
    source, words = ALL[case]
    refused(source, *words)


def test_a_wrong_answer_names_job_and_time(refused):
    refused(
        policy(hook("if job.gpus == 4:\n    return math.nan  # HERE\nreturn 1.0")),
        "Mine.order returned nan for job",
        "at 2 s",
    )


def test_a_verdict_that_is_neither_yes_nor_no(write):
    body = (
        hook("return 2  # HERE", "spread", "job, tier, wait, now, params")
        + "\n"
        + hook("return job.nearest_tier", "allowed_tier")
    )
    line = write(policy(body, rules="Rules(relax_locality=True)"))
    rows = [(0, 3, 100), (0, 3, 100), (1, 2, 50)]
    with pytest.raises(
        InputError, match=r"Mine.spread returned 2 for job j2 at 1 s: it must return 0 or 1"
    ) as caught:
        simulate(jobs(rows), cluster([4, 4]), load_policy("mine.py:Mine"), Setting(network="off"))
    assert f"mine.py:{line}" in str(caught.value)


def test_helpers_with_an_underscore_and_functions_of_the_module_are_allowed(write, berth):
    body = "@staticmethod\ndef _half(x):\n    return x / 2\n" + hook("return job.gpus * half(now)")
    write(policy(body, after="def half(x):\n    return x / 2"))
    code, _, error = berth(
        "simulate", "jobs.csv", "--cluster", "1x1x8:V100-16", "--policy", "mine.py:Mine", "--json"
    )
    assert (code, error) == (0, "")


@pytest.mark.parametrize("also", ["", "SEEN.get(1)\n"])
def test_update_writes_the_fields_that_a_policy_declares_compiled_or_not(write, also):
    body = hook(f"{also}job.queue += 1.9\njob.served_s = job.queue / 2", "update")
    write(policy(body + "\n" + hook("return job.served_s"), fields=STATE))
    mine = load_policy("mine.py:Mine")
    assert bool(compiled_notes(mine)) == bool(also)
    run = simulate(jobs(ROWS), cluster([8]), mine, Setting(network="off"))
    queue, served_s, *others = run.records["policy_state"].T
    assert (queue >= 1).all()
    assert (queue == queue.astype(int)).all()
    assert (served_s == queue / 2).all()
    assert not np.any(others)


@pytest.mark.parametrize("also", ["", "SEEN.get(1)\n"])
def test_update_returns_nothing(refused, also):
    body = (
        f"@staticmethod\ndef update(job, now, params):  # HERE\n    {also.strip() or 'pass'}\n    return 1.0"
    )
    source = policy(body, fields=STATE)
    words = ["it must not return a value"] if also else ["Mine.update must not return a value"]
    refused(
        source if not also else source.replace("  # HERE", "").replace("return 1.0", "return 1.0  # HERE"),
        *words,
    )


def test_state_is_as_before_a_call_that_fails(write):
    """The call is made again to find its line, so it must begin where the first one began."""
    body = hook("job.queue += 1\nif job.queue == 1:\n    raise ValueError('no')  # HERE", "update")
    line = write(policy(body, fields=STATE))
    with pytest.raises(ValueError, match="no") as caught:
        simulate(jobs(ROWS), cluster([8]), load_policy("mine.py:Mine"), Setting(network="off"))
    assert any(f"mine.py:{line}" in note for note in caught.value.__notes__)


@dataclass(frozen=True)
class Misspelt(Policy):
    @staticmethod
    def ordr(job, now, params):
        return 0.0


@dataclass(frozen=True)
class Meddles(Policy):
    @staticmethod
    def allowed_tier(job, now, params):
        job.gpus = 1
        return job.widest_tier


@pytest.mark.parametrize(("kind", "words"), [(Misspelt, "no hook 'ordr'"), (Meddles, "job.gpus may not")])
def test_a_class_that_was_never_loaded_from_a_file_is_checked_too(kind, words):
    with pytest.raises(InputError, match=words) as caught:
        simulate(jobs(ROWS), cluster([8]), kind(), Setting(network="off"))
    assert "test_guards.py:" in str(caught.value)


@dataclass(frozen=True)
class Fails(Policy):
    """Raises for jobs of one size, compiled or interpreted."""

    size: float = 0.0

    @staticmethod
    def order(job, now, params):
        if job.gpus == params.size:
            raise ValueError("no rank")
        return job.arrival_s


@dataclass(frozen=True)
class FailsSlowly(Fails):
    @staticmethod
    def order(job, now, params):
        if job.gpus == params.size:
            raise ValueError(f"no rank for {[int(job.gpus)]!s}")
        return job.arrival_s


@pytest.mark.parametrize("kind", [Fails, FailsSlowly])
def test_runs_in_threads_hear_of_their_own_errors_only(kind):
    """Of runs side by side, with one policy, those fail that have a job of the size that it can't rank."""
    before = sys.unraisablehook
    start = threading.Barrier(4)

    def run(size):
        start.wait()
        try:
            done = simulate(jobs(ROWS * 10), cluster([8]), kind(size=size), Setting(network="off"))
        except ValueError as error:
            return str(error)
        return "all" if (done.records["end_s"] > 0).all() else "some"

    run_alone = simulate(jobs(ROWS), cluster([8]), kind(size=1.0), Setting(network="off"))
    assert (run_alone.records["end_s"] > 0).all()
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(run, [4.0, 3.0, 8.0, 3.0]))
    assert [text.startswith("no rank") for text in said] == [True, False, True, False]
    assert (said[1], said[3]) == ("all", "all")
    assert sys.unraisablehook is before
