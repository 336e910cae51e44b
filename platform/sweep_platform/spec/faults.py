"""pydantic's errors in the project's words: `file:key.path: got X; need Y; do Z`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sweep_platform.errors import Fault
from sweep_platform.spec.paths import did_you_mean, section_of

Where = Callable[[str], str]
"""Dotted key -> `file:key.path` of the place where the user wrote it."""

_NEED = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "a string",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "tuple": "a list",
    "list": "a list",
}
_TAGS = ("choice", "float", "int")


def show(value: Any, limit: int = 80) -> str:
    """A value as a user wrote it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def from_pydantic(
    error: ValidationError, model: type[BaseModel], where: Where, key_of: Callable[[tuple[Any, ...]], str]
) -> Iterator[Fault]:
    """One fault for each of pydantic's errors about `model`; `key_of` turns its location into the user's key."""
    for detail in error.errors(include_url=False):
        yield _fault(detail, model, where, key_of)


def spec_key(location: tuple[Any, ...]) -> str:
    """A location in a spec as a dotted key; the tag of a search domain is not part of it."""
    parts = [str(part) for part in location]
    if len(parts) > 2 and parts[0] == "search" and parts[2] in _TAGS:
        del parts[2]
    return ".".join(parts)


def _fault(
    detail: ErrorDetails, model: type[BaseModel], where: Where, key_of: Callable[[tuple[Any, ...]], str]
) -> Fault:
    location, kind = detail["loc"], detail["type"]
    place = where(key_of(location))
    if kind == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        word = str(location[-1])
        return Fault(
            place, f"unknown key {word!r}", f"one of {known}", did_you_mean(word, known, "remove it, or correct it")
        )
    if kind == "missing":
        return Fault(place, "nothing", "a value", "add the key")
    got = show(detail["input"])
    if kind == "value_error" or kind == "domain":
        need, _, do = detail["msg"].removeprefix("Value error, ").replace("{{", "{").replace("}}", "}").partition("; ")
        return Fault(place, got, need.removeprefix("need "), do or "change it")
    return Fault(place, got, _need(kind, detail), "change it")


def _need(kind: str, detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if kind == "literal_error":
        return f"one of {str(context['expected']).replace(' or ', ', ')}"
    if kind == "string_pattern_mismatch":
        return "letters, digits, '_', '-' and '.', starting with a letter or digit, at most 64"
    if kind == "too_short":
        return f"at least {context['min_length']} entry"
    head = kind.split("_", 1)[0]
    if head in _NEED and kind.endswith(("_type", "_parsing", "_from_float")):
        return _NEED[head]
    message = detail["msg"].removeprefix("Input should be ")
    return f"{message[0].lower()}{message[1:]}"


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """The keys that may stand at a location of a model."""
    from sweep_platform.spec.domains import Choice, FloatRange, IntRange
    from sweep_platform.spec.model import Objective, SamplerSpec

    if location and location[0] == "search" and len(location) == 3:
        domain = {"choice": Choice, "float": FloatRange, "int": IntRange}[str(location[2])]
        return [info.alias or name for name, info in domain.model_fields.items()]
    current: type[BaseModel] = model
    for part in location:
        if isinstance(part, int):
            current = Objective
            continue
        info = current.model_fields.get(str(part))
        section = section_of(info.annotation) if info else None
        if section is not None:
            current = section
        elif part == "sampler":
            current = SamplerSpec
    return list(current.model_fields)
