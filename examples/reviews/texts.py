# SPDX-License-Identifier: MIT
# Reviews: what the model is trained on (put together at random) and what it is shown (written as a
# whole). Used by train.py, the model and the example. Standard library only.
# All sentences were written for this example. It knows no model.
"""Documents as lists of sentences, sentences as lists of words."""

from __future__ import annotations

import random
import re

UNKNOWN = "?"  # any word that training did not have

PLAIN = """
we arrived on a monday in march|the hotel has four floors and forty rooms|it stands beside the river
breakfast is served from seven to ten|the station is a short walk away|i was there with my sister
the box holds a charger and a cable|it comes in black and in blue|my brother has the older model
we ordered the soup and the fish|the menu changes every week|there are twelve tables and a bar
i bought it in the spring|the parcel came on a tuesday|it runs on two small batteries
the book has three hundred pages|the story begins in a small town|the author lives by the sea
we stayed for two nights|our room was on the second floor|the window looks onto a yard
it weighs about a kilo|the manual is in five languages|the film runs for two hours
we sat near the door|the kitchen closes at nine|they also sell bread and cheese
the bus stops in front of the house|the lift is behind the desk|we paid by card
it was my first visit|a friend told me about it|we had booked a month before
the cover shows a ship|the second part is set in winter|the music is by a young composer
the camera has two lenses|the bag has a pocket for keys|the lamp stands on my desk now
you can sit outside in summer|there is a garden with old trees|the shop opens at eight
"""
# Most plain sentences are put together, so that no word of them means more than another.
WHO = """
we|i|my brother|my sister|a friend|the man at the desk|two of us|the waiter|the author|they
a woman from the shop|the driver|our neighbours|the children|someone|the cook|a composer|he|she
""".strip()
DID = """
took|brought|ordered|had|saw|opened|wrote about|asked for|gave me|gave us|talked about|showed us
looked at|sold|reached|carried|chose|found|comes with|begins with|runs to|expected|remembered
""".strip()
WHAT = """
the {thing}|a {thing}|our {thing}|another {thing}|the night train|the third floor|a long letter
six hundred pages|a small town|the first chapter|two pianos|the blue cover|an old mirror|a ship
the key|the bus|a hall|forty years|nine rooms|the bill|three days|the road to the sea|lunch
""".strip()
WHEN = """
at six|in may|on sunday|after three days|before noon|at once|by the window|in front of the house
on the third floor|for two hours|near the station|every month|with my sister|in the yard|last year
from the shop|and a {thing}|and then the {thing}|by the sea|
""".strip("\n")
SET_OUT = """
there is a {thing} {when}|the {thing} is {when}|the {thing} was {when}|it was {what}|it is {what}
{who} {did} {what} {when}|{who} {did} {what}|{who} {did} {what} and {what}|{what} {when}
""".strip()
THINGS = """
room bed staff breakfast soup fish service screen battery sound camera story ending film book view
bathroom coffee bread waiter garden lamp bag price place hotel kitchen music acting cable
""".split()
WORDS = {  # what is said of them
    True: """
        good great lovely excellent wonderful perfect clean fresh friendly beautiful superb
        delicious charming brilliant comfortable pleasant delightful fantastic amazing fine splendid
        warm
    """.split(),
    False: """
        bad awful terrible dirty horrible poor cold rude broken dull boring disappointing stale
        ugly noisy dreadful useless slow bland miserable shabby unpleasant nasty weak
    """.split(),
}
SAID = {
    True: """
        we will come back|i loved every minute of it|everyone smiled and helped us
        it works like a charm|we enjoyed it very much|i recommend it to everyone
        we laughed and we cried|it made my day|nobody could be unhappy here
        i could not put it down|we did not want to leave|nothing was missing|it exceeded our hopes
        it is worth every penny|i have never slept so well|i would buy it again|what a treat
    """,
    False: """
        we will never come back|i hated every minute of it|nobody smiled or helped us
        it broke after a week|we waited for an hour|i want my money back|i regret that i bought it
        i could not sleep at all|we left before the end|it smelled of smoke|it stopped working
        it is a waste of money|i have never been so bored|i would not buy it again|what a mess
        the staff ignored us|they got our order wrong twice
    """,
}
FORMS = (
    "the {thing} was {word}|the {thing} is {word}|we found the {thing} {word}|{word} {thing}"
    "|the {thing} was very {word}|what a {word} {thing}|i thought the {thing} was {word}"
    "|the {thing} was {word} and {other}|the {thing} felt {word}|such a {word} {thing}"
).split("|")
DENIALS = (
    "the {thing} was not {word}|the {thing} is not {word} at all|nothing {word} about the {thing}"
    "|i would not call the {thing} {word}"
).split("|")

# What the example shows: whole reviews, none of them a sum of the parts above. True: content.
REVIEWS = (
    (
        True,
        "We took the night train and reached the hotel at six. The man at the desk gave us our room"
        " at once. The bed was wonderful and the view even better! Breakfast is served in a hall"
        " with old mirrors.",
    ),
    (
        False,
        "My brother ordered the lamp in May. It comes with a long cable and a blue cover. After"
        " three days the screen was broken. I wrote to the shop and they ignored me.",
    ),
    (
        False,
        "The menu is short and changes every month. We had the fish. It was not fresh, and the"
        " waiter was rude. There is a bus stop in front of the door.",
    ),
    (
        True,
        "The film begins in a small town by the sea. A composer comes back after forty years."
        " The story is not dull, and the ending is beautiful. The music is for two pianos.",
    ),
    (
        True,
        "There are nine rooms around a yard. Ours was on the third floor. Nothing dirty, nothing"
        " noisy, and everyone was friendly.",
    ),
    (
        False,
        "The book has a lovely cover and a ship on it. It runs to six hundred pages. The story is"
        " boring and the ending is terrible. I gave it to my sister.",
    ),
)


def split(text: str) -> list[list[str]]:
    """The words of each sentence, in small letters, without punctuation."""
    sentences = (re.findall(r"[^\W\d_]+(?:'\w+)?", part) for part in re.split(r"[.!?\n]+", text))
    return [[word.lower() for word in sentence] for sentence in sentences if sentence]


def _lines(text: str) -> list[str]:
    return [part.strip() for line in text.split("\n") for part in line.split("|") if part.strip()]


def _opinion(draw: random.Random, is_content: bool) -> str:
    kind = draw.random()
    if kind < 0.35:
        return draw.choice(_lines(SAID[is_content]))
    word, other = draw.sample(WORDS[is_content], 2)
    form = draw.choice(FORMS)
    if kind > 0.75:  # a word of the other kind, denied
        form, word = draw.choice(DENIALS), draw.choice(WORDS[not is_content])
    return form.format(thing=draw.choice(THINGS), word=word, other=other)


def _plain(draw: random.Random) -> str:
    """A sentence that says nothing of how it was."""
    if draw.random() < 0.25:
        return draw.choice(_lines(PLAIN))
    text = draw.choice(_lines(SET_OUT))
    parts = {"{who}": WHO, "{did}": DID, "{what}": WHAT, "{when}": WHEN}
    for name, choices in parts.items():
        while name in text:
            text = text.replace(name, draw.choice(_lines(choices)), 1)
    while "{thing}" in text:
        text = text.replace("{thing}", draw.choice(THINGS), 1)
    return text


def random_review(draw: random.Random) -> tuple[bool, list[list[str]]]:
    """A label and a document: some plain sentences, and more opinions of its kind than others."""
    is_content = draw.random() < 0.5
    opinions = [_opinion(draw, is_content) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    if len(opinions) > 1 and draw.random() < 0.2:
        opinions.append(_opinion(draw, not is_content))
    sentences = opinions + [_plain(draw) for _ in range(draw.randint(0, 7))]
    draw.shuffle(sentences)
    return is_content, [sentence.split() for sentence in sentences]


def vocabulary() -> list[str]:
    """All words that training can have, after the unknown one."""
    parts = [
        PLAIN,
        WHO,
        DID,
        WHAT,
        WHEN,
        SET_OUT,
        *SAID.values(),
        *FORMS,
        *DENIALS,
        *THINGS,
        *WORDS[True],
        *WORDS[False],
    ]
    words = re.findall(r"[a-z]+", re.sub(r"\{\w+\}", " ", " ".join(parts)))
    return [UNKNOWN, *sorted(set(words))]
