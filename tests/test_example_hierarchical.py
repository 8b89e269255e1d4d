# SPDX-License-Identifier: MIT
# examples/hierarchical_documents.py: that it judges reviews by the words that judge, and what its
# user sees. Run by pytest; it needs NumPy alone (the picture: matplotlib).
# It does not train; examples/reviews/train.py did.
"""Tests of the example that judges reviews."""

import random
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def example():
    """The script as a module; its folder is on the path, as it is for its user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import hierarchical_documents

        yield hierarchical_documents


@pytest.fixture(scope="module")
def judge(example):
    return example.Judge()


def top_words(document, judgement):
    """The two weightiest words of the weightiest sentence."""
    i = int(np.argmax(judgement.sentences))
    order = np.argsort(-judgement.words[i])
    return {document[i][j] for j in order[:2]}


def test_reviews_are_judged_as_their_author_meant_them(example, judge, backend):
    documents = [example.texts.split(text) for _, text in example.texts.REVIEWS]
    judgements = judge.judge(documents)
    assert [j.content > 0.5 for j in judgements] == [label for label, _ in example.texts.REVIEWS]


def test_random_reviews_are_judged_right(example, judge):
    draw = random.Random(99)
    reviews = [example.texts.random_review(draw) for _ in range(300)]
    judgements = judge.judge([document for _, document in reviews])
    right = sum((j.content > 0.5) == label for j, (label, _) in zip(judgements, reviews))
    assert right >= 285


def test_weights_of_a_level_add_up_to_one(example, judge, backend):
    documents = [example.texts.split(text) for _, text in example.texts.REVIEWS]
    for document, judgement in zip(documents, judge.judge(documents)):
        assert [len(row) for row in judgement.words] == [len(row) for row in document]
        for row in [*judgement.words, judgement.sentences]:
            np.testing.assert_allclose(row.sum(), 1, rtol=1e-5)


def test_the_words_that_judge_have_the_weight(example, judge):
    documents = [
        example.texts.split("We sat near the door. The soup was terrible. It was a Monday in May."),
        example.texts.split("The lamp stands on my desk. It has two lenses. The screen is superb."),
    ]
    for document, judgement, word, i in zip(
        documents, judge.judge(documents), ("terrible", "superb"), (1, 2)
    ):
        assert np.argmax(judgement.sentences) == i
        assert word in top_words(document, judgement)


def test_a_denial_turns_the_verdict(example, judge):
    texts = ("The fish was fresh.", "The fish was not fresh.")
    yes, no = judge.judge([example.texts.split(text) for text in texts])
    assert yes.content > 0.9
    assert no.content < 0.1


def test_a_document_is_judged_alike_alone_and_among_others(example, judge, backend):
    documents = [example.texts.split(text) for _, text in example.texts.REVIEWS]
    for document, together in zip(documents, judge.judge(documents)):
        (alone,) = judge.judge([document])
        assert alone.content == pytest.approx(together.content, abs=1e-6)
        np.testing.assert_allclose(alone.sentences, together.sentences, rtol=0, atol=1e-6)


def test_texts_become_sentences_of_words(example):
    assert example.texts.split("Don't go!  It's 5 o'clock.\n\n...\nCaf\u00e9") == [
        ["don't", "go"],
        ["it's", "o'clock"],
        ["caf\u00e9"],
    ]


def test_shown_reviews_are_not_among_the_parts_of_training(example):
    parts = {" ".join(s) for seed in range(300) for s in _sentences(example, seed)}
    for _, text in example.texts.REVIEWS:
        assert not {" ".join(sentence) for sentence in example.texts.split(text)} & parts


def _sentences(example, seed):
    return example.texts.random_review(random.Random(seed))[1]


def test_command_shows_every_word_with_its_weight(example, capsys, backend):
    assert example.main(["The soup was cold. We sat outside."]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not content (")
    words, numbers = lines[1].split()[-4:], lines[2].split()
    assert words == ["the", "soup", "was", "cold"]
    assert 98 <= sum(map(int, numbers)) <= 102
    assert f"backend {backend}," in lines[-1]


def test_command_counts_what_is_right_of_the_built_in_reviews(example, capsys):
    assert example.main([]) == 0
    assert "6 of 6 as their author meant them" in capsys.readouterr().out


def test_narrow_terminals_break_lines_and_colours_come_in_pairs(example, judge):
    document = example.texts.split("we found the room and the bed and the view and the bath lovely")
    (judgement,) = judge.judge([document])
    plain = example.shown(document, judgement, 50, False).splitlines()
    assert max(map(len, plain)) <= 50
    assert len(plain) >= 4
    colours = example.shown(document, judgement, 50, True)
    assert colours.count("\x1b[30;48;5;") == colours.count("\x1b[0m") == len(document[0])


def test_command_draws_the_reviews(example, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "reviews.png"
    assert example.main(["--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.endswith(f"wrote {path}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["..."], "a review has no words"),
        (["--plot", "no/such/folder/x.png"], "--plot: no folder"),
    ],
)
def test_command_explains_a_bad_argument(example, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        example.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_stored_weights_are_small():
    assert (EXAMPLES / "reviews" / "weights.npz").stat().st_size < 50_000
