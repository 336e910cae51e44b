"""Names of a decoder's projections, as Hugging Face has them."""

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What `all-linear` names; the head is none of them, as in peft."""
