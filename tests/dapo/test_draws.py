"""Drawing tokens: the distribution is that of transformers' processors."""

import torch
from dapo.draws import Sampling, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from warped import warped


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 70, 300]),
    st.floats(0.3, 3.0),
    st.sampled_from([-1, 0, 1, 3, 65, 500]),
    st.floats(0.05, 1.0),
)
def test_truncation_is_that_of_transformers(
    seed: int, vocabulary: int, spread: float, top_k: int, top_p: float
) -> None:
    """An even grid of uniforms meets every token that has more than a grid step of mass, and no other."""
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread
    sampling = Sampling(0.8, top_p, top_k)
    expected = warped(logits, sampling)[0]
    steps = 3000
    uniforms = (torch.arange(steps) + 0.5) / steps
    drawn, logprobs = draw(logits.expand(steps, -1), uniforms, sampling)
    torch.testing.assert_close(logprobs, expected[drawn], atol=1e-4, rtol=0)
    sure = (expected.exp() > 1.5 / steps).nonzero().flatten().tolist()
    assert set(sure) <= set(drawn.tolist())


def test_the_ends_of_the_unit_interval_draw_tokens_with_mass() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]]).expand(2, -1)
    drawn, logprobs = draw(logits, torch.tensor([0.0, 1.0 - 2**-24]), Sampling(1.0, 1.0, -1))
    assert drawn.tolist() == [1, 3]
    torch.testing.assert_close(logprobs, torch.log_softmax(torch.tensor([0.0, 1.0]), 0))
