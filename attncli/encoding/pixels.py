"""A picture alone, as vision transformers read it: as pixels, by preprocessor_config.json and without torch.

<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/image_processing_backends.py>
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.encoding.encode import EncodedInput, InputEncoder
from attncli.encoding.pictures import OpenPicture, open_picture
from attncli.errors import LoadError
from attncli.text import visible
from attncli.trace.layout import ImageGrid
from attncli.trace.tokens import Token, Tokens

if TYPE_CHECKING:
    from attncli.checkpoints.snapshot import Snapshot

PROCESSOR = "preprocessor_config.json"
_BILINEAR = 2  # Pillow's number of it

# Names of the positions before registers and patches, by the model type of a vision tower.
BEFORE = {
    **dict.fromkeys(("beit", "clip_vision_model", "dinov2", "dinov2_with_registers", "dinov3_vit"), ("[CLS]",)),
    **dict.fromkeys(("internvl_vision", "vit"), ("[CLS]",)),
    **dict.fromkeys(("idefics3_vision", "siglip_vision_model", "smolvlm_vision"), ()),
    "deit": ("[CLS]", "[DISTILL]"),
}


def names_before(model_type: Any, registers: int, otherwise: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the positions before the patches of a tower; `otherwise` are those of an unknown type."""
    return *BEFORE.get(model_type, otherwise), *(f"[REG{number}]" for number in range(registers))


def read_alone(
    opened: OpenPicture, before: Sequence[str], grid: ImageGrid, pixels: Any, notes: tuple[str, ...]
) -> EncodedInput:
    """Return a picture as a vision tower reads it: the names before its patches, and a token for each cell."""
    labels = [*before, *(f"r{row}c{column}" for row in range(grid.rows) for column in range(grid.columns))]
    tokens = Tokens(Token(index, index, label, None, None, index < len(before)) for index, label in enumerate(labels))
    inputs, pictures = {"input_ids": tokens.ids}, ((opened.picture,), (grid,), {"pixel_values": pixels})
    return EncodedInput(opened.picture.name, None, None, tokens, tokens, inputs, notes, 0, *pictures)


def open_picture_encoder(snapshot: Snapshot) -> InputEncoder:
    """Return the encoder of pictures, whose texts are names of files; LoadError without the settings for it."""
    config, settings = snapshot.config, snapshot.files.read_json(PROCESSOR)
    config = config.get("vision_config", config)
    size, patch = settings.get("size"), config.get("patch_size")
    if type(patch) is not int or not isinstance(size, Mapping):
        needs = f"a patch_size in config.json, and a size in {PROCESSOR}"
        raise LoadError(f"the pictures for {visible(snapshot.name)} need {needs}; put both beside the graph")
    before = names_before(config.get("model_type"), config.get("num_register_tokens", 0), ("[CLS]",))

    def encode(text: str, encoder: InputEncoder) -> EncodedInput:
        opened = open_picture(text)
        image, box = _resized(opened.image, size, settings)
        pixels = np.asarray(image, np.float32)
        if settings.get("do_rescale", True):
            pixels = pixels * np.float32(settings.get("rescale_factor", 1 / 255))
        if settings.get("do_normalize", True):
            mean, deviation = (np.float32(settings.get(f"image_{part}", 0.5)) for part in ("mean", "std"))
            pixels = (pixels - mean) / deviation
        grid = ImageGrid(len(before), image.height // patch, image.width // patch, box=box)
        return read_alone(opened, before, grid, pixels.transpose(2, 0, 1)[None], opened.notes)

    return InputEncoder(snapshot.name, None, False, None, truncate=False, looking=encode)


def _resized(image: Any, size: Mapping[str, int], settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a picture of the size that the model reads, and the box of that in the original; None is all of it."""
    width, height = image.size
    wide, high = size.get("width", width), size.get("height", height)
    if "shortest_edge" in size:
        wide, high = (int(side * size["shortest_edge"] / min(image.size)) for side in image.size)
    if settings.get("do_resize", True):
        image = image.resize((wide, high), settings.get("resample", _BILINEAR))
    crop = settings.get("crop_size") if settings.get("do_center_crop", False) else None
    if not isinstance(crop, Mapping):
        return image, None
    left, top = (image.width - crop["width"]) // 2, (image.height - crop["height"]) // 2
    cut = (left, top, left + crop["width"], top + crop["height"])
    across, down = width / image.width, height / image.height
    return image.crop(cut), (cut[0] * across, cut[1] * down, cut[2] * across, cut[3] * down)
