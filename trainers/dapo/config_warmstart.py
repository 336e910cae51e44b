"""Configuration of a supervised warm start (`dapo.supervised`)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dapo.config_section import PositiveFloat, PositiveInt, Section


class WarmstartConfig(Section):
    """What a warm start learns from, and how. Model, data, grader and evaluation are the run's own config."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the training rows, drawn at random: less leaves more for reinforcement to find out."""
    epochs: PositiveFloat = 1.0
    """Passes over them."""
    steps: PositiveInt | None = None
    """Updates; None follows from `epochs`."""
    batch_size: PositiveInt = 16
    """Solutions per update."""
    lr: PositiveFloat = 5e-5
    """Peak learning rate of AdamW: reached after a tenth of the updates, then down to a tenth in a straight line."""
    max_token_len: PositiveInt = 4096
    """Tokens (prompt and solution) per micro-batch; doesn't change the gradient."""
    field: str = "solution"
    """Column with a row's worked solution; rows without one are taught the answer alone."""
    template: str = "Answer: {answer}"
    """What states an answer: all that is taught where there is no solution, and the last line of solutions in which
    the grader doesn't find the answer."""

    @model_validator(mode="after")
    def _template_holds_answer(self) -> Self:
        if "{answer}" not in self.template:
            raise ValueError("{answer} in template; write where the answer goes")
        return self
