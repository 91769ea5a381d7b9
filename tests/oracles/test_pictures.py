"""Models that read pictures: a position stands for the pixels that it claims, and its attention is the model's own."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import whole_class
from pictured_models import FAMILIES, TOWERS, picture, save_pictured, save_tower, without_mixing
from PIL import Image
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attncli.engines import open_source
from attncli.engines.torch.engine import Checkpoint
from attncli.errors import LoadError, NotExposedError
from attncli.trace.layout import ImageGrid
from attncli.trace.trace import Trace

# Pictures that no processor resamples, but for the overview of tiles: then a cell's pixels are its own alone.
SIZES = {**dict.fromkeys(("idefics3", "internvl", "llava_next", "smolvlm"), (64, 64)), "qwen2_5_vl": (64, 32)}
TEXT = "w40 w41 w42"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def num2words(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolVLM's processor asks for a package that spells numbers of films."""
    monkeypatch.setattr("transformers.models.smolvlm.processing_smolvlm.num2words", lambda number: str(number))


def opened(folder: Path, **options: Any) -> Checkpoint:
    return open_source(str(folder), layer="all", **options)


def queries(trace: Trace) -> np.ndarray:
    """The queries of the first layer, `[position, head and dimension]`: what each embedding becomes, by itself."""
    q = trace.layers[0].q
    return np.moveaxis(q, 0, 1).reshape(q.shape[1], -1)


def changed_in(image: Image.Image, grid: ImageGrid, row: int, column: int) -> Image.Image:
    """A picture with other pixels in one cell."""
    left, top, right, bottom = (round(edge) for edge in grid.cell_box(row, column, *image.size))
    pixels = np.array(image)
    pixels[max(top, 0) : bottom, max(left, 0) : right] = 255 - pixels[max(top, 0) : bottom, max(left, 0) : right]
    return Image.fromarray(pixels)


def check_cells(trace: Trace, image: Image.Image, again: Any) -> None:
    """Check that pixels of a cell change the embedding of its position, and of no other one of the same picture."""
    before = queries(trace)
    grids = [grid for grid in trace.grids if not grid.is_overview]
    positions = {int(place) for grid in grids for place in grid.positions.ravel()}
    assert len(positions) == sum(grid.size for grid in grids)
    for grid in grids:
        for row, column in {(0, 0), (0, grid.columns - 1), (grid.rows - 1, 0), (grid.rows // 2, grid.columns // 2)}:
            after = queries(again(changed_in(image, grid, row, column)))
            moved = {place for place in positions if np.abs(after[place] - before[place]).max() > 1e-5}
            assert moved == {int(grid.positions[row, column])}
            left, top, right, bottom = grid.cell_box(row, column, *image.size)
            middle = f"@{int(left + right) // 2},{int(top + bottom) // 2}"
            assert int(grid.positions[row, column]) in trace.find(middle, "key")


def check_that_cells_change_most(trace: Trace, images: list[Image.Image], again: Any) -> None:
    """Check that of a resampled picture pixels of a cell change the embedding of its position most, by far."""
    before = queries(trace)
    for grid in trace.grids:
        own = [each for each in trace.grids if each.is_overview == grid.is_overview]
        positions = np.unique(np.concatenate([each.positions.ravel() for each in own]))
        for row, column in ((0, grid.columns - 1), (grid.rows - 1, 0)):
            changed = [changed_in(image, grid, row, column) if number == grid.image else image
                       for number, image in enumerate(images)]  # fmt: skip
            moved = np.abs(queries(again(changed)) - before)[positions].max(axis=1)
            *_, second, first = np.argsort(moved)
            assert positions[first] == grid.positions[row, column]
            assert moved[first] > 1.5 * moved[second]


def check_weights(trace: Trace, attentions: Any) -> None:
    """Check the weights of all layers against those that transformers returns."""
    for layer, expected in zip(trace.layers, attentions, strict=True):
        assert layer.proof.max_abs_error <= 2e-4  # of outputs up to a hundred
        own = np.stack([layer.head(head).weights for head in range(layer.num_heads)])
        np.testing.assert_allclose(own, expected[0].numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", TOWERS)
def test_a_patch_is_where_it_is_claimed_to_be(name: str, tmp_path: Path) -> None:
    save_tower(name, tmp_path)
    side = 40 if name == "deit" else 32  # its processor stretches a picture to 40 × 40, and crops that
    image, file = picture(side, side), tmp_path / "x.png"
    image.save(file)
    checkpoint = opened(tmp_path, tower="vision")
    trace = checkpoint.trace(str(file))
    (grid,) = trace.grids
    assert (grid.rows, grid.columns) == (4, 4)
    assert [token.text for token in trace.key_tokens][grid.start :] == [f"r{r}c{c}" for r in range(4) for c in range(4)]
    assert all(token.special for token in trace.key_tokens[: grid.start])

    def again(other: Image.Image) -> Trace:
        other.save(file)
        return checkpoint.trace(str(file))

    check_cells(trace, image, again)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    image.save(file)
    (sentence,) = [checkpoint.encoder.encode(str(file), None, None)]
    with torch.no_grad():
        check_weights(trace, model(**sentence.tensors, output_attentions=True).attentions)


@pytest.mark.parametrize("name", FAMILIES)
def test_of_pictures_of_any_size_each_has_its_own_tokens(name: str, tmp_path: Path) -> None:
    """One is no multiple of a patch, and the other is stored lying on its side, as its tag tells."""
    model = save_pictured(name, tmp_path)
    without_mixing(model)
    model.save_pretrained(tmp_path)
    images, files = [picture(97, 61), picture(50, 90, seed=1)], [str(tmp_path / "a.png"), str(tmp_path / "b.png")]

    def again(others: list[Image.Image]) -> Trace:
        others[0].save(files[0])
        lying = others[1].transpose(Image.Transpose.ROTATE_90)
        exif = lying.getexif()
        exif[0x0112] = 6
        lying.save(files[1], exif=exif)
        return opened(tmp_path, image=files).trace(TEXT)

    trace = again(images)
    assert [(each.width, each.height) for each in trace.pictures] == [(97, 61), (50, 90)]
    few = {(grid.image, grid.is_overview): grid for grid in trace.grids}  # the last tile of each
    check_that_cells_change_most(replace(trace, grids=tuple(few.values())), images, again)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_language_model_that_sees_attends_as_transformers_computes_it(name: str, tmp_path: Path) -> None:
    save_pictured(name, tmp_path)
    files = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    picture(96, 64).save(files[0])
    picture(50, 90, seed=1).save(files[1])
    checkpoint = opened(tmp_path, image=files)
    sentence = checkpoint.encoder.encode(TEXT, None, None)
    trace = checkpoint.trace(TEXT)
    assert {grid.image for grid in trace.grids} == {0, 1}
    cells = [place for grid in trace.grids for place in grid.positions.ravel().tolist()]
    assert len(cells) == len(set(cells)) == sum(grid.size for grid in trace.grids)
    assert {trace.key_tokens[place].text for place in cells} == {"<image>"}
    words = [token for token in trace.key_tokens if token.start is not None and not token.special]
    assert [token.text for token in words] == [trace.text[token.start : token.end] for token in words] == TEXT.split()
    model = whole_class(name).from_pretrained(tmp_path, attn_implementation="eager").eval()
    inputs = {key: torch.tensor([ids]) for key, ids in sentence.inputs.items()} | dict(sentence.tensors)
    with torch.no_grad():
        check_weights(trace, model(**inputs, output_attentions=True).attentions)


def test_a_wrong_table_is_an_error(tmp_path: Path) -> None:
    save_pictured("gemma3", tmp_path)
    (tmp_path / "processor_config.json").write_text('{"image_seq_length": 12}')
    picture(32, 32).save(tmp_path / "x.png")
    with pytest.raises(NotExposedError, match="12 positions for its pictures, and attn expects 16"):
        opened(tmp_path, image=str(tmp_path / "x.png")).trace(TEXT)


def test_a_model_writes_about_a_picture(tmp_path: Path) -> None:
    model = save_pictured("llava", tmp_path)
    picture(32, 32).save(tmp_path / "x.png")
    checkpoint = opened(tmp_path, image=str(tmp_path / "x.png"), generate=3)
    trace = checkpoint.trace(TEXT)
    plain = opened(tmp_path, image=str(tmp_path / "x.png")).encoder.encode(TEXT, None, None)
    inputs = {key: torch.tensor([ids]) for key, ids in plain.inputs.items()} | dict(plain.tensors)
    written = model.generate(**inputs, max_new_tokens=3, do_sample=False)[0].tolist()
    assert trace.key_tokens.ids == written
    assert trace.generated == len(written) - len(plain.tokens) > 0


@pytest.mark.parametrize("name", [name for name in FAMILIES if "qwen" not in name])
def test_a_patch_of_a_vision_tower_is_where_it_is_claimed_to_be(name: str, tmp_path: Path) -> None:
    save_pictured(name, tmp_path)
    image, file = picture(*SIZES.get(name, (32, 32))), tmp_path / "x.png"
    checkpoint = opened(tmp_path, tower="vision")

    def again(other: Image.Image) -> Trace:
        other.save(file)
        return checkpoint.trace(str(file))

    trace = again(image)
    has_tiles = any("tiles apart" in note for note in trace.notes)
    assert has_tiles == (name in {"idefics3", "internvl", "llava_next", "smolvlm"})
    if has_tiles:  # of which the overview is read
        check_that_cells_change_most(trace, [image], lambda images: again(*images))
    else:
        check_cells(trace, image, again)
    assert trace.source.details["tower"] == checkpoint.part.config.model_type
    tower = whole_class(name).from_pretrained(tmp_path, attn_implementation="eager").eval()
    for part in filter(None, checkpoint.part.path.split(".")):
        tower = getattr(tower, part)
    image.save(file)
    seen = checkpoint.encoder.encode(str(file), None, None)
    with torch.no_grad():
        check_weights(trace, tower(**seen.tensors, output_attentions=True).attentions)


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_a_processor_that_needs_torchvision_names_the_command_that_installs_it(tmp_path: Path) -> None:
    save_tower("dinov3_vit", tmp_path)
    settings = tmp_path / "preprocessor_config.json"
    fields = json.loads(settings.read_text()) | {"image_processor_type": "DINOv3ViTImageProcessor"}
    settings.write_text(json.dumps(fields))
    picture(32, 32).save(tmp_path / "x.png")
    with pytest.raises(LoadError, match=r"needs torchvision, which is not installed: .*pip install torchvision"):
        opened(tmp_path, tower="vision").trace(str(tmp_path / "x.png"))


@pytest.mark.parametrize("name", ["siglip2_vision_model", "idefics2", "qwen2_5_vl"])
def test_a_model_whose_geometry_is_unknown_is_refused(name: str, tmp_path: Path) -> None:
    CONFIG_MAPPING[name]().save_pretrained(tmp_path)
    with pytest.raises(NotExposedError, match=r"no vision transformer that attn knows, but .*attn run --save"):
        opened(tmp_path, tower="vision")
