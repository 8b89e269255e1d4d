# SPDX-License-Identifier: MIT
# How dates are written, and which of them the model never saw. Used by train.py and the example.
# Standard library only. It knows no model.
"""Formats of dates, the alphabet, and what is held out."""

from __future__ import annotations

import datetime
import random

FIRST, LAST = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)
MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th, ..."""
    ending = "th" if 10 <= day % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


# Where a number alone does not say what it is, its place does: with dots the day comes first, with
# slashes the month, or the year if it has four digits.
FORMATS = {
    "3 March 2021": lambda d: f"{d.day} {MONTHS[d.month - 1]} {d.year}",
    "March 3, 2021": lambda d: f"{MONTHS[d.month - 1]} {d.day}, {d.year}",
    "3 Mar 21": lambda d: f"{d.day} {MONTHS[d.month - 1][:3]} {d.year % 100:02}",
    "Wednesday, 3 March 2021": lambda d: (
        f"{DAYS[d.weekday()]}, {d.day} {MONTHS[d.month - 1]} {d.year}"
    ),
    "Wed Mar 3 2021": lambda d: (
        f"{DAYS[d.weekday()][:3]} {MONTHS[d.month - 1][:3]} {d.day} {d.year}"
    ),
    "the 3rd of March 2021": lambda d: f"the {ordinal(d.day)} of {MONTHS[d.month - 1]} {d.year}",
    "3.3.2021": lambda d: f"{d.day}.{d.month}.{d.year}",
    "3/3/21": lambda d: f"{d.month}/{d.day}/{d.year % 100:02}",
    "2021/3/3": lambda d: f"{d.year}/{d.month}/{d.day}",
    "2021\u5e743\u67083\u65e5": lambda d: f"{d.year}\u5e74{d.month}\u6708{d.day}\u65e5",
}
# Characters by number; 0 is padding. What is not in it cannot be read.
INPUTS = "\0 ,./0123456789" + "".join(sorted(set("".join(MONTHS + DAYS) + "the of stndrd")))
INPUTS = "".join(dict.fromkeys(INPUTS + "\u5e74\u6708\u65e5"))
OUTPUTS = "0123456789-"
N_OUTPUT = len("2021-03-03")


def is_held_out(date: datetime.date) -> bool:
    """One date in ten, in every month and year: neither trained on nor looked at in training."""
    return date.toordinal() % 10 == 7


def pairs(n: int, seed: int, *, held_out: bool) -> list[tuple[str, str, str]]:
    """`n` random (format, text, result)."""
    draw = random.Random(seed)
    found = []
    while len(found) < n:
        date = datetime.date.fromordinal(draw.randint(FIRST.toordinal(), LAST.toordinal()))
        if is_held_out(date) == held_out:
            name = draw.choice(list(FORMATS))
            found.append((name, FORMATS[name](date), date.isoformat()))
    return found


def numbers(text: str) -> list[int]:
    """The characters by number; ValueError names one that the model does not know."""
    unknown = [c for c in text if c not in INPUTS or c == "\0"]
    if unknown:
        raise ValueError(f"{text!r}: expected characters of a date, got {unknown[0]!r}")
    return [INPUTS.index(c) for c in text]
