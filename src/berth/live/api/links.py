"""OpenAPI links: which value of an answer another request may be asked with.

They are part of the description at /openapi.json, for people and for tools that chain requests.
"""

from typing import Any

_ABOUT_A_JOB = ("job", "why", "history", "logs", "cancel", "priority")
_ABOUT_A_MACHINE = ("drain", "undrain")
Responses = dict[int | str, dict[str, Any]]


def job_at(pointer: str, status: int = 200) -> Responses:
    """The answer has the id of a job there."""
    return {status: {"links": {name: _parameter(name, "job", pointer) for name in _ABOUT_A_JOB}}}


def machine_at(pointer: str) -> Responses:
    """The answer has the name of a machine there."""
    return {200: {"links": {name: _parameter(name, "machine", pointer) for name in _ABOUT_A_MACHINE}}}


def code_at(pointer: str) -> Responses:
    """The answer has a code for a login there."""
    body = {"code": f"$response.body#{pointer}"}
    return {201: {"links": {"login": {"operationId": "login", "requestBody": body}}}}


def _parameter(operation: str, name: str, pointer: str) -> dict[str, Any]:
    return {"operationId": operation, "parameters": {f"path.{name}": f"$response.body#{pointer}"}}
