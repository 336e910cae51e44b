"""Responses as bytes, for processes that sample a share each: no pickle, and every number as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from dapo.batch import Response, Turns


def pack_responses(groups: Sequence[Sequence[Response]]) -> bytes:
    """Pack responses, prompt by prompt."""
    flat = [response for group in groups for response in group]
    head = {
        "sizes": [len(group) for group in groups],
        "lengths": [len(response.token_ids) for response in flat],
        "finished": [response.finished for response in flat],
        "texts": [response.text for response in flat],
        "turns": [None if response.turns is None else asdict(response.turns) for response in flat],
    }
    tokens = np.array([token for response in flat for token in response.token_ids], np.int32)
    logprobs = np.array([value for response in flat for value in response.rollout_logprobs], np.float64)
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + tokens.tobytes() + logprobs.tobytes()


def unpack_responses(data: bytes) -> list[list[Response]]:
    """Undo `pack_responses`."""
    start = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:start])
    total = sum(head["lengths"])
    tokens = np.frombuffer(data, np.int32, total, start).tolist()
    logprobs = np.frombuffer(data, np.float64, total, start + 4 * total).tolist()
    flat: list[Response] = []
    place = 0
    for length, finished, text, turns in zip(
        head["lengths"], head["finished"], head["texts"], head["turns"], strict=True
    ):
        part = slice(place, place + length)
        place += length
        told = None if turns is None else Turns(**turns)
        flat.append(Response(tokens[part], logprobs[part], finished, text, told))
    responses = iter(flat)
    return [[next(responses) for _ in range(size)] for size in head["sizes"]]
