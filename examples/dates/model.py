# SPDX-License-Identifier: MIT
# The reader of dates in NumPy, its attention by fastattn. Used by date_alignment.py and its test.
# It loads weights.npz, which train.py made; it trains nothing and knows no format of dates.
"""A bidirectional GRU reads, a GRU writes, and attends anew before each character it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastattn.layers import BahdanauAttention

from . import texts

WEIGHTS = Path(__file__).with_name("weights.npz")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


class GRU:
    """Gates as PyTorch has them, three side by side: reset, update, new."""

    def __init__(self, weights: dict[str, np.ndarray], name: str) -> None:
        self.w_input, self.w_state, self.b_input, self.b_state = (
            weights[f"{name}.{part}"] for part in ("w_input", "w_state", "b_input", "b_state")
        )

    def step(self, x: np.ndarray, state: np.ndarray) -> np.ndarray:
        """One step of a batch: (batch, inputs) and (batch, size) give the next (batch, size)."""
        from_input = np.split(x @ self.w_input + self.b_input, 3, axis=-1)
        from_state = np.split(state @ self.w_state + self.b_state, 3, axis=-1)
        reset = sigmoid(from_input[0] + from_state[0])
        update = sigmoid(from_input[1] + from_state[1])
        new = np.tanh(from_input[2] + reset * from_state[2])
        return (1 - update) * new + update * state

    def read(self, x: np.ndarray, lengths: np.ndarray, *, backwards: bool = False) -> np.ndarray:
        """The states at all steps (batch, steps, size); past its length a text changes nothing."""
        n_batch, n_steps, _ = x.shape
        states = np.zeros((n_batch, n_steps, len(self.w_state)), x.dtype)
        state = states[:, 0]
        for t in reversed(range(n_steps)) if backwards else range(n_steps):
            is_text = (t < lengths)[:, None]
            state = np.where(is_text, self.step(x[:, t], state), state)
            states[:, t] = state
        return states


class DateReader:
    """Texts to (results, alignments)."""

    def __init__(self, path: Path = WEIGHTS) -> None:
        with np.load(path) as file:
            w = {name: file[name].astype(np.float32) for name in file.files}
        self.embedding, self.output_embedding = w["embedding"], w["output_embedding"]
        self.forwards, self.backwards = GRU(w, "forwards"), GRU(w, "backwards")
        self.writer = GRU(w, "writer")
        self.w_start, self.w_result, self.b_result = w["w_start"], w["w_result"], w["b_result"]
        self.attention = BahdanauAttention(
            attention_v=w["attention_v"],
            query_weight=w["query_weight"],
            key_weight=w["key_weight"],
            hidden_bias=w["hidden_bias"],
        )

    def read(self, dates: Sequence[str]) -> tuple[list[str], list[np.ndarray]]:
        """What the dates are, and for each the weights (characters of the result, of the text)."""
        rows = [texts.numbers(date) for date in dates]
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), lengths.max()), np.int64)
        for row, given in zip(ids, rows):
            row[: len(given)] = given
        x = self.embedding[ids]
        behind = self.backwards.read(x, lengths, backwards=True)
        memory = np.concatenate([self.forwards.read(x, lengths), behind], axis=-1)

        # The memory is the same for every step: it is projected once. What differs from step to
        # step is the query, the writer's state, and so each character gets a context of its own.
        prepared = self.attention.prepare(memory)
        state = np.tanh(behind[:, 0] @ self.w_start)
        last = np.full(len(rows), len(texts.OUTPUTS))  # "nothing yet" has an embedding, too
        written, alignment = [], []
        for _ in range(texts.N_OUTPUT):
            context, weights = self.attention(
                state, prepared, memory_lengths=lengths, return_weights=True
            )
            x = np.concatenate([self.output_embedding[last], context], axis=-1)
            state = self.writer.step(x, state)
            scores = np.concatenate([state, context], axis=-1) @ self.w_result + self.b_result
            last = scores.argmax(axis=-1)
            written.append(last)
            alignment.append(weights)
        results = ["".join(texts.OUTPUTS[i] for i in row) for row in np.stack(written, axis=1)]
        maps = np.stack(alignment, axis=1)  # (batch, characters written, characters read)
        return results, [m[:, :n] for m, n in zip(maps, lengths)]
