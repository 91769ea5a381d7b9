"""`attn check --against`: a port of a checkpoint, held against the checkpoint on one text, and on padding."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from attncli.analysis.agreement.compare import Agreement, Cause, Parting, compare
from attncli.analysis.agreement.question import Cell
from attncli.analysis.runs import side_of
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import resolve
from attncli.engines import open_source
from attncli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.trace.layer import LayerTrace

# Without a text: longer than the windows of small models.
WORDS = "fruit flies like a banana, and the cat sat on the mat because it was tired of the green ones that are sour."
_FEWEST_WORDS, _MOST_WORDS = 16, 500  # of that text
PADDING = 3  # tokens
_LITTLE = 1e-6  # of weight


def against(model: str, checkpoint: str, text: str | None = None, *, special: bool = True, **options: Any) -> Agreement:
    """Compare a port with its checkpoint: stage by stage on one text, and its masks where the text is padded.

    Args:
        model: the port, such as an ONNX file.
        checkpoint: a checkpoint's folder or hub name.
        text: the text that both read; None is a built-in one, longer than the checkpoint's window.
        special: whether the tokenizers add their special tokens.
        options: fields of `attncli.checkpoints.options.LoadOptions`.

    Raises:
        AttnError: one of them cannot be opened or does not read the text; see `open_source`.
    """
    ours, theirs = (open_source(name, layer="all", special=special, **options) for name in (checkpoint, model))
    window = resolve(checkpoint, LoadOptions(**options)).config.get("sliding_window")
    width = window if isinstance(window, int) else 0
    text = text or " ".join(islice(cycle(WORDS.split()), min(max(width + 8, _FEWEST_WORDS), _MOST_WORDS)))
    agreement = compare(*(side_of(source, source.name, text, None) for source in (ours, theirs)))
    if width >= (tokens := len(theirs.tokens(text)[0])):
        agreement.notes.append(
            f"the window of {width} keys reaches over the text of {tokens} tokens; give a longer one"
        )
    try:
        for side, sizes in (("right", (0, PADDING)), ("left", (PADDING, 0))):
            if (layers := theirs.padded_layers(text, *sizes)) is None:
                agreement.notes.append(f"{theirs.name} reads no attention_mask, so padding cannot be hidden from it")
                break
            agreement.partings += _on_padding(layers, side)
    except InputError as error:
        agreement.notes.append(f"padding was not checked: {error}")
    return agreement


def _on_padding(layers: Sequence[LayerTrace], side: str) -> Iterator[Parting]:
    """Yield the layers in which tokens attend to the padding on one side, if there are any."""
    words, padding = slice(None, -PADDING), slice(-PADDING, None)
    if side == "left":
        words, padding = slice(PADDING, None), slice(None, PADDING)
    attended: dict[int, float] = {}
    for layer in layers:
        largest = max(float(head.weights[words, padding].max()) for head in map(layer.head, range(layer.num_heads)))
        if largest > _LITTLE:
            attended[layer.layer] = largest
    if attended:
        cause = Cause("padding mask", f"missing on the {side}", "attention_mask", None)
        yield Parting("padding", list(attended), Cell(max(attended.values()), None, agrees=False), cause)
