# SPDX-License-Identifier: MIT
# attention(score=...): wrong arguments, of the scores above all.
# Used by the suite, on every backend.
# What the additive score and the dot product refuse is in their own files.
"""A wrong call raises before anything is computed; the message begins with the argument."""

import numpy as np
import pytest

import fastattn
from fastattn import scores

F = np.float32
q4, k5, v6 = np.zeros((2, 3, 4), F), np.zeros((2, 7, 5), F), np.zeros((2, 7, 6), F)
WRONG = [
    ({"score": "additive"}, ValueError, "score"),
    ({"score": None}, TypeError, "score"),
    ({"score": scores.General}, TypeError, "score"),
    ({"score": np.eye(4)}, TypeError, "score"),
    ({"score": "dot"}, ValueError, "key"),
    ({"score": "cosine"}, ValueError, "key"),
    ({"score": scores.General(np.zeros((5, 4)))}, ValueError, "weight"),
    ({"score": scores.General(np.zeros((4, 4)))}, ValueError, "weight"),
    ({"score": scores.General(np.zeros(4))}, ValueError, "weight"),
    ({"score": scores.General(np.zeros((4, 5), int))}, TypeError, "weight"),
    ({"score": scores.Cosine(0.0), "key": q4}, ValueError, "temperature"),
    ({"score": scores.Cosine(-1.0), "key": q4}, ValueError, "temperature"),
    ({"score": scores.Cosine(np.nan), "key": q4}, ValueError, "temperature"),
    ({"score": scores.Cosine("1"), "key": q4}, TypeError, "temperature"),
    ({"score": scores.Location(np.zeros((4, 6)))}, ValueError, "weight"),
    ({"score": scores.Location(np.zeros((5, 7)))}, ValueError, "weight"),
    ({"score": scores.Location(None)}, TypeError, "weight"),
    ({"score": scores.Concat(np.zeros((8, 3)), np.zeros(3))}, ValueError, "weight"),
    ({"score": scores.Concat(np.zeros(9), np.zeros(3))}, ValueError, "weight"),
    ({"score": scores.Concat(np.zeros((9, 3), int), np.zeros(3))}, TypeError, "weight"),
    ({"score": scores.Concat(np.zeros((9, 3)), np.zeros(4))}, ValueError, "attention_v"),
    ({"score": scores.Concat(np.zeros((9, 3)), np.zeros((3, 3)))}, ValueError, "attention_v"),
    ({"score": scores.Additive(np.zeros(4))}, ValueError, "key"),
    ({"score": scores.Additive(np.zeros(5))}, ValueError, "query"),
    ({"score": scores.Additive(np.zeros(5)), "softcap": 2.0}, ValueError, "softcap"),
    ({"score": scores.Additive(np.zeros(5)), "softcap": -2.0}, ValueError, "softcap"),
    ({"score": scores.Additive(np.zeros(5)), "alibi_slopes": np.ones(2)}, ValueError, "alibi_slop"),
    ({"query": q4.astype(int)}, TypeError, "query"),
    ({"value": v6[:, :6]}, ValueError, "value"),
    ({"key": k5[:1]}, ValueError, "value|key"),
    ({"kv_lengths": 8}, ValueError, "kv_lengths"),
    ({"out": np.zeros((2, 3, 5), F)}, ValueError, "out"),
    ({"layout": "sbhd"}, ValueError, "layout"),
    ({"scale": 1.0}, TypeError, ".*scale"),
]


@pytest.mark.parametrize("n", range(len(WRONG)))
def test_wrong_arguments(backend, n):
    change, error, name = WRONG[n]
    good = {"query": q4, "key": k5, "value": v6, "score": scores.General(np.zeros((4, 5)))}
    with pytest.raises(error, match=f"^({name})"):
        fastattn.attention(**good | change)
