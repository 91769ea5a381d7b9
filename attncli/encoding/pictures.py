"""Files of pictures, decoded for a processor and a Trace; nothing of a file is ever executed.

The size that a file claims is checked before anything is decoded, so that a small file cannot fill the memory.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from glob import glob
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from attncli.errors import InputError, UsageError, require
from attncli.files import check_file
from attncli.text import plural, visible
from attncli.trace.layout import MOST_PIXELS, MOST_RATIO, MOST_SIDE, Picture, parse_grids

if TYPE_CHECKING:
    from attncli.trace.trace import Trace

# Formats that Pillow itself decodes, without another program, as for PostScript.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class OpenPicture(NamedTuple):
    """A decoded picture."""

    image: Any  # of Pillow, in RGB, turned as its orientation tag says
    picture: Picture  # as a trace has it
    notes: tuple[str, ...]  # notes on it for the user


def picture_files(names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files that `--image` names: each a file, a folder of pictures, or a glob; InputError if none."""
    files: list[str] = []
    for given_name in names if isinstance(names, list | tuple) else [names]:
        if not isinstance(given_name, str | os.PathLike):
            raise InputError(f"--image takes the names of files, not {type(given_name).__name__}; save the picture")
        name = os.fspath(given_name)
        paths = [name]
        if os.path.isdir(name):
            paths = sorted(entry.path for entry in os.scandir(name) if entry.name.lower().endswith(_ENDINGS))
        elif not os.path.exists(name) and any(mark in name for mark in "*?["):
            paths = sorted(glob(name))
        if not paths:
            raise InputError(f"--image {visible(name)}: there is no picture; attn reads {', '.join(_ENDINGS)}")
        if paths == [name]:
            with _reading(name):  # checks its first bytes
                pass
        files += paths
    return files


def pictures_alone(text: object, options: dict[str, Any]) -> list[str]:
    """Return the files of pictures that are read instead of a text; the options become those of a vision tower."""
    if text or not options.get("image") or options.get("tower") == "text":
        return []
    options["tower"] = "vision"
    return picture_files(options.pop("image"))


class PicturedText(str):
    """A text with the pictures of its line, which a model of text alone ignores."""

    image: Any  # their names in the line
    folder: str  # base of their paths

    def __new__(cls, text: str, image: Any = None, folder: str = "") -> Self:
        """Return a text with its pictures."""
        self = super().__new__(cls, text)
        self.image, self.folder = image, folder
        return self

    @property
    def files(self) -> list[str]:
        """The paths of the pictures; InputError if the line has something else."""
        names = self.image if isinstance(self.image, list | tuple) else [] if self.image is None else [self.image]
        if not all(isinstance(name, str | os.PathLike) and os.fspath(name) for name in names):
            raise InputError("'image' is neither a path nor a list of paths")
        return [os.path.join(self.folder, name) for name in names]


@contextmanager
def _reading(path: str) -> Iterator[Any]:
    """Open the file of a picture without decoding it; see `open_picture` for the errors."""
    require("--image", "PIL")
    from PIL import Image, UnidentifiedImageError

    shown = f"the picture {visible(path)}"
    try:
        check_file(path)
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else error.strerror or error
        raise InputError(f"{shown} {why}; check the path") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a decoder warns of what is checked here, and of odd metadata
            with Image.open(path, formats=_FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                if opened.mode.startswith(("I", "F")):
                    raise InputError(f"{shown} has more than 8 bits a channel; save it with 8 bits")
                if not Picture.is_sensible_size(*opened.size):
                    limits = f"attn reads sides from 2 pixels on, up to {MOST_RATIO} times the other; crop it"
                    raise InputError(f"{shown} has {opened.width} × {opened.height} pixels, and {limits}")
                yield opened
    except InputError:
        raise
    except Exception as error:  # a decoder may raise anything
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reasons = {
            Image.DecompressionBombError: f"has more than {MOST_PIXELS // 10**6} million pixels; make it smaller",
            UnidentifiedImageError: f"has no format that attn reads: {', '.join(_FORMATS)}; check the file",
            MemoryError: "does not fit into memory; make it smaller",
        }
        why = reasons.get(type(error), f"cannot be decoded ({visible(reason)}); save it anew")
        raise InputError(f"{shown} {why}") from None


def open_picture(path: str) -> OpenPicture:
    """Decode a picture, of an animated one the first frame; InputError if it is missing, broken or too large."""
    import numpy as np

    with _reading(path) as opened:
        from PIL import ImageOps

        is_animated = getattr(opened, "is_animated", False) and opened.format != "MPO"
        notes = (f"{visible(path)} is animated; attn reads its first frame",) * is_animated
        image = ImageOps.exif_transpose(opened).convert("RGB")
    small = image.copy()
    small.thumbnail((MOST_SIDE, MOST_SIDE))
    return OpenPicture(image, Picture(visible(path), *image.size, np.asarray(small)), notes)


def with_pictures(
    trace: Trace,
    image: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    grid: str | None = None,
    prefix: int = 0,
) -> Trace:
    """Return a trace, recorded from any source, whose positions are cells of pictures.

        trace = attncli.with_pictures(attncli.load("dino.safetensors"), "dog.png", grid="16x16", prefix=1)

    Args:
        trace: of any source.
        image: the pictures' files.
        grid: the rows and columns of the cells of each, such as `14x14`; None takes those of the trace.
        prefix: how many positions stand before the first cell, such as CLS and registers.

    Raises:
        UsageError: it has no grid, or a grid or pictures of its own besides these.
        InputError: a picture cannot be read.
    """
    if grid is not None and trace.grids:
        raise UsageError("--grid does not apply to a trace that has its own grid; drop --grid")
    if image and trace.pictures:
        raise UsageError("--image does not apply to a trace that has its own pictures; drop --image")
    opened = [open_picture(file) for file in picture_files(image)] if image else []
    pictures = tuple(picture.picture for picture in opened) or trace.pictures
    grids = trace.grids
    if grid is not None:
        grids = parse_grids(grid, prefix, len(pictures), len(trace.query_tokens), len(trace.key_tokens))
    elif not grids:
        raise UsageError("--image needs the grid of the positions, which the trace lacks; give --grid, such as 14x14")
    count = max(picture.image for picture in grids) + 1
    if opened and len(opened) != count:
        raise UsageError(f"--image names {plural(len(opened), 'picture')}, and the trace has cells of {count}")
    notes = tuple(note for picture in opened for note in picture.notes)
    return replace(trace, pictures=pictures, grids=grids, notes=(*trace.notes, *notes))
