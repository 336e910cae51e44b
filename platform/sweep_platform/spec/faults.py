"""pydantic's errors in the project's words: `file:key.path: got X; need Y; do Z`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sweep_platform.errors import Fault
from sweep_platform.spec.domains import DOMAINS
from sweep_platform.spec.paths import did_you_mean
from sweep_platform.trainers import TrainerFault

Where = Callable[[str], str]
"""Dotted key -> `file:key.path` of the place where the user wrote it."""

OVERRIDE = "override:"
"""Begins the place of what was written on the command line."""

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


def show(value: Any, limit: int = 80) -> str:
    """A value as a user wrote it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def from_pydantic(
    error: ValidationError, model: type[BaseModel], where: Where, key_of: Callable[[tuple[Any, ...]], str]
) -> Iterator[Fault]:
    """One fault for each of pydantic's errors about `model`; `key_of` makes a location the user's key."""
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # its entries are at fault, each told on its own
        yield _fault(detail, model, where, key_of)


def from_trainer(found: Iterable[TrainerFault], where: Where) -> list[Fault]:
    """A trainer's own faults, `where` placing their keys."""
    return [Fault(where(fault.key), fault.got, fault.need, fault.do) for fault in found]


def spec_key(location: tuple[Any, ...]) -> str:
    """A location in a spec as a dotted key; the tag of a search domain is not part of it."""
    parts = [str(part) for part in location]
    if len(parts) > 2 and parts[0] == "search" and parts[2] in DOMAINS:
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
        if word in (replaced := getattr(model, "REPLACED", {})):
            return Fault(place, show(detail["input"]), *replaced[word])
        return Fault(
            place,
            f"unknown key {word!r}",
            f"one of {known}",
            did_you_mean(word, known, "remove it, or write one of these"),
        )
    if kind == "missing":
        return Fault(place, "nothing", "a value", "add the key")
    got = show(detail["input"])
    if kind in {"value_error", "domain"}:
        need, _, do = detail["msg"].removeprefix("Value error, ").partition("; ")
        if named := named_fields(detail, model):
            place, got = _in_section(named, detail, where, key_of)
        return Fault(place, got, need.removeprefix("need "), do or "set it to such a value")
    return Fault(place, got, _need(kind, detail), "set it to such a value")


def named_fields(detail: ErrorDetails, model: type[BaseModel]) -> list[str]:
    """The fields that an error about a section as a whole names, of those that are set in it; else none."""
    written = detail["input"]
    if detail["type"] != "value_error" or not isinstance(written, Mapping):
        return []
    words = set(re.findall(r"\w+", detail["msg"]))
    return [name for name in _fields_at(model, detail["loc"]) if name in words and name in written]


def _in_section(
    named: list[str], detail: ErrorDetails, where: Where, key_of: Callable[[tuple[Any, ...]], str]
) -> tuple[str, str]:
    """Where the fault of a section lies, at best in an override, and what the fields that it names are set to."""
    places = [where(key_of((*detail["loc"], name))) for name in named]
    place = next((place for place in places if place.startswith(OVERRIDE)), places[0])
    if len(named) == 1:
        return place, show(detail["input"][named[0]])
    return place, ", ".join(f"{name}: {show(detail['input'][name])}" for name in named)


def _need(kind: str, detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if kind == "literal_error":
        return f"one of {str(context['expected']).replace(' or ', ', ')}"
    if kind == "string_pattern_mismatch":
        return "letters, digits, '_', '-' and '.', starting with a letter or digit, at most 64"
    if kind == "too_short":
        return f"at least {context['min_length']} entry"
    head = kind.split("_", 1)[0]
    if head in _NEED and kind.endswith(("_type", "_parsing", "_from_float", "_parsing_size")):
        return _NEED[head]
    message = detail["msg"].removeprefix("Input should be ")
    return f"{message[0].lower()}{message[1:]}"


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """The keys that may stand at a location of a model."""
    if len(location) == 3 and location[0] == "search" and location[2] in DOMAINS:
        return [info.alias or name for name, info in DOMAINS[location[2]].model_fields.items()]
    for part in location:
        info = model.model_fields.get(str(part))
        model = (info and _model_in(info.annotation)) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The only model class in an annotation, as in `tuple[Objective, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = {model for part in get_args(annotation) if (model := _model_in(part))}
    return found.pop() if len(found) == 1 else None
