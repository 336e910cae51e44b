"""What the trainer uses of a policy's model, whoever computes it: its own decoder, or transformers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from dapo.parallel import ITSELF, Group

if TYPE_CHECKING:
    from dapo.config import RolloutConfig
    from dapo.engine_base import RolloutEngine


class ModelShape(Protocol):
    """A model's `config.json`, as far as the trainer asks."""

    @property
    def vocab_size(self) -> int:
        """Tokens."""

    @property
    def eos_token_id(self) -> int | None:
        """Token that ends a text."""

    @property
    def pad_token_id(self) -> int | None:
        """Token that means nothing."""

    @property
    def weights_per_token(self) -> int:
        """Weights of the matrix products that a token goes through, the head's included."""

    @property
    def attention_width(self) -> int:
        """Layers times the width of their queries."""

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`."""


class PolicyModel(nn.Module, ABC):
    """A causal language model."""

    config: ModelShape
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass, where the model can."""
    remove_padding: bool = True
    """Pack sequences, where the model can."""
    compiled: bool = False
    """Compile the scoring and, where the model can, its feed-forward parts."""
    sequence_group: Group = ITSELF
    """The processes that share each sequence, where the model can."""

    @property
    @abstractmethod
    def head_weight(self) -> Tensor:
        """[vocab, hidden] weight of the output projection."""

    @abstractmethod
    def hidden_packed(self, input_ids: Tensor, cu_seqlens: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the last hidden states of packed sequences; `Decoder.hidden_packed` documents it."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] of what `hidden_packed` returns."""

    @property
    @abstractmethod
    def projections(self) -> tuple[str, ...]:
        """Names of the layers that an adapter can be added to; the head is none of them."""

    @abstractmethod
    def engine(self, rollout: RolloutConfig, tp: Group = ITSELF) -> RolloutEngine:
        """Return what generates from the weights as they are, of which each of `tp` has a part where the model can."""

    @abstractmethod
    def saved_state(self) -> dict[str, Tensor]:
        """All weights by their names in a Hugging Face folder, an adapter merged."""
