"""The spec of a job, in YAML or from the command line.

name: resnet
gpus: 8
run: python train.py --epochs 90
model: resnet50          # its slowdown by tier, until its own step times are known
duration: 6h             # an estimate; by default from earlier jobs of this name

A job that can run in several ways has `work` and `alternatives` instead of `gpus` and `kind`: see
`workload/shape_spec.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from berth.errors import InputError
from berth.live.offer import ONE_LINE, Alternatives, Plans, Whole, WorkText, check_offer, offer_from_sent
from berth.live.profiles import NO_OTHER_KEYS, InlineProfile, numbers_of
from berth.spec import Bytes, Seconds, Spec
from berth.units import as_sent, format_seconds, seconds, size_bytes
from berth.workload.shape_spec import Amount, ShapeSpec
from berth.workload.shapes import MAX_ALTERNATIVES, Offer, Shape, parse_work


def said(words: str) -> WrapValidator:
    """Return a validator whose message explains a pattern in words."""

    def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError as error:
            if any(one["type"] == "string_pattern_mismatch" for one in error.errors()):
                raise InputError(words) from None
            raise

    return WrapValidator(check)


def _work(text: str) -> str:
    """An amount of work, checked and unchanged."""
    parse_work(text)
    return text


_no_nul = said("can't hold a zero byte")
Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True), Whole]
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True),
    Field(min_length=1, max_length=200, pattern=ONE_LINE),
    said("must be one line, without characters that control a terminal or the direction of text"),
]
Word = Annotated[
    str,
    Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    said("must begin with a letter or a digit, and have only those and . _ -"),
]
Argument = Annotated[str, Field(max_length=131_072, pattern=r"^[^\x00]*$"), _no_nul]
EnvName = Annotated[
    str,
    Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    said("must be a variable name: letters, digits and _, not beginning with a digit"),
]
Folder = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$"),
    said("must begin with a /: no other folder is the same everywhere"),
]
Line = Annotated[str, Field(min_length=1, max_length=131_072, pattern=r"^[^\x00]*$"), _no_nul]
Words = Annotated[list[Argument], Field(min_length=1, max_length=4096)]


class JobSpec(Spec):
    """The spec of one job. Commands and variables are passed on unchanged, blanks included."""

    model_config = ConfigDict(str_strip_whitespace=False)
    at_least = "`run:`, a `plan:` or `alternatives:`"

    run: Line | Words | None = None
    plan: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # a file of `berth plan`
    name: Name = "job"
    gpus: Count = 1
    kind: Name | None = None  # device type; none given: any GPU
    any_of: Annotated[list[Name], Field(min_length=1, max_length=8)] | None = None  # several will do
    model: Name | InlineProfile | None = None  # of the catalogue, or a profile of its own
    duration: Annotated[Seconds, Field(gt=0)] | None = None
    grace: Annotated[Seconds, Field(le=86_400)] = 30.0  # between SIGTERM and SIGKILL
    restarts: Annotated[int, Field(ge=0, le=1_000_000, strict=True), Whole] = 3  # after failures
    # none given: evicted for others under every policy but `berth` by least service; may be migrated
    preemptible: Annotated[bool, Field(strict=True)] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000, strict=True), Whole] = 0
    required: Name | None = None  # a tier that it is never spread beyond
    preferred: Name | None = None  # a tier that is near enough: it does not wait for nearer
    per: Literal["gpu", "machine"] = "gpu"  # one process for each device, or for each machine
    env: Annotated[dict[EnvName, Argument], Field(max_length=1024, json_schema_extra=NO_OTHER_KEYS)] = Field(
        default_factory=dict
    )
    cwd: Folder | None = None
    memory: Bytes | None = None  # of one process; more and it fails
    step_pattern: Annotated[str, Field(max_length=500)] | None = None  # finds step times in its log
    work: Annotated[str, AfterValidator(_work)] | None = None  # to compare alternatives by
    batch: Amount | None = None  # examples of a step, where an alternative does not say
    deadline: Annotated[Seconds, Field(gt=0)] | None = None  # after its submission
    alternatives: Annotated[list[ShapeSpec], Field(min_length=1, max_length=MAX_ALTERNATIVES)] | None = None
    plans: Plans = Field(default_factory=dict)  # contents of plan files, by their SHA-256

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.run is None and self.plan is None and self.alternatives is None:
            raise ValueError("give `run`, or a `plan`")
        self.check_together()
        return self

    @cached_property
    def offer(self) -> Offer | None:
        """The alternatives of an accepted job, for the scheduler; None for a gang."""
        if self.alternatives is None or self.work is None:
            return None
        plain = [_plain(one) for one in self.alternatives]
        return offer_from_sent(self.work, self.batch, self.deadline, plain)

    def check_together(self) -> None:
        """Refuse fields that are valid alone but not together, and an invalid pattern."""
        if self.kind is not None and self.any_of is not None:
            raise InputError("give `kind` or `any_of`, not both")
        self._check_alternatives()
        if self.step_pattern is not None:
            _check_pattern(self.step_pattern)

    @property
    def _has_shapes(self) -> bool:
        return self.alternatives is not None or self.plan is not None

    def _check_alternatives(self) -> None:
        if not self._has_shapes:
            for name in ("work", "batch", "deadline", "plans"):
                if getattr(self, name):
                    raise InputError(f"`{name}` is for a job with `alternatives`")
            return
        for name in ("gpus", "kind", "any_of", "required", "preferred", "duration", "per"):
            if getattr(self, name) != JobSpec.model_fields[name].default:
                raise InputError(
                    f"`{name}` is for a gang; a plan or alternatives say it themselves",
                    hint=f"leave out `{name}`, or the plan and the alternatives",
                )

    @property
    def argv(self) -> list[str]:
        """The command; a line of text is read by the shell, a list is executed directly."""
        assert self.run is not None, "a plan is read before a job is taken"
        return ["/bin/sh", "-c", self.run] if isinstance(self.run, str) else list(self.run)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, as JSON data."""
        data: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True, exclude={"alternatives"})
        for name, unit in (("duration", "s"), ("grace", "s"), ("memory", "B"), ("deadline", "s")):
            if name in data:
                data[name] = as_sent(data[name], unit)
        if self.alternatives is not None:
            data["alternatives"] = [_plain(one) for one in self.alternatives]
        return data


def _plain(shape: Any) -> dict[str, Any]:
    """Return an alternative as JSON data, which those of the journal are."""
    if isinstance(shape, dict):
        return shape
    plain: dict[str, Any] = shape.model_dump(mode="json", exclude_defaults=True)
    return plain


_TIME_UNITS = "(ns|us|ms|s|sec|min|m|h|d|day|days|w)"
_DIGITS = r"([1-9][0-9]{0,17}(\.[0-9]{1,18})?|0\.[0-9]{0,17}[1-9])"


def _written(pattern: str, read: Callable[[str], Any], example: str) -> Any:
    """A quantity as JSON has it: text of this form, with its unit."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise InputError(f"must be text with a unit, such as {example}")
        return read(value)

    schema = {"type": "string", "pattern": f"^{pattern}$", "examples": [example]}
    return BeforeValidator(check, json_schema_input_type=Annotated[str, WithJsonSchema(schema)])


_duration = _written(f"{_DIGITS}{_TIME_UNITS}", seconds, "6h")
_grace = _written(f"(0|{_DIGITS}){_TIME_UNITS}", seconds, "60s")
_memory = _written(r"[1-9][0-9]{0,17}(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)", size_bytes, "80GiB")


class SentJob(JobSpec):
    """A job as the API takes it: like one in a file, with a command, and each quantity as text of one form."""

    run: Line | Words
    duration: Annotated[float, Field(gt=0), _duration] | None = None
    grace: Annotated[float, Field(ge=0), _grace] = 30.0
    memory: Annotated[int, Field(gt=0), _memory] | None = None
    work: WorkText | None = None
    batch: Annotated[float, Field(gt=0, le=1e15, strict=True)] | None = None
    deadline: Annotated[float, Field(gt=0), _duration] | None = None
    alternatives: Alternatives | None = None  # type: ignore[assignment]  # of another form than in a file

    @model_validator(mode="after")
    def _together(self) -> Self:
        return self  # not in the schema: the API calls `check_together`

    @property
    def _has_shapes(self) -> bool:
        return self.alternatives is not None  # `plan` is what an older `berth submit` had read

    def check_together(self) -> None:
        """Refuse fields that are valid alone but not together, and plans that are not what they are called."""
        super().check_together()
        if self.alternatives is not None:
            check_offer(self.work, self.batch, self.alternatives, self.plans)


def shape_of(spec: JobSpec, name: str | None) -> Shape | None:
    """Return an alternative of a job by its name; None for a gang."""
    if name is None or spec.offer is None:
        return None
    return next((shape for shape in spec.offer.alternatives if shape.name == name), None)


def check_name(text: str) -> None:
    """Refuse a name that a terminal or a page could show as something else."""
    if re.fullmatch(ONE_LINE.removesuffix("$"), text) is None:
        raise InputError(f"{text!r} is not a name", hint="leave out characters that control text")


def submission(spec: JobSpec, user: str) -> dict[str, Any]:
    """Return the body of the record of a submission; the profile that it names is resolved here, once."""
    return {"spec": spec.to_dict(), "profile": numbers_of(spec.model), "user": user}


def spec_from_dict(plain: dict[str, Any]) -> JobSpec:
    """Return the job that `plain` wrote down. It was accepted then, so today's rules are not applied to it."""
    facts = {name: value for name, value in plain.items() if name in JobSpec.model_fields}
    for name in ("duration", "grace", "deadline"):
        if name in facts:
            facts[name] = seconds(facts[name])
    if "memory" in facts:
        facts["memory"] = size_bytes(facts["memory"])
    if isinstance(facts.get("model"), dict):
        facts["model"] = InlineProfile.model_construct(**facts["model"])
    return JobSpec.model_construct(**facts)


def _check_pattern(text: str) -> None:
    try:
        groups = re.compile(text).groupindex
    except re.error as error:
        raise InputError(f"step_pattern is not a regular expression: {error}") from None
    if "seconds" not in groups and "per_second" not in groups:
        raise InputError("step_pattern needs a group named `seconds` or `per_second`: (?P<seconds>[0-9.]+)")


_BOUNDS = "an admin may ask for more; `berth up` sets these bounds"


class DeniedError(InputError):
    """The caller lacks the right to do this."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a user may request; an admin may request anything that the schema allows."""

    priority: int = 0
    grace_s: float = 600.0
    restarts: int = 100

    def check(self, spec: JobSpec) -> None:
        """Refuse a user's job that requests more, and say what is allowed."""
        for name, asked, most, text in (
            ("priority", spec.priority, self.priority, str),
            ("restarts", spec.restarts, self.restarts, str),
            ("grace", spec.grace, self.grace_s, format_seconds),
        ):
            if asked > most:
                what = f"a user's {name} is at most {text(most)}, and {text(asked)} is asked for"
                raise DeniedError(what, hint=_BOUNDS)
