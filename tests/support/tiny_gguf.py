"""A GGUF file of a decoder that was drawn at random, small enough to be written in a moment."""

from pathlib import Path

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 32, 2, 4, 2, 64
TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *"abcdefghijklmnopqrstuvwxyz",
    "Ġ",
    "Ċ",
    "0",
    "1",
    "2",
    "ab",
    "cd",
]
MERGES = ["a b", "c d"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(path: Path, *, end_token: bool = True, quantised: bool = False) -> Path:
    """Write a Llama-style model whose first token is special, as its template's others are."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    if end_token:
        writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)
    keys = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {
            f"{block}.attn_norm.weight": (HIDDEN,),
            f"{block}.attn_q.weight": (HIDDEN, HIDDEN),
            f"{block}.attn_k.weight": (keys, HIDDEN),
            f"{block}.attn_v.weight": (keys, HIDDEN),
            f"{block}.attn_output.weight": (HIDDEN, HIDDEN),
            f"{block}.ffn_norm.weight": (HIDDEN,),
            f"{block}.ffn_gate.weight": (MLP, HIDDEN),
            f"{block}.ffn_up.weight": (MLP, HIDDEN),
            f"{block}.ffn_down.weight": (HIDDEN, MLP),
        }
    for name, shape in shapes.items():
        values = rng.normal(scale=0.5, size=shape).astype(np.float32)
        if quantised and len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
