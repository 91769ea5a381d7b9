"""Files of pictures: the right picture, or one sentence; nothing large is ever decoded."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from traces import layer_of, trace_of

from attncli.encoding.pictures import open_picture, picture_files, with_pictures
from attncli.errors import InputError, LoadError, UsageError
from attncli.trace.layout import ImageGrid, Picture

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.png"


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def claimed(width: int, height: int) -> bytes:
    """A small file that claims to be a large picture."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def test_a_picture_is_read_as_it_is(file: Path) -> None:
    Image.fromarray(PIXELS).save(file)
    opened = open_picture(str(file))
    np.testing.assert_array_equal(np.asarray(opened.image), PIXELS)
    np.testing.assert_array_equal(opened.picture.pixels, PIXELS)
    assert (opened.picture.width, opened.picture.height, opened.notes) == (20, 30, ())


@pytest.mark.parametrize("size", [(30_000, 30_000), (20_000, 5_000), (2**31 - 1, 1)])
def test_a_picture_that_claims_to_be_large_is_not_decoded(size: tuple[int, int], file: Path) -> None:
    file.write_bytes(claimed(*size))
    with pytest.raises(InputError, match="reads at most 64 million pixels"):
        open_picture(str(file))


def test_what_is_no_picture_is_one_sentence(file: Path, tmp_path: Path) -> None:
    expected = {
        b"": "is not a picture",
        b"no picture": "is not a picture",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n": "is not a picture",  # Pillow would run Ghostscript
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
    for name, reason in {"y.png": "does not exist", ".": "directory"}.items():
        with pytest.raises(InputError, match=reason):
            open_picture(str(tmp_path / name))


def test_a_truncated_picture_is_refused(file: Path) -> None:
    Image.fromarray(PIXELS).save(file)
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(InputError, match="cannot be decoded"):
        open_picture(str(file))


def test_a_picture_is_turned_as_its_tag_tells(tmp_path: Path) -> None:
    image = Image.fromarray(PIXELS)
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was held upright
    image.save(tmp_path / "x.png", exif=exif)
    opened = open_picture(str(tmp_path / "x.png"))
    np.testing.assert_array_equal(np.asarray(opened.image), np.rot90(PIXELS, -1))
    assert (opened.picture.width, opened.picture.height) == (30, 20)


def test_the_first_frame_of_an_animated_picture_is_read(tmp_path: Path) -> None:
    first, second = Image.new("P", (8, 8), 1), Image.new("P", (8, 8), 2)
    first.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    second.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
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
    assert picture_files(str(tmp_path)) == [str(tmp_path / "a.JPG"), str(tmp_path / "b.png")]
    assert picture_files([f"{tmp_path}/*.png", "y.png"]) == [str(tmp_path / "b.png"), "y.png"]
    with pytest.raises(InputError, match="there is no picture"):
        picture_files(f"{tmp_path}/*.gif")


def test_without_pillow_the_command_that_installs_it_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.errors.not_installed", lambda *packages: list(packages))
    with pytest.raises(LoadError, match=r"--image needs PIL, which is not installed: .*install pillow"):
        open_picture(str(file))


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
    with pytest.raises(UsageError, match="has 20 × 30 pixels, and that of the trace 9 × 9"):
        with_pictures(placed, str(file))
