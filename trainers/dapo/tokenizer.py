"""Text to tokens and back, for the embedded model and for any Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.errors import ModelError

if TYPE_CHECKING:
    import tokenizers

PAD, EOS = "<pad>", "<eos>"
_PIECES = r"\d|\p{L}+:? ?|[^\s\p{L}\d] ?|\s"
"""Digits one by one, words and punctuation marks with the space that follows them."""


class Tokenizer:
    """A `tokenizer.json`, its special tokens and its chat template."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_id: int,
        pad_id: int,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        # A chat template writes special tokens as text; without one, text that looks like one is only text.
        backend.encode_special_tokens = chat_template is None
        self.eos_id = eos_id
        """Token that ends a response."""
        self.pad_id = pad_id
        """Token that fills a batch; never trained on."""
        self.chat_template = chat_template
        """Jinja text that a chat model's prompts go through, or None."""
        names = {"eos_token": backend.id_to_token(eos_id), "pad_token": backend.id_to_token(pad_id)}
        self.opening = _added_before(backend)
        """Tokens that begin every text, such as Llama's `<s>`; a chat template writes them itself."""
        self.special_tokens = {**(special_tokens or {}), **names}
        """Texts by name, such as `bos_token`, as a chat template uses them."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, without adding special ones."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Return the tokens of `text`, in which what looks like a special token is only text."""
        before = self._backend.encode_special_tokens
        self._backend.encode_special_tokens = True
        try:
            return self.encode(text)
        finally:
            self._backend.encode_special_tokens = before

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text; faster than one call a text."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of `ids`, without special tokens unless they are asked for."""
        return str(self._backend.decode(list(ids), skip_special_tokens=not special))

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row; faster than one call a row."""
        return list(self._backend.decode_batch([list(row) for row in rows], skip_special_tokens=True))

    def prompt(self, problem: str, template: str | None = None) -> str:
        """Return the prompt's text: `template` with `{problem}` filled in, or else the model's own form.

        A model with a chat template gets the problem as the user's message; one without gets a line of its own.

        Raises:
            ModelError: the chat template fails.
        """
        if template is not None:
            return template.replace("{problem}", problem)
        if self.chat_template is None:
            return problem + "\n"
        return self.chat([{"role": "user", "content": problem}])

    def chat(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True) -> str:
        """Return a dialogue as the chat template renders it, up to where the assistant answers if that is wanted.

        Raises:
            ModelError: the chat template fails, or there is none.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered = render_jinja_template(
                [list(map(dict, messages))],
                chat_template=self.chat_template,
                add_generation_prompt=answer,
                **self.special_tokens,
            )
        except Exception as error:  # a template can raise anything
            roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
            raise ModelError(f"chat_template: fails on messages of {roles} ({error}); need another model") from error
        return str(rendered[0][0])

    @classmethod
    def load(cls, folder: Path, eos_id: int | None = None, pad_id: int | None = None) -> Tokenizer:
        """Read `tokenizer.json` and `tokenizer_config.json`; the ids given stand in where the latter is silent.

        Raises:
            ModelError: no readable tokenizer.json or tokenizer_config.json, or no end token.
        """
        from tokenizers import Tokenizer as Backend

        try:
            backend = Backend.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{folder / 'tokenizer.json'}: can't be read ({error})") from error
        extra = folder / "tokenizer_config.json"
        try:
            settings: dict[str, Any] = dict(json.loads(extra.read_text("utf-8"))) if extra.is_file() else {}
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{extra}: can't be read ({error})") from error
        special = {key: text for key in settings if key.endswith("_token") and (text := _text(settings[key]))}
        eos = _special(backend, special.get("eos_token"), eos_id)
        if eos is None:
            raise ModelError(f"{folder}: no eos_token in tokenizer_config.json or config.json")
        pad = _special(backend, special.get("pad_token"), pad_id)
        template = folder / "chat_template.jinja"
        chat = template.read_text("utf-8") if template.is_file() else settings.get("chat_template")
        if isinstance(chat, list):  # several templates by name
            chat = next((entry["template"] for entry in chat if entry["name"] == "default"), None)
        return cls(backend, eos_id=eos, pad_id=eos if pad is None else pad, chat_template=chat, special_tokens=special)

    def save(self, folder: Path) -> None:
        """Write what `load` and transformers' `AutoTokenizer` read."""
        self._backend.save(str(folder / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.special_tokens,
            "clean_up_tokenization_spaces": False,
        }
        if self.chat_template is not None:
            settings["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), "utf-8")


def byte_tokenizer(words: Iterable[str]) -> Tokenizer:
    """Build a byte-level tokenizer in which each of `words` (with its trailing space, if any) is one token.

    Any other text falls back to its UTF-8 bytes, so that everything encodes and round-trips.
    """
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = [PAD, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += ["".join(piece for piece, _ in to_bytes.pre_tokenize_str(word)) for word in words]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_PIECES), "isolated"), to_bytes])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, EOS)])
    return Tokenizer(backend, eos_id=vocabulary[EOS], pad_id=vocabulary[PAD])


def _added_before(backend: tokenizers.Tokenizer) -> list[int]:
    """What the post-processor of a `tokenizer.json` puts before a text."""
    encoded = backend.encode("0")
    added = takewhile(bool, encoded.special_tokens_mask)
    return [token for token, _ in zip(encoded.ids, added, strict=False)]


def _text(token: object) -> str | None:
    """Return the text of a special token as tokenizer_config.json writes it: itself, or a table with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _special(backend: tokenizers.Tokenizer, text: str | None, fallback: int | None) -> int | None:
    """Return the id of a special token, or `fallback` where there is none of that text."""
    found = None if text is None else backend.token_to_id(text)
    return fallback if found is None else found
