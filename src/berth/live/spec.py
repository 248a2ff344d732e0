"""A job as it is written, in YAML or on the command line.

name: resnet
gpus: 8
run: python train.py --epochs 90
model: resnet50          # how much distance costs it, until its own step times are known
duration: 6h             # about how long; what is not told is taken from earlier jobs of this name
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from berth.errors import InputError
from berth.spec import Bytes, Seconds, Spec


def said(words: str) -> WrapValidator:
    """What a pattern asks for, in words: the pattern itself is for programs, in the API's schema."""

    def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            return inner(value)
        except ValidationError as error:
            if any(one["type"] == "string_pattern_mismatch" for one in error.errors()):
                raise InputError(words) from None
            raise

    return WrapValidator(check)


_no_nul = said("can't hold a zero byte")
Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]
Name = Annotated[
    str,
    Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$"),
    said("must be one line, without control characters"),
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
    said("is no name of a variable: letters, digits and _, and no digit first"),
]
Folder = Annotated[
    str,
    Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$"),
    said("must begin with a /: no other folder is the same everywhere"),
]
Line = Annotated[str, Field(min_length=1, max_length=131_072, pattern=r"^[^\x00]*$"), _no_nul]
Words = Annotated[list[Argument], Field(min_length=1, max_length=4096)]


class JobSpec(Spec):
    """What is asked for one job."""

    run: Line | Words | None = None
    plan: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # a file of `berth plan`
    name: Name = "job"
    gpus: Count = 1
    kind: Name | None = None  # device type; none given: any GPU
    any_of: Annotated[list[Name], Field(min_length=1, max_length=8)] | None = None  # several will do
    model: Name | None = None
    duration: Annotated[Seconds, Field(gt=0)] | None = None
    grace: Annotated[Seconds, Field(le=86_400)] = 30.0  # between SIGTERM and SIGKILL
    restarts: Annotated[int, Field(ge=0, le=1_000_000)] = 3  # how often it may fail and be tried again
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    required: Name | None = None  # a tier that it is never spread beyond
    preferred: Name | None = None  # a tier that is near enough: it does not wait for nearer
    per: Literal["gpu", "machine"] = "gpu"  # one process for each device, or for each machine
    env: Annotated[dict[EnvName, Argument], Field(max_length=1024)] = Field(default_factory=dict)
    cwd: Folder | None = None
    memory: Bytes | None = None  # of one process; more and it fails
    step_pattern: Annotated[str, Field(max_length=500)] | None = None  # finds step times in its log

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.run is None and self.plan is None:
            raise ValueError("give `run`, or a `plan`")
        if self.kind is not None and self.any_of is not None:
            raise ValueError("give `kind` or `any_of`, not both")
        if self.step_pattern is not None:
            _check_pattern(self.step_pattern)
        return self

    @property
    def argv(self) -> list[str]:
        """The command; a line of text is read by the shell, a list is started as it stands."""
        assert self.run is not None, "a plan is read before a job is taken"
        return ["/bin/sh", "-c", self.run] if isinstance(self.run, str) else list(self.run)

    def plain(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON can hold it and as it may be written."""
        told: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        for name, unit in (("duration", "s"), ("grace", "s"), ("memory", "B")):
            if name in told:
                told[name] = f"{told[name]!r}{unit}"
        return told


def _check_pattern(text: str) -> None:
    try:
        groups = re.compile(text).groupindex
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    if "seconds" not in groups and "per_second" not in groups:
        raise ValueError("needs a group named `seconds` or `per_second`: (?P<seconds>[0-9.]+)")
