"""The spec of a job, in YAML or from the command line.

name: resnet
gpus: 8
run: python train.py --epochs 90
model: resnet50          # its slowdown by tier, until its own step times are known
duration: 6h             # an estimate; by default from earlier jobs of this name
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
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
from berth.live.profiles import NO_OTHER_KEYS, InlineProfile, numbers_of
from berth.spec import Bytes, Seconds, Spec
from berth.units import as_sent, format_seconds, seconds, size_bytes


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


# no controls (C0, C1), no invisible or bidirectional marks, no line separators
_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+$"


def _whole(value: Any) -> Any:
    """A number without a fraction is an integer, however JSON writes it: 4.0 is 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
_no_nul = said("can't hold a zero byte")
Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True), Whole]
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True),
    Field(min_length=1, max_length=200, pattern=_ONE_LINE),
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
    preemptible: Annotated[bool, Field(strict=True)] | None = (
        None  # none given: as the policy does by default
    )
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

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.run is None and self.plan is None:
            raise ValueError("give `run`, or a `plan`")
        self.check_together()
        return self

    def check_together(self) -> None:
        """Refuse fields that are valid alone but not together, and an invalid pattern."""
        if self.kind is not None and self.any_of is not None:
            raise InputError("give `kind` or `any_of`, not both")
        if self.step_pattern is not None:
            _check_pattern(self.step_pattern)

    @property
    def argv(self) -> list[str]:
        """The command; a line of text is read by the shell, a list is executed directly."""
        assert self.run is not None, "a plan is read before a job is taken"
        return ["/bin/sh", "-c", self.run] if isinstance(self.run, str) else list(self.run)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, as JSON data."""
        data: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        for name, unit in (("duration", "s"), ("grace", "s"), ("memory", "B")):
            if name in data:
                data[name] = as_sent(data[name], unit)
        return data


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

    @model_validator(mode="after")
    def _together(self) -> Self:
        return self  # not in the schema: the API calls `check_together`


def check_name(text: str) -> None:
    """Refuse a name that a terminal or a page could show as something else."""
    if re.fullmatch(_ONE_LINE.removesuffix("$"), text) is None:
        raise InputError(f"{text!r} is not a name", hint="leave out characters that control text")


def submission(spec: JobSpec, user: str) -> dict[str, Any]:
    """Return the body of the record of a submission; the profile that it names is resolved here, once."""
    return {"spec": spec.to_dict(), "profile": numbers_of(spec.model), "user": user}


def spec_from_dict(plain: dict[str, Any]) -> JobSpec:
    """Return the job that `plain` wrote down. It was accepted then, so today's rules are not applied to it."""
    facts = {name: value for name, value in plain.items() if name in JobSpec.model_fields}
    for name, read in (("duration", seconds), ("grace", seconds), ("memory", size_bytes)):
        if name in facts:
            facts[name] = read(facts[name])
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
