# SPDX-License-Identifier: MIT
# Trains the reader of dates in PyTorch and writes weights.npz beside this file. Run by people:
# `python examples/dates/train.py` (one thread, about two minutes); everything is seeded.
# Nothing else needs it or PyTorch. It measures nothing; date_alignment.py does, on held-out dates.
"""The same model as model.py, with gradients."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import texts
import torch
from torch import nn

STEPS, BATCH, RATE, SEED = 1500, 128, 4e-3, 1
EMBEDDING, SIZE, UNITS = 16, 48, 32
N_START = len(texts.OUTPUTS)  # the number of "nothing yet"


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(texts.INPUTS), EMBEDDING)
        self.output_embedding = nn.Embedding(N_START + 1, EMBEDDING)
        self.encoder = nn.GRU(EMBEDDING, SIZE, batch_first=True, bidirectional=True)
        self.start = nn.Linear(SIZE, SIZE, bias=False)
        self.query = nn.Linear(SIZE, UNITS, bias=False)
        self.key = nn.Linear(2 * SIZE, UNITS)
        self.attention_v = nn.Linear(UNITS, 1, bias=False)
        self.writer = nn.GRUCell(EMBEDDING + 2 * SIZE, SIZE)
        self.result = nn.Linear(3 * SIZE, len(texts.OUTPUTS))

    def forward(self, ids, lengths, written):
        """Scores of the characters (batch, 10, outputs), each given those before it."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(ids), lengths, batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        is_padding = torch.arange(memory.shape[1]) >= lengths[:, None]
        keys = self.key(memory)
        state = torch.tanh(self.start(last[1]))
        scores = []
        for t in range(texts.N_OUTPUT):
            s = self.attention_v(torch.tanh(self.query(state)[:, None] + keys))[..., 0]
            alpha = torch.softmax(s.masked_fill(is_padding, -torch.inf), dim=-1)
            context = (alpha[:, None] @ memory)[:, 0]
            x = torch.cat([self.output_embedding(written[:, t]), context], dim=-1)
            state = self.writer(x, state)
            scores.append(self.result(torch.cat([state, context], dim=-1)))
        return torch.stack(scores, dim=1)


def batch(seed: int):
    """Random dates with new texts each time; none that is held out."""
    pairs = texts.pairs(BATCH, seed, held_out=False)
    rows = [torch.tensor(texts.numbers(text)) for _, text, _ in pairs]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    wanted = torch.tensor([[texts.OUTPUTS.index(c) for c in result] for *_, result in pairs])
    start = torch.full((len(pairs), 1), N_START)
    return ids, lengths, torch.cat([start, wanted[:, :-1]], dim=1), wanted


def exported(model: Reader) -> dict[str, np.ndarray]:
    """The weights by model.py's names, oriented as in ``x @ weight``."""
    result = {
        "embedding": model.embedding.weight,
        "output_embedding": model.output_embedding.weight,
        "w_start": model.start.weight.T,
        "query_weight": model.query.weight.T,
        "key_weight": model.key.weight.T,
        "hidden_bias": model.key.bias,
        "attention_v": model.attention_v.weight[0],
        "w_result": model.result.weight.T,
        "b_result": model.result.bias,
    }
    for name, module, ending in (
        ("forwards", model.encoder, "_l0"),
        ("backwards", model.encoder, "_l0_reverse"),
        ("writer", model.writer, ""),
    ):
        for part in ("input", "state"):
            letters = {"input": "ih", "state": "hh"}[part]
            result[f"{name}.w_{part}"] = getattr(module, f"weight_{letters}{ending}").T
            result[f"{name}.b_{part}"] = getattr(module, f"bias_{letters}{ending}")
    return {name: w.detach().numpy().astype(np.float16) for name, w in result.items()}


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    started = time.perf_counter()
    for step in range(STEPS):
        ids, lengths, written, wanted = batch(SEED * STEPS + step)
        scores = model(ids, lengths, written)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            right = (scores.argmax(-1) == wanted).all(-1).float().mean()
            seconds = time.perf_counter() - started
            print(f"{step + 1:5}  loss {loss:.4f}  right {right:.3f}  {seconds:.0f} s", flush=True)
    path = Path(__file__).with_name("weights.npz")
    np.savez_compressed(path, **exported(model))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
