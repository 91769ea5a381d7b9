"""Pictures as transformers' own processors and models read them, with the positions of their cells.

The effect of a processor on a picture is not read from its settings but measured: a second picture of the same size,
whose colours encode the position of each pixel, is processed the same way. The tables here hold the rest of a family.
The number of positions is known when the model runs, and compared with the product of the grids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoImageProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from attncli.checkpoints.hub import first_sentence, translate_errors
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import Snapshot
from attncli.encoding.auto_tokenizer import hub_arguments
from attncli.encoding.encode import EncodedInput, InputEncoder, tokens_of
from attncli.encoding.pictures import OpenPicture, PicturedText, open_picture
from attncli.encoding.pixels import BEFORE, names_before, read_alone
from attncli.engines.source import ModelRequest
from attncli.engines.torch.engine import Checkpoint
from attncli.engines.torch.recorder import PaddedBatch, Span
from attncli.engines.torch.text_model import TextModel, find_tower, read_configuration
from attncli.errors import AttnError, InputError, NotExposedError, UsageError, require
from attncli.text import visible
from attncli.trace.layout import Box, ImageGrid
from attncli.trace.tokens import Token, Tokens

# --- the effect of a processor on a picture ---

_STEPS = 255  # of a colour; few sizes are multiples of it, so that roundings even out
_AS_IT_IS = {"do_rescale": False, "do_normalize": False}  # so that colours keep their meaning


def _grids_of(outputs: Mapping[str, Any], opened: OpenPicture, vision: Any, patches: int = 1) -> list[ImageGrid]:
    """Return the grids of the tiles of a picture, by the processed `_map_picture`, each from position 0.

    One position is `patches` × `patches` patches of a vision tower; incomplete cells are not read.
    """
    if "image_grid_thw" in outputs:  # Qwen-VL stretches a picture to a size of its own
        _, rows, columns = outputs["image_grid_thw"][0].tolist()
        return [ImageGrid(0, rows // patches, columns // patches, patches=patches)]
    (width, height), size = opened.image.size, vision.patch_size
    side = patches * int(size[0] if isinstance(size, list | tuple) else size)
    tiles = _tiles(outputs)
    boxes = [_box_of(tile, width, height) for tile in tiles]
    shows_all = [left <= 0 and top <= 0 and right >= width and bottom >= height for left, top, right, bottom in boxes]
    grids = []
    for tile, (left, top, right, bottom), is_whole in zip(tiles, boxes, shows_all, strict=True):
        _, high, wide = tile.shape
        rows, columns = high // side, wide // side
        # Without the incomplete cells at the ends.
        box = left, top, left + columns * side * (right - left) / wide, top + rows * side * (bottom - top) / high
        overview = is_whole and not all(shows_all)
        grids.append(ImageGrid(0, rows, columns, box=box, patches=patches, is_overview=overview))
    return grids


def _tiles(outputs: Mapping[str, Any]) -> Any:  # the pixels of the parts of a picture, `[tiles, 3, h, w]`
    return outputs["pixel_values"].reshape(-1, *outputs["pixel_values"].shape[-3:])


def _map_picture(opened: OpenPicture) -> Any:
    """Return a picture of its size whose colours encode positions: red from left to right, green from top to bottom."""
    from PIL import Image

    width, height = opened.image.size
    across, down = (np.rint((np.arange(size) + 0.5) * _STEPS / size - 0.5) for size in (width, height))
    pixels = np.full((height, width, 3), 255, np.uint8)  # blue marks pixels of the picture
    pixels[..., 0], pixels[..., 1] = across[None], down[:, None]
    return Image.fromarray(pixels)


def _box_of(pixels: np.ndarray[Any, Any], width: int, height: int) -> Box:
    """Return the box of the processed `_map_picture`, `[3, h, w]`, or a tile of it, in the original."""
    is_inside = pixels[2] > 250
    ends = []
    for axis, size in ((0, width), (1, height)):
        lines = np.flatnonzero(is_inside.any(axis=axis))
        if len(lines) < 2:
            raise NotExposedError("the processor leaves next to nothing of the picture; attn cannot tell what")
        values = np.where(is_inside, pixels[axis], 0).sum(axis=axis)[lines] / is_inside.sum(axis=axis)[lines]
        slope, start = np.polyfit(lines + 0.5, (values + 0.5) * size / _STEPS, 1)
        if slope <= 0:
            raise NotExposedError("the processor turns the picture; attn cannot tell how")
        edges = (start, start + slope * pixels.shape[2 - axis])
        # A whole picture ends where the picture ends; colours are coarse steps.
        near = size / _STEPS / 2 + 0.5
        ends.append([next((edge for edge in (0, size) if abs(end - edge) <= near), round(end, 1)) for end in edges])
    (left, right), (top, bottom) = ends
    return float(left), float(top), float(right), float(bottom)


# --- vision towers ---


def _before(config: Any) -> tuple[str, ...]:
    return names_before(config.model_type, getattr(config, "num_register_tokens", 0))


class VisionCheckpoint(Checkpoint):
    """A vision transformer, or the vision tower of a larger model: a sentence is the name of a picture."""

    reads: Mapping[str, str] = {"reads": "pictures"}

    def find_part(self, snapshot: Snapshot, options: LoadOptions) -> TextModel:
        """Return the vision tower; NotExposedError if attn knows none."""
        config = read_configuration(snapshot, options)
        inner = config if config.model_type in BEFORE else getattr(config, "vision_config", config)
        if inner.model_type not in BEFORE:
            raise NotExposedError(
                f"{visible(snapshot.model_name)} has no vision transformer that attn knows, but "
                f"{visible(str(inner.model_type))}; record it with attn run --save, and open that with --grid"
            )
        if inner is config:
            return TextModel(config, config)
        return find_tower(snapshot.model_name, config, inner, "pixel_values")

    def open_reader(self, special: bool, asks: bool) -> Callable[[Any], InputEncoder]:
        """Read the settings of the processor; see `Checkpoint`."""
        looking = partial(_read_alone, _image_processor(self.snapshot, self.options), self.part.config)
        return lambda model: InputEncoder(self.name, None, special, None, truncate=False, looking=looking)

    def batched(self, sentences: Sequence[EncodedInput], side: str = "right") -> PaddedBatch:
        """Return the one picture that runs; see `Checkpoint`."""
        (sentence,) = sentences
        span = Span(*[slice(0, len(sentence.tokens))] * 2)
        return PaddedBatch(dict(sentence.tensors), [span], span)


def _read_alone(processor: Any, config: Any, text: str, encoder: InputEncoder) -> EncodedInput:
    opened = open_picture(text)
    before, notes = _before(config), opened.notes
    with _processing(encoder.name):
        outputs = processor(images=opened.image, return_tensors="pt")
        placed = processor(images=_map_picture(opened), return_tensors="np", **_AS_IT_IS)
        grids = _grids_of(placed, opened, config)
        number = next((position for position, grid in enumerate(grids) if grid.is_overview), 0)
        if len(grids) > 1:
            notes += (f"{text}: the model reads {len(grids)} tiles apart; this is tile {number}",)
        grid = replace(grids[number], start=len(before), is_overview=False)
        return read_alone(opened, before, grid, _tiles(outputs)[number : number + 1], notes)


# --- models that read both ---

_MIXED = "a cell is where a token came from: the vision tower has mixed all cells before"


def _of_gemma3(config: Any) -> int:
    vision = config.vision_config
    return int(vision.image_size // vision.patch_size // config.mm_tokens_per_image**0.5)


# Patches that a position merges along a side, by the configuration, and the spelling of a picture before a text without
# a mark for it, by the family of models.
_FAMILIES: dict[str, tuple[Callable[[Any], int], str]] = {
    "gemma3": (_of_gemma3, "{token}"),
    **dict.fromkeys(("idefics3", "smolvlm"), (lambda config: int(config.scale_factor), "{token}")),
    "internvl": (lambda config: round(1 / config.downsample_ratio), "{token}\n"),
    **dict.fromkeys(("llava", "llava_next"), (lambda _: 1, "{token}\n")),
    "paligemma": (lambda _: 1, "{token}"),
    **dict.fromkeys(
        ("qwen2_5_vl", "qwen2_vl", "qwen3_vl"),
        (lambda config: int(config.vision_config.spatial_merge_size), "<|vision_start|>{token}<|vision_end|>"),
    ),
}

_Run = tuple[ImageGrid, int]  # a grid among consecutive image tokens, by its positions in them, and their number
_Located = tuple[OpenPicture, Sequence[_Run]]


def _runs_of(outputs: Mapping[str, Any], opened: OpenPicture, config: Any, merged: int) -> list[_Run]:
    """Return the runs of the parts of a picture, by the processed `_map_picture`; see `_grids_of`."""
    if hasattr(config, "image_grid_pinpoints"):
        return _in_lines(outputs, opened, config)
    vision, has_all = config.vision_config, getattr(config, "vision_feature_select_strategy", None) == "full"
    skipped = len(_before(vision)) if has_all else 0
    grids = _grids_of(outputs, opened, vision, merged)
    return [(replace(grid, start=skipped), skipped + grid.size) for grid in grids]


def _in_lines(outputs: Mapping[str, Any], opened: OpenPicture, config: Any) -> list[_Run]:
    """Return the runs of LLaVA-NeXT: the picture whole, and its tiles as one grid without padding, in lines."""
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, unpad_image

    (width, height), tile = opened.image.size, config.vision_config.image_size
    side, rest = divmod(tile, config.vision_config.patch_size)
    if rest:
        raise NotExposedError(f"its tiles of {tile} pixels leave {rest} between patches")
    overview, *tiles = _tiles(outputs)
    down, across = get_anyres_image_grid_shape((height, width), config.image_grid_pinpoints, tile)
    rows, columns = unpad_image(torch.zeros(1, down * side, across * side), (height, width)).shape[1:]
    canvas = np.block([tiles[row * across : (row + 1) * across] for row in range(down)])
    left, top, right, bottom = _box_of(canvas, width, height)
    wide, high = (right - left) * (1 - columns / across / side) / 2, (bottom - top) * (1 - rows / down / side) / 2
    box = left + wide, top + high, right - wide, bottom - high
    lines = np.arange(rows * (columns + 1)).reshape(rows, -1)  # which end with the token of a newline
    order = tuple(lines[:, :columns].ravel().tolist())
    whole = ImageGrid(0, side, side, box=_box_of(overview, width, height), is_overview=True)
    return [(whole, whole.size), (ImageGrid(0, rows, columns, box=box, order=order), lines.size)]


class PicturedCheckpoint(Checkpoint):
    """A model that reads pictures and a text; its language model is inspected."""

    reads: Mapping[str, str] = {"reads": "text and pictures"}
    processor: Any  # of pictures and text

    def __init__(self, snapshot: Snapshot, request: ModelRequest, options: LoadOptions, image: Sequence[str]) -> None:
        self._image = image  # the files of the pictures of every text; without any, each text may name its own
        super().__init__(snapshot, request, options)

    def find_part(self, snapshot: Snapshot, options: LoadOptions) -> TextModel:
        """Return the language model, with everything around it, which runs too; NotExposedError if it sees nothing."""
        part = super().find_part(snapshot, options)
        if part.architecture not in _FAMILIES or not part.path:
            raise NotExposedError(
                f"{visible(snapshot.model_name)} ({visible(part.architecture)}) reads text alone, or attn does not "
                f"know its pictures, but those of {', '.join(sorted(_FAMILIES))}; drop --image, or take -m demo-vision"
            )
        return replace(part, is_whole=True)

    def open_reader(self, special: bool, asks: bool) -> Callable[[Any], InputEncoder]:
        """Read the processor's settings and the pictures; see `Checkpoint`."""
        opened = [open_picture(file) for file in self._image]
        reader = super().open_reader(special, asks)

        def with_pictures(model: Any) -> InputEncoder:
            encoder = reader(model)
            self.processor = _processor(self.snapshot, self.options, self.part.whole, encoder.tokenizer)
            return encoder._replace(looking=partial(self._read, [self._located(item) for item in opened]))

        return with_pictures

    def batched(self, sentences: Sequence[EncodedInput], side: str = "right") -> PaddedBatch:
        """Return one sentence with its pictures; see `Checkpoint`."""
        together = super().batched(sentences, side)
        (sentence,) = sentences
        return together._replace(inputs={**together.inputs, **sentence.tensors})

    def _located(self, opened: OpenPicture) -> _Located:
        config, (merged, _) = self.part.whole, _FAMILIES[self.part.architecture]
        with _processing(self.name):
            image, text = _map_picture(opened), self.processor.image_token
            outputs = self.processor(images=[image], text=text, return_tensors="np", **_AS_IT_IS)
            return opened, _runs_of(outputs, opened, config, merged(config))

    def _read(self, shown: Sequence[_Located], text: str, encoder: InputEncoder) -> EncodedInput:
        """Encode a text and the pictures for the model; those that the text names are opened for it alone."""
        token = self.processor.image_token
        if isinstance(text, PicturedText) and (files := text.files):
            if shown:
                raise UsageError("--image does not apply to a line that names its picture; drop one of them")
            shown = [self._located(open_picture(file)) for file in files]
        if not shown:
            return encoder._replace(looking=None).encode(text, None, None)
        if encoder.chat is not None:
            text = encoder.chat.write(text, pictures=len(shown))
        elif token not in text:
            text = _FAMILIES[self.part.architecture][1].format(token=token) * len(shown) + text
        adds_special = encoder.special and encoder.chat is None
        with _processing(encoder.name):
            images = [item.image for item, _ in shown]
            outputs = self.processor(images=images, text=text, add_special_tokens=adds_special, return_tensors="pt")
        ids = outputs["input_ids"][0].tolist()
        tokens, written = self._tokens(ids, adds_special, encoder)
        rows = {key: value[0].tolist() for key, value in outputs.items() if value.shape[:2] == (1, len(ids))}
        tensors = {key: value for key, value in outputs.items() if key not in rows}
        rows.pop("labels", None)
        grids = self._grids(ids, [runs for _, runs in shown])
        pictures = tuple(item.picture for item, _ in shown)
        notes = tuple(note for item, _ in shown for note in item.notes)
        return EncodedInput(written, None, None, tokens, tokens, rows, notes, 0, pictures, grids, tensors)

    def _grids(self, ids: Sequence[int], shown: Sequence[Sequence[_Run]]) -> tuple[ImageGrid, ...]:
        """Lay the runs of the pictures over the positions of image tokens, which have to be as many."""
        places = np.flatnonzero(np.array(ids) == self.part.whole.image_token_id)
        needed = sum(count for runs in shown for _, count in runs)
        if needed != len(places):
            raise NotExposedError(
                f"{visible(self.name)} has {len(places)} positions for its pictures, and attn expects {needed}; it "
                "would show the wrong places"
            )
        placed = []
        for image, runs in enumerate(shown):
            for grid, count in runs:
                cells, places = places[grid.positions.ravel()], places[count:]
                order = () if cells[-1] - cells[0] < grid.size else tuple((cells - cells[0]).tolist())
                placed.append(replace(grid, start=int(cells[0]), image=image, order=order, note=_MIXED))
        return tuple(placed)

    def _tokens(self, ids: Sequence[int], adds_special: bool, encoder: InputEncoder) -> tuple[Tokens, str]:
        """Return the tokens, and their text: with one mark for each picture, as it was written."""
        (written,), (expanded,), (spans,) = self.processor.written, self.processor.expanded, self.processor.spans
        encoding = encoder.tokenizer(expanded, add_special_tokens=adds_special).encodings[0]
        if list(encoding.ids) != list(ids):
            raise NotExposedError(f"{visible(encoder.name)}: its processor and its tokenizer make different tokens")
        special, image_id = encoder.special_ids, self.part.whole.image_token_id

        def in_written(token: Token) -> Token:
            """Return a token with its offset in the written text; the processor's own tokens have none."""
            if token.start is None or token.end is None:
                return token
            shift = 0
            for span in spans:
                (_, last), (start, end) = span["span"], span["new_span"]
                if start <= token.start < end:
                    return replace(token, start=None, end=None, special=token.id != image_id)
                shift = last - end if end <= token.start else shift
            return replace(token, start=token.start + shift, end=token.end + shift, special=token.id in special)

        return Tokens(map(in_written, tokens_of(encoding, expanded))), written


# --- transformers' processors ---


def _image_processor(snapshot: Snapshot, options: LoadOptions) -> Any:
    with _loading(snapshot.model_name, "image processor"):
        return AutoImageProcessor.from_pretrained(snapshot.folder, **hub_arguments(options))


def _processor(snapshot: Snapshot, options: LoadOptions, config: Any, tokenizer: Any) -> Any:
    """Load a model's processor of pictures and text, without that of videos."""
    parts = {"image_processor": _image_processor(snapshot, options), "tokenizer": tokenizer}
    with _loading(snapshot.model_name, "processor"):
        kind = _remembering(PROCESSOR_MAPPING[type(config)])
        arguments, _ = kind.get_processor_dict(snapshot.folder, **hub_arguments(options))
        return kind.from_args_and_dict([parts.get(name) for name in kind.get_attributes()], arguments)


@contextmanager
def _loading(name: str, what: str) -> Iterator[None]:
    """Turn errors of loading a part of a processor into one sentence; see `translate_errors`."""
    with translate_errors(name, what):
        try:
            yield
        except (ImportError, OSError, ValueError) as error:
            for package in ("torchvision", "num2words"):  # which some need
                if package in str(error).lower():
                    require(f"the {what} of {visible(name)}", package)
            raise


def _remembering(kind: type) -> Any:
    """Return the class of a processor that keeps the text for its tokenizer, and may lack a part."""

    class Remembering(kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, argument: Any) -> None:
            """Allow None for the processor of videos, which needs torchvision."""

        def get_text_with_replacements(self, text: list[str], *arguments: Any, **options: Any) -> Any:
            self.written = list(text)
            self.expanded, self.spans = super().get_text_with_replacements(text, *arguments, **options)
            return self.expanded, self.spans

    Remembering.__name__ = kind.__name__
    return Remembering


@contextmanager
def _processing(name: str) -> Iterator[None]:
    try:
        yield
    except AttnError:
        raise
    except Exception as error:  # code of every family
        raise InputError(f"the processor of {visible(name)} does not read this ({first_sentence(error)})") from None
