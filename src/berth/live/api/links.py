"""OpenAPI links: which value of a response is a parameter of another request.

They are part of the description at /openapi.json, for readers and for tools that chain requests.
"""

from typing import Any

_JOB_OPERATIONS = ("job", "why", "history", "logs", "cancel", "priority")
_MACHINE_OPERATIONS = ("drain", "undrain")
Responses = dict[int | str, dict[str, Any]]


def job_at(pointer: str, status: int = 200) -> Responses:
    """Links from the id of a job at this place of the response."""
    return {status: {"links": {name: _parameter(name, "job", pointer) for name in _JOB_OPERATIONS}}}


def machine_at(pointer: str) -> Responses:
    """Links from the name of a machine at this place of the response."""
    return {200: {"links": {name: _parameter(name, "machine", pointer) for name in _MACHINE_OPERATIONS}}}


def code_at(pointer: str) -> Responses:
    """Links from a login code at this place of the response."""
    body = {"code": f"$response.body#{pointer}"}
    return {201: {"links": {"login": {"operationId": "login", "requestBody": body}}}}


def _parameter(operation: str, name: str, pointer: str) -> dict[str, Any]:
    return {"operationId": operation, "parameters": {f"path.{name}": f"$response.body#{pointer}"}}
