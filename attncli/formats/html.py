"""Drawn views as a page of their own: text that can be selected and searched, a style sheet inside, no script.

A static page that loads nothing; it looks the same, and prints, on paper as on a screen of any width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from attncli.formats.drawn import FAINT, FONTS, INK, PAPER, Drawing, Look, Piece, title_of

_STYLE = """\
body {{ margin: 1.5rem; background: {paper}; color: {ink}; font-family: system-ui, sans-serif; }}
h1 {{ color: {faint}; font-size: 1rem; font-weight: normal; }}
h2 {{ font-size: 1rem; overflow-wrap: anywhere; }}
pre {{ overflow-x: auto; font: 15px/20px {fonts}; -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
pre span, pre bdi {{ display: inline-block; height: 20px; vertical-align: top; }}
pre bdi {{ overflow: hidden; }}
"""


class _Classes:
    """The classes of a page's looks, and of the widths of what no font is sure to fit; named as they occur."""

    def __init__(self) -> None:
        self.looks: dict[Look, str] = {Look(): ""}
        self.widths: set[int] = set()

    def of(self, piece: Piece) -> str:
        """Return the class attribute of a piece."""
        names = [self.looks.setdefault(piece.look, f"l{len(self.looks)}")]
        if not piece.is_plain:
            self.widths.add(piece.width)
            names.append(f"w{piece.width}")
        said = " ".join(filter(None, names))
        return f' class="{said}"' if said else ""

    def rules(self) -> Iterator[str]:
        """Yield a rule for each class."""
        for look, name in self.looks.items():
            if name:
                ink = f"color: {look.ink};"
                behind = f" background: {look.behind};" if look.behind is not None else ""
                bold = " font-weight: bold;" if look.is_bold else ""
                yield f".{name} {{ {ink}{behind}{bold} }}\n"
        for width in sorted(self.widths):
            yield f".w{width} {{ width: {width}ch; }}\n"


def write_html(drawings: Sequence[Drawing], name: str) -> Iterator[str]:
    """Yield the page of all views, one below the other."""
    classes = _Classes()
    views = ["".join(_view(drawing, classes)) for drawing in drawings]  # the style sheet stands before them
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light">\n'
        f"<title>{escape(title_of(drawings, name))}</title>\n<style>\n"
    )
    fonts = ", ".join(f'"{font}"' if " " in font else font for font in FONTS)
    yield _STYLE.format(paper=PAPER, ink=INK, faint=FAINT, fonts=fonts)
    yield from classes.rules()
    yield f"</style>\n</head>\n<body>\n<main>\n<h1>{escape(name)}</h1>\n"
    for drawing, view in zip(drawings, views, strict=True):
        if drawing.title:
            yield f'<h2 dir="auto" translate="no">{escape(drawing.title)}</h2>\n'
        yield view
    yield "</main>\n</body>\n</html>\n"


def _view(drawing: Drawing, classes: _Classes) -> Iterator[str]:
    # What is wider than the window scrolls by itself, and by keyboard once it has the focus.
    yield f'<pre role="region" aria-label="{escape(drawing.title or "view")}" dir="ltr" translate="no" tabindex="0">\n'
    for line in drawing.lines:
        for piece in line:
            yield _marked(piece, classes)
        yield "\n"
    yield "</pre>\n"


def _marked(piece: Piece, classes: _Classes) -> str:
    if piece.is_plain and (piece.look == Look() or piece.is_blank):
        return escape(piece.text)
    tag = "bdi" if not piece.is_plain else "span"
    return f"<{tag}{classes.of(piece)}>{escape(piece.text)}</{tag}>"
