"""HTML built from elements: text is escaped where it enters, so no string of a dataset can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = {"br", "hr", "img", "input", "meta"}  # elements of HTML without an end tag


class Html(str):
    """Markup made by this module. Any other string is text, and is escaped when it becomes part of an element."""


Attribute = str | int | float | bool | None


def tag(name: str, *children: str, **attributes: Attribute) -> Html:
    """One element of HTML or SVG.

    Attribute names are written as Python can: `class_` is class, `stroke_width` stroke-width. True is an attribute
    without a value; False and None leave it out.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Elements and text, one after the other."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def style(css: str) -> Html:
    """A style sheet of our own, as it stands: HTML does not unescape inside <style>."""
    return Html(f"<style>{css}</style>")


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
