"""Optional packages: the extra that installs each, and the message if one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from berth.errors import InputError

# on the public index `berth` is another project; the import and the command are `berth`
DISTRIBUTION = "berth-ml"
MODULES = {
    "cryptography": "train",
    "deap": "plan",
    "fastapi": "live",
    "optuna": "plan",
    "prometheus_client": "live",
    "ray": "ray",
    "regex": "live",
    "starlette": "live",
    "torch": "train",
    "uvicorn": "live",
}


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for berth installed from a wheel or a checkout."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def missing(module: str, user: str) -> InputError:
    """Return the error for an optional module that can't be imported."""
    hint = install_command(MODULES[module])
    return InputError(f"{user} needs {module}, which is not installed: {hint}")


def require(module: str, user: str) -> None:
    """Raise an InputError that names the extra if an optional module is not installed."""
    if find_spec(module) is None:
        raise missing(module, user)
