"""Configuration of responses in several turns, in which the policy may call tools."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dapo.config_section import PositiveFloat, PositiveInt, Section

ToolName = Literal["calculator", "python"]


class MultiTurnConfig(Section):
    """Turns and tools (verl's `rollout.multi_turn`); see `dapo.multi_turn`."""

    enable: bool = False
    """Offer tools. A response may then have several turns; `data.max_response_length` limits all of it, what tools
    answered included."""
    max_turns: PositiveInt = 4
    """Assistant turns per response (verl: `max_assistant_turns`). A call in the last one isn't run: the response
    ends there."""
    tools: Annotated[tuple[ToolName, ...], Field(min_length=1)] = ("calculator",)
    """`calculator`: exact arithmetic. `python`: a program in a sandboxed process, without files or network; Linux
    only."""
    format: Literal["hermes"] = "hermes"
    """How calls are written: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    tool_usage_prob: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of training prompts to which tools are offered, drawn anew each time that a prompt is (the same for all
    its responses); the others are answered in one turn. At evaluation tools are always offered."""
    max_parallel_calls: PositiveInt = 1
    """Calls of one turn that are run; what else a turn asks for is left out."""
    max_tool_response_length: PositiveInt = 64
    """Tokens of one tool's answer (verl counts characters); what is longer is truncated."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """Which part of a long answer is left out."""
    tool_timeout_s: PositiveFloat = 5.0
    """Seconds that one program may take. Only for the tool `python`."""
    tool_memory_mb: Annotated[int, Field(ge=64)] = 256
    """Address space of one program in MiB, the interpreter's own 30 included. Only for the tool `python`."""
    num_workers: PositiveInt = 1
    """Programs that run side by side. Only for the tool `python`."""

    @model_validator(mode="after")
    def _tools_are_distinct(self) -> Self:
        if len(set(self.tools)) < len(self.tools):
            raise ValueError("different tools; name each one once")
        return self
