"""Text on pictures: a font that has the characters, lines that fit."""

from __future__ import annotations

from functools import cache
from typing import Any

from PIL import ImageFont

# The first that is installed and has every character of a text; Pillow brings the last resort, for ASCII.
FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf", "segoeui.ttf",
    "Arial Unicode.ttf", "NotoSansCJK-Regular.ttc", "DroidSansFallbackFull.ttf", "wqy-zenhei.ttc", "msyh.ttc",
    "PingFang.ttc",
)  # fmt: skip
MISSING = "\uffff"


@cache
def _installed(size: int) -> tuple[Any, ...]:
    fonts = []
    for name in FONTS:
        try:
            fonts.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    return (*fonts, ImageFont.load_default(size))


@cache
def _has(font: Any, character: str) -> bool:
    return character == " " or bytes(font.getmask(character)) != bytes(font.getmask(MISSING))


def shaped(text: str, size: int) -> tuple[str, Any]:
    """The text as it can be shown on one line, and a font for it; characters that no font has become their escapes."""
    line = "".join(" " if c.isspace() else c for c in text)
    for font in _installed(size):
        if all(_has(font, c) for c in line):
            return line, font
    font = _installed(size)[0]
    return "".join(c if _has(font, c) else ascii(c)[1:-1] for c in line), font


def width_of(text: str, size: int) -> float:
    line, font = shaped(text, size)
    return float(font.getlength(line))


def shorten(text: str, size: int, max_width: float) -> str:
    """The text, or as much of it as fits, with an ellipsis."""
    if width_of(text, size) <= max_width:
        return text
    return text[: _num_fitting(text, "…", size, max_width)] + "…"


def _num_fitting(text: str, ending: str, size: int, max_width: float) -> int:
    # How many of its first characters fit, with `ending` behind them. Little more than these is measured.
    too_many = 1
    while too_many <= len(text) and width_of(text[:too_many] + ending, size) <= max_width:
        too_many *= 2
    fitting, too_many = too_many // 2, min(too_many, len(text) + 1)
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if width_of(text[:middle] + ending, size) <= max_width:
            fitting = middle
        else:
            too_many = middle
    return fitting


def wrap(text: str, size: int, max_width: float, max_lines: int) -> list[str]:
    """The text in lines that fit, broken at spaces where there are any; what is beyond `max_lines` is left out."""
    lines, line = [], ""
    for word in _pieces(text, size, max_width):
        longer = f"{line} {word}" if line else word
        if line and width_of(longer, size) > max_width:
            lines.append(line)
            line = word
        else:
            line = longer
    lines.append(line)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], shorten(" ".join(lines[max_lines - 1 :]), size, max_width)]
    return lines


def _pieces(text: str, size: int, max_width: float) -> list[str]:
    # Words, and parts of words that are wider than a line (languages without spaces).
    pieces = []
    for word in text.split():
        while (cut := max(1, _num_fitting(word, "", size, max_width))) < len(word):
            pieces.append(word[:cut])
            word = word[cut:]
        pieces.append(word)
    return pieces
