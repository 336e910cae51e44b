"""Dotted paths: in nested dicts, and in a trainer's Config class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set `value` at a dotted path, making the dicts on the way."""
    *sections, leaf = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[leaf] = value


def is_under(path: str, section: str) -> bool:
    """Whether a dotted path is `section`, or lies in it."""
    return f"{path}.".startswith(f"{section}.")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted path -> leaf."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model class behind a field, if the field is a section."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def leaves(config: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every dotted path of a Config class with its field."""
    for name, info in config.model_fields.items():
        section = section_of(info.annotation)
        if section is None:
            yield f"{prefix}{name}", info
        else:
            yield from leaves(section, f"{prefix}{name}.")


def refuse_value(info: FieldInfo, value: Any) -> str | None:
    """What the field would accept, if it doesn't accept `value`; an int may stand for a float."""
    annotated: Any = Annotated[info.annotation, info]
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as error:
        messages = [fault["msg"].removeprefix("Input should be ") for fault in error.errors(include_url=False)]
        return " or ".join(dict.fromkeys(messages))
    return None


def did_you_mean(word: str, known: list[str], otherwise: str) -> str:
    """The advice on a name that doesn't exist."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    if not close:
        last = word.rsplit(".", 1)[-1]
        close = [path for path in known if path.rsplit(".", 1)[-1] == last][:1]
    return f"did you mean {close[0]}?" if close else otherwise
