"""Formats values as YAML that reads back the same, unquoted where possible."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

_NAME = r"[A-Za-z][\w-]*"
_PLAIN = re.compile(rf"{_NAME}( \.\. {_NAME}|\.yaml|\.json)?")
_SPECIAL = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


def yaml_number(value: float) -> str:
    """Return a number as YAML; YAML 1.1 reads 5e-05 as text unless there is a decimal point."""
    text = repr(value)
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def yaml_word(text: str) -> str:
    """Return text as YAML, quoted unless it is a name, a range of two names, or a file."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _SPECIAL
    return text if plain else json.dumps(text, ensure_ascii=False)


def yaml_value(value: Any) -> str:
    """Return a number, text, mapping or dataclass as YAML on one line; fields that are None are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {key: one for key, one in asdict(value).items() if one is not None}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {yaml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, float):
        return yaml_number(value)
    return str(value) if isinstance(value, int) else yaml_word(value)
