"""Numbers and words as YAML reads them back, plain where they can be: for files that people edit."""

from __future__ import annotations

import json
import re

_NAME = r"[A-Za-z][\w-]*"
_PLAIN = re.compile(rf"{_NAME}( \.\. {_NAME}|\.yaml|\.json)?")
_SPECIAL = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


def yaml_number(value: float) -> str:
    """As Python prints it; YAML 1.1 takes 5e-05 for text, it wants a point before the exponent."""
    text = repr(value)
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def yaml_word(text: str) -> str:
    """Quoted unless it is plainly a name, a range of two, or a file."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _SPECIAL
    return text if plain else json.dumps(text, ensure_ascii=False)
