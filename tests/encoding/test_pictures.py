"""Files of pictures: the right picture, or one sentence; nothing large is ever decoded."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from traces import layer_of, trace_of

from attncli.encoding.pictures import open_picture, picture_files, with_pictures
from attncli.errors import InputError, UsageError
from attncli.trace.layout import ImageGrid, Picture

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.png"


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def claimed(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(30_000, 30_000), (7_900, 7_900), (2**31 - 1, 1)])
def test_a_picture_that_claims_to_be_large_is_not_decoded(size: tuple[int, int], file: Path) -> None:
    file.write_bytes(claimed(*size))
    with pytest.raises(InputError, match="has more than 36 million pixels; make it smaller"):
        open_picture(str(file))


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 1), (2, 401)])
def test_a_picture_that_is_a_line_is_refused(size: tuple[int, int], file: Path) -> None:
    Image.new("RGB", size).save(file)
    reason = f"has {size[0]} × {size[1]} pixels, and attn reads sides from 2 pixels on, up to 200 times the other; crop"
    with pytest.raises(InputError, match=reason):
        open_picture(str(file))


def test_what_is_no_picture_is_one_sentence(file: Path, tmp_path: Path) -> None:
    expected = {
        # Pillow itself would run Ghostscript for the third.
        b"": "has no format that attn reads",
        b"no picture": "has no format that attn reads",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n": "has no format that attn reads",
        claimed(50, 50): "cannot be decoded",
        claimed(50, 50)[:40]: "picture",
    }
    for content, reason in expected.items():
        file.write_bytes(content)
        with pytest.raises(InputError, match=reason) as raised:
            open_picture(str(file))
        assert "\n" not in str(raised.value)
    Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 256).save(file)
    with pytest.raises(InputError, match="more than 8 bits a channel"):
        open_picture(str(file))
    os.mkfifo(tmp_path / "pipe.png")
    for name, reason in {"y.png": "does not exist", ".": "is a folder", "pipe.png": "is a pipe or a device"}.items():
        with pytest.raises(InputError, match=reason):
            open_picture(str(tmp_path / name))
    with pytest.raises(InputError, match="/dev/zero is a pipe or a device; check the path"):
        open_picture("/dev/zero")


def test_the_name_of_a_file_is_no_sequence_for_a_terminal(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a\x1b[31m\n.png")
    assert open_picture(str(tmp_path / "a\x1b[31m\n.png")).picture.name == str(tmp_path / "a\\x1b[31m\\n.png")
    with pytest.raises(InputError, match=r"b\\x07\.png does not exist"):
        open_picture(str(tmp_path / "b\x07.png"))


@pytest.mark.parametrize("tag", range(1, 9))
def test_a_picture_is_turned_as_its_tag_tells(tag: int, file: Path) -> None:
    image = Image.fromarray(PIXELS)
    exif = image.getexif()
    exif[0x0112] = tag
    image.save(file, exif=exif)
    opened = open_picture(str(file))
    seen = PIXELS.transpose(1, 0, 2) if tag > 4 else PIXELS  # row 0 is the left side
    down, across = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}[tag]
    np.testing.assert_array_equal(np.asarray(opened.image), seen[::down, ::across])
    assert (opened.picture.width, opened.picture.height) == (seen.shape[1], seen.shape[0])


def test_the_first_frame_of_an_animated_picture_is_read(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (8, 8), color) for color in ("red", "lime"))
    first.save(tmp_path / "x.gif", save_all=True, append_images=[second])
    opened = open_picture(str(tmp_path / "x.gif"))
    assert np.asarray(opened.image)[0, 0].tolist() == [255, 0, 0]
    assert opened.notes == (f"{tmp_path / 'x.gif'} is animated; attn reads its first frame",)


def test_a_trace_has_a_smaller_picture_and_its_true_size(file: Path) -> None:
    Image.new("RGB", (3000, 1500)).save(file)
    picture = open_picture(str(file)).picture
    assert (picture.width, picture.height, picture.pixels.shape) == (3000, 1500, (512, 1024, 3))


def test_folders_and_globs_are_pictures(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "pictures").mkdir()
    Image.fromarray(PIXELS).save(tmp_path / "pictures" / "y.png")
    assert picture_files(str(tmp_path)) == [str(tmp_path / "a.JPG"), str(tmp_path / "b.png")]
    files = [str(tmp_path / "b.png"), str(tmp_path / "pictures" / "y.png")]
    assert picture_files([f"{tmp_path}/*.png", files[1]]) == files
    with pytest.raises(InputError, match="has no format that attn reads"):  # one that is named by itself
        picture_files(str(tmp_path / "b.png"))
    with pytest.raises(InputError, match="does not exist"):
        picture_files(str(tmp_path / "d.png"))
    with pytest.raises(InputError, match="--image takes the names of files, not Image; save the picture"):
        picture_files(Image.new("RGB", (2, 2)))
    with pytest.raises(InputError, match="there is no picture"):
        picture_files(f"{tmp_path}/*.gif")


def test_a_trace_is_laid_over_a_picture(file: Path) -> None:
    Image.fromarray(PIXELS).save(file)
    random = np.random.default_rng(0)
    trace = trace_of(layer_of(random.normal(size=(2, 7, 4)), random.normal(size=(2, 7, 4))))
    with pytest.raises(UsageError, match="give --grid, such as 14x14"):
        with_pictures(trace, str(file))
    made = with_pictures(trace, str(file), grid="2x3", prefix=1)
    assert made.grids == (ImageGrid(1, 2, 3),)
    assert made.pictures[0].width == 20
    placed = trace_of(
        trace.layers[0], pictures=(Picture("y", 9, 9, PIXELS),), grids=(ImageGrid(1, 2, 3, box=(0, 0, 9, 9)),)
    )
    with pytest.raises(UsageError, match="does not apply to a trace that has its own pictures; drop --image"):
        with_pictures(placed, str(file))
    for own in (made, placed):
        with pytest.raises(UsageError, match="does not apply to a trace that has its own grid; drop --grid"):
            with_pictures(own, str(file), grid="1x6")
    alone = trace_of(trace.layers[0], grids=made.grids)
    assert with_pictures(alone, str(file)).pictures[0].width == 20
    with pytest.raises(UsageError, match="--image names 2 pictures, and the trace has cells of 1"):
        with_pictures(alone, [str(file), str(file)])
