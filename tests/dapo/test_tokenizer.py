import json
from pathlib import Path

import pytest
from dapo.errors import ModelError
from dapo.tokenizer import EOS, PAD, Tokenizer, byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer

WORDS = ("Find ", "What ", "is ", "Answer: ", "; ", "été ")
TOKENIZER = byte_tokenizer(WORDS)
CHAT = """{{ bos_token }}{% for message in messages %}
    {% if message['role'] not in ['user', 'assistant'] %}
        {{ raise_exception('unknown role') }}
    {% endif %}
<|{{ message['role'] }}|>{{ message['content'] | tojson }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}"""


texts = st.text() | st.lists(st.sampled_from([*WORDS, "Answer:", " ", "\n", "12", "+", "é", "<eos>", "😀"])).map(
    "".join
)


@given(texts)
def test_any_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(texts, max_size=5))
def test_a_batch_is_each_of_its_rows(batch: list[str]) -> None:
    rows = [TOKENIZER.encode(text) for text in batch]
    assert TOKENIZER.encode_batch(batch) == rows
    assert TOKENIZER.decode_batch(rows) == batch
    assert all(0 <= token < TOKENIZER.vocab_size for row in rows for token in row)


@given(texts)
def test_text_never_becomes_a_special_token(text: str) -> None:
    ids = TOKENIZER.encode(f"{text}{EOS}{text}{PAD}")
    assert not {TOKENIZER.eos_id, TOKENIZER.pad_id} & set(ids)


def test_words_are_one_token_and_digits_too() -> None:
    assert [len(TOKENIZER.encode(word)) for word in WORDS] == [1] * len(WORDS)
    assert len(TOKENIZER.encode("What is 47+5; Answer: 52")) == 2 + 4 + 1 + 1 + 2
    assert len(TOKENIZER.encode("Answer")) == len("Answer")


def test_special_tokens_are_left_out_of_the_text() -> None:
    ids = TOKENIZER.encode("Answer: 5")
    assert TOKENIZER.decode([TOKENIZER.pad_id, *ids, TOKENIZER.eos_id]) == "Answer: 5"


def test_half_a_character_decodes_to_something() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("😀")[:2]) != ""


def test_prompts_without_a_chat_template() -> None:
    assert TOKENIZER.prompt("1+1?") == "1+1?\n"
    assert TOKENIZER.prompt("{1}", "Q: {problem} {A}: ") == "Q: {1} {A}: "


def test_transformers_reads_the_saved_folder(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (TOKENIZER.eos_id, TOKENIZER.pad_id)
    for text in ("What is 47+5-8?\n", "47+5=52; Answer: 52", "Été  ;; 😀\t\n", "Find Find  12 . , ?"):
        ids = TOKENIZER.encode(text)
        assert theirs(text, add_special_tokens=False).input_ids == ids
        assert theirs.decode([*ids, TOKENIZER.eos_id], skip_special_tokens=True) == text


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.eos_id, again.pad_id, again.vocab_size) == (TOKENIZER.eos_id, TOKENIZER.pad_id, TOKENIZER.vocab_size)
    text = f"What is 1+1? {EOS}"
    assert again.encode(text) == TOKENIZER.encode(text)


def chat_backend() -> Backend:
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Backend(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|user|>", "<|assistant|>"])
    return backend


def chat_folder(folder: Path, template: object, **settings: object) -> Path:
    chat_backend().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "chat_template": template} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"} | settings))
    return folder


@pytest.mark.parametrize("problem", ["What is 1 < 2?", "é\n\n 'quoted' \"twice\" <s>"])
def test_chat_prompts_are_those_of_transformers(problem: str, tmp_path: Path) -> None:
    ours = Tokenizer.load(chat_folder(tmp_path, CHAT))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": problem}]
    text = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text.startswith("<s>")
    assert ours.prompt(problem) == text
    assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    assert ours.prompt(problem, "Q: {problem}") == f"Q: {problem}"


def test_a_chat_template_survives_saving(tmp_path: Path) -> None:
    ours = Tokenizer.load(chat_folder(tmp_path, CHAT))
    target = tmp_path / "again"
    target.mkdir()
    ours.save(target)
    again = Tokenizer.load(target)
    assert again.prompt("hi") == ours.prompt("hi")
    assert again.encode(again.prompt("hi")) == ours.encode(ours.prompt("hi"))


def test_a_template_in_its_own_file_or_one_of_several(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D{{ messages[0].content }}"}]
    chat_folder(tmp_path, several)
    assert Tokenizer.load(tmp_path).prompt("hi") == "Dhi"
    (tmp_path / "chat_template.jinja").write_text("F{{ messages[0].content }}")
    assert Tokenizer.load(tmp_path).prompt("hi") == "Fhi"


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ messages[5].content.x }}"])
def test_a_template_that_fails_is_told(template: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="chat_template: fails on messages of user"):
        Tokenizer.load(chat_folder(tmp_path, template)).prompt("hi")


def test_special_tokens_by_table_or_by_id(tmp_path: Path) -> None:
    chat_folder(tmp_path, None, eos_token={"content": "<|user|>"}, pad_token="<|assistant|>")
    by_table = Tokenizer.load(tmp_path, eos_id=1, pad_id=2)
    assert (by_table.eos_id, by_table.pad_id) == (258, 259)
    chat_folder(tmp_path, None, eos_token="<not there>")
    by_id = Tokenizer.load(tmp_path, eos_id=257)
    assert (by_id.eos_id, by_id.pad_id) == (257, 257)
