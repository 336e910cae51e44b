"""A static KV cache: a number of slots, each with the keys and values of one row, whoever is in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Read:
    """A prompt that was read, for rows that come later."""

    prompt: int
    """Its index."""
    keys: list[Tensor]
    """Per layer [L, kv_heads, head_dim]."""
    values: list[Tensor]
    """Per layer [L, kv_heads, head_dim]."""
    hidden: Tensor
    """[hidden] its last hidden state."""


class Cache:
    """Keys and values by column and slot.

    All rows write the same column, so that a step's keys are written in one piece, and each row's lie in the columns up
    to that one, without a gap: those of rows that came later, or whose prompts are shorter, begin further right.
    """

    def __init__(self, layers: int, columns: int, slots: int, heads: tuple[int, int], like: Tensor) -> None:
        """Take the memory for as many columns and slots as are ever used.

        Args:
            layers: of the model.
            columns: at least the length that any row may reach.
            slots: rows at once.
            heads: number of key-value heads, and their size.
            like: has the type and the device.
        """
        # Zeros, as what isn't a row's own gets no weight, and NaN times 0 is NaN.
        self.keys = [like.new_zeros(columns, slots, *heads) for _ in range(layers)]
        """Per layer [columns, slots, kv_heads, head_dim]; what lies beyond `bias`'s rows isn't used."""
        self.values = [like.new_zeros(columns, slots, *heads) for _ in range(layers)]
        self.bias = like.new_zeros(slots, columns)
        """[rows, columns]: -inf before each row's first column, else 0."""
        self.positions = torch.zeros(slots, dtype=torch.long, device=like.device)
        """[rows] length of each row: the position of its next token."""
        self.start = 0
        """Columns before this one belong to no living row."""
        self.column = 0
        """Next column to write."""

    @property
    def columns(self) -> int:
        """Columns there are."""
        return self.bias.shape[1]

    def enter(self, slots: Tensor, lengths: Tensor) -> None:
        """Begin rows of these lengths [n] in `slots` [n]; their keys and values are put in with `put`."""
        first = self.column - lengths.unsqueeze(1)
        before = torch.arange(self.columns, device=first.device) < first
        self.bias[slots] = torch.zeros_like(before, dtype=self.bias.dtype).masked_fill_(before, -torch.inf)
        self.positions[slots] = lengths

    def put(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [L, n, kv_heads, head_dim] of the last L columns of `slots` [n]."""
        columns = slice(self.column - len(keys), self.column)
        self.keys[layer][columns, slots] = keys
        self.values[layer][columns, slots] = values

    def read(self, prompt: int, slot: int, hidden: Tensor) -> Read:
        """Copy what the row in `slot` has read."""
        columns = slice(self.column - int(self.positions[slot]), self.column)
        keys, values = ([part[columns, slot].clone() for part in store] for store in (self.keys, self.values))
        return Read(prompt, keys, values, hidden.clone())

    def advance(self) -> None:
        """Count the column that was written; rows that have ended count on up to the last position."""
        self.column += 1
        self.positions.add_(1).clamp_max_(self.columns - 1)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (ascending)."""
        used = slice(self.start, self.column)
        for store in (self.keys, self.values):
            for layer, tensor in enumerate(store):
                tensor[used, : len(rows)] = tensor[used, rows]
                store[layer] = tensor[:, : len(rows)]
        self.bias, self.positions = self.bias[rows], self.positions[rows]

    def forget(self, alive: Tensor) -> None:
        """Leave out the columns that no living row [alive] uses; without any, all of them."""
        longest = int(self.positions[alive].max()) if len(alive) else self.column
        self.start = self.column - longest

    def make_room(self, alive: Tensor) -> None:
        """Move all to the left where no column is left to write. A living row is always shorter than `columns`."""
        if self.column < self.columns:
            return
        self.forget(alive)
        size = self.column - self.start
        for store in (*self.keys, *self.values):
            store[:size] = store[self.start : self.column].clone()
        moved = self.bias[:, self.start :].clone()
        self.bias.zero_()[:, :size] = moved
        self.start, self.column = 0, size
