"""The distribution that tokens are drawn from, as transformers' processors make it."""

import torch
from dapo.draws import Sampling
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


def warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities as transformers' processors make them."""
    ids = torch.zeros(len(logits), 1, dtype=torch.long)
    logits = TemperatureLogitsWarper(sampling.temperature)(ids, logits)
    if sampling.top_k > 0:
        logits = TopKLogitsWarper(sampling.top_k)(ids, logits)
    if sampling.top_p < 1.0:
        logits = TopPLogitsWarper(sampling.top_p)(ids, logits)
    return logits.log_softmax(-1)
