"""Checks of what belongs to tools: settings that nothing reads, lengths without room, and what tools run on."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.batch import Fault
from dapo.config import Config
from dapo.config_multi_turn import MultiTurnConfig
from dapo.errors import ModelError
from dapo.framing import Framing
from dapo.sandbox import sandbox_fault
from dapo.tokenizer import Tokenizer
from dapo.tool_calls import signatures_of

KEY = "rollout.multi_turn"
PYTHON_ONLY = ("tool_timeout_s", "tool_memory_mb", "num_workers")


def multi_turn_faults(config: Config) -> Iterator[Fault]:
    """Return the faults of `rollout.multi_turn`."""
    settings = config.rollout.multi_turn
    if not settings.enable:
        others = tuple(name for name in MultiTurnConfig.model_fields if name != "enable")
        yield from _unread(settings, others, "enable: false", "enable it")
        return
    if settings.max_turns < 2:
        need = "at least 2: a call is answered for the next turn"
        yield Fault(f"{KEY}.max_turns", str(settings.max_turns), need, "raise it, or set enable: false")
    longest = config.data.max_response_length
    if settings.max_tool_response_length >= longest:
        need = f"less than data.max_response_length, which is {longest} and counts what tools answer too"
        yield Fault(
            f"{KEY}.max_tool_response_length", str(settings.max_tool_response_length), need, "lower it, or raise that"
        )
    if "python" not in settings.tools:
        yield from _unread(settings, PYTHON_ONLY, f"tools: [{', '.join(settings.tools)}]", "add the tool python")
    elif (reason := sandbox_fault()) is not None:
        need = "a machine that can lock a program in: Linux 5.13 with Landlock and seccomp, on x86_64 or aarch64"
        yield Fault(f"{KEY}.tools", f"python, and here {reason}", need, "leave python out")


def framing_faults(config: Config, tokenizer: Tokenizer | None) -> Iterator[Fault]:
    """Return what keeps the model's chat template from showing tools' answers; None is no tokenizer at hand."""
    settings = config.rollout.multi_turn
    if not settings.enable or tokenizer is None:
        return
    framing = Framing(tokenizer, config.data.prompt_template, signatures_of(settings))
    try:
        framing.answers(["0"] * settings.max_parallel_calls, settings)
    except ModelError as error:
        need = "a chat template that shows what tools answer, and ends each turn with the model's end token"
        yield Fault(
            "model.path", f"{config.model.path!r} ({error})", need, f"choose another model, or {KEY}.enable: false"
        )


def _unread(settings: MultiTurnConfig, names: tuple[str, ...], state: str, do: str) -> Iterator[Fault]:
    """A knob that was set and that nothing reads is a mistake, not a preference."""
    for name in names:
        value = getattr(settings, name)
        if value != MultiTurnConfig.model_fields[name].default:
            yield Fault(
                f"{KEY}.{name}",
                str(value),
                f"its default with {state}, which doesn't read it",
                f"leave it out, or {do}",
            )
