"""Names and values in the form that MLflow accepts, never two of ours as one of its own."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from run_ledger import SweepRecord

MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000

_REFUSED = re.compile(r"[^/\w.\- ]", re.ASCII)
_WORDS = {"@": "at", ":": "colon", "%": "percent"}


def metric_name(name: str) -> str:
    """Return a metric's name with what MLflow refuses spelt out between colons: mean@32 -> mean:at:32.

    MLflow takes letters, digits and `_ - . / : space`. A colon of ours is spelt out too, so two names never
    become one. A name that would not stay itself as a path (`//`, `..`) gets its slashes and dots spelt out;
    one over 250 characters is cut and ends in a hash of the whole.
    """
    safe = _REFUSED.sub(lambda found: _spell(found.group()), name)
    if safe != posixpath.normpath(safe) or safe.startswith(("..", "/")) or safe == ".":
        safe = safe.replace("/", _spell("/")).replace(".", _spell("."))
    if not safe:
        return ":empty:"
    return safe if len(safe) <= MAX_KEY else f"{safe[: MAX_KEY - 18]}:{_digest(name)}:"


def registered_name(sweep: str) -> str:
    """A sweep's name as that of a registered model, which MLflow refuses slashes and colons in: those as %2F."""
    return quote(sweep, safe="")


def sweep_uid(sweep: SweepRecord) -> str:
    """Tells a sweep from those of one name in other ledgers, which a server may show too, by its creation time."""
    return f"{sweep.address} {sweep.identity[:12]} {sweep.created_at.isoformat()}"


def _spell(character: str) -> str:
    return f":{_WORDS.get(character, format(ord(character), 'x'))}:"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def param_value(value: Any) -> str:
    """A parameter as text: strings as they are, the rest as JSON; see `shorten` for long ones."""
    return shorten(value if isinstance(value, str) else json.dumps(value, default=str), MAX_PARAM)


def shorten(text: str, limit: int) -> str:
    """Cut a text to `limit` characters and say so, with a hash that tells two long values apart."""
    if len(text) <= limit:
        return text
    note = f" … [{len(text)} characters in all, sha256 {_digest(text)}; in full among the run's artifacts]"
    return text[: limit - len(note)] + note
