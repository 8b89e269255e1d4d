# SPDX-License-Identifier: MIT
"""Tokens as labels: what can be read of them, and the fonts that have their characters.

For ``maps`` and ``words``. matplotlib's own font has no Chinese, Japanese or Korean, and warns when
it meets some; here fonts of the system are asked first, and what none of them has becomes a box.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["Labels", "labels", "widest", "width"]

LONGEST = 28  # characters of a token's label; the rest becomes an ellipsis
BOX = "\u25a1"  # for what no font has
VISIBLE = {"\n": "\u23ce", "\r": "\u23ce", "\t": "\u21e5"}

# Asked first, in this order: fonts with the scripts that matplotlib's own one lacks, of one weight
# and look with it. After them whatever else is installed.
PREFERRED = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans",
    "Hiragino Sans GB",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "SimHei",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
)


class Labels(NamedTuple):
    """Texts that can be drawn with the properties `style` of a matplotlib text."""

    texts: list[str]
    style: dict[str, Any]


def labels(tokens: Iterable[str], longest: int = LONGEST) -> Labels:
    """What to draw for these tokens. Dollars in them are dollars, no formulas."""
    from matplotlib import rcParams

    texts = [_readable(token, longest) for token in tokens]
    default = tuple(rcParams["font.family"])
    families = list(default)
    boxes = {}
    for character in sorted(set("".join(texts))):
        if ord(character) < 128:
            continue
        family = _family(character, default)
        if family is None:
            boxes[ord(character)] = BOX
        elif family and family not in families:
            families.append(family)
    texts = [text.translate(boxes) for text in texts] if boxes else texts
    return Labels(texts, {"fontfamily": families, "parse_math": False})


def width(text: str) -> float:
    """About how wide a text is, in units of its font size: before anything is drawn."""
    return sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.6 for c in text)


def widest(texts: Sequence[str]) -> float:
    return max(map(width, texts), default=0.0)


def _readable(token: str, longest: int) -> str:
    """One line with nothing invisible in it, and not too long."""
    text = unicodedata.normalize("NFC", token)  # a letter and its accent: fonts have them as one
    if not text.strip(" "):
        return "\u2423" * min(len(text), longest)  # spaces that are the whole token
    text = "".join(VISIBLE.get(c, c if c.isprintable() else BOX) for c in text)
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


@functools.lru_cache(maxsize=4096)
def _family(character: str, default: tuple[str, ...]) -> str | None:
    """The family that has it: "" for one of the default, None if there is none."""
    from matplotlib.font_manager import FontProperties, findfont

    for family in default:
        if _has(findfont(FontProperties(family=[family])), character):
            return ""
    for family, path in _installed():
        if _has(path, character):
            return family
    return None


@functools.lru_cache(maxsize=1)
def _installed() -> list[tuple[str, str]]:
    """(family, file) of the upright, regular fonts, the preferred ones first."""
    from matplotlib.font_manager import fontManager

    found: dict[str, str] = {}
    for entry in fontManager.ttflist:
        if entry.style == "normal" and entry.weight in (400, "normal", "regular", "book"):
            found.setdefault(entry.name, entry.fname)
    # A last-resort font has a box for everything; ours says the same with less ink.
    names = [name for name in found if not name.startswith((".", "Last Resort"))]
    order = {name: rank for rank, name in enumerate(PREFERRED)}
    names.sort(key=lambda name: (order.get(name, len(order)), name))
    return [(name, found[name]) for name in names]


def _has(path: str, character: str) -> bool:
    from matplotlib.font_manager import get_font

    try:
        return get_font(path).get_char_index(ord(character)) != 0
    except (OSError, RuntimeError):  # gone since matplotlib listed it, or not scalable
        return False
