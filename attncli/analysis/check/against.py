"""`attn check --against`: a port of a checkpoint, held against the checkpoint on one text, and on padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncli.analysis.agreement.compare import Agreement, Cause, Parting, compare
from attncli.analysis.agreement.question import Cell
from attncli.analysis.check.graphs import ARRAYS, Comparison, compared_runs, text_over
from attncli.analysis.runs import side_of
from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import resolve
from attncli.engines import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    text = text or text_over(width)
    agreement = compare(*(side_of(source, source.name, text, None) for source in (ours, theirs)))
    if width >= (tokens := len(theirs.tokens(text)[0])):
        agreement.notes.append(
            f"the window of {width} keys reaches over the text of {tokens} tokens; give a longer one"
        )
    compared = [*compared_runs(theirs, text, theirs.trace(text))] if theirs.is_graph else []
    agreement.partings += [parting for one in compared for parting in _partings(one)]
    missing = {"cache": "a cache"} | dict.fromkeys(("batch", "padding-side"), "padding")
    for one in (one.invariance for one in compared):
        if one.reason is not None and (one.has_failed or one.name != "cache"):
            agreement.notes.append(f"{missing[one.name]} was not checked: {one.reason}")
    agreement.notes = [*dict.fromkeys(agreement.notes)]
    return agreement


def _partings(comparison: Comparison) -> Iterator[Parting]:
    """Yield where tokens attend to padding, and where a cache changes the attention."""
    one, on_padding = comparison.invariance, comparison.on_padding
    if on_padding:
        cause = Cause("padding mask", f"missing on the {comparison.side}", "attention_mask", None)
        yield Parting("padding", list(on_padding), Cell(max(on_padding.values()), None, agrees=False), cause)
    elif one.name == "cache" and one.change is not None and comparison.layers:
        cause = Cause(ARRAYS[comparison.array], "differ first", "", None)
        yield Parting("cache", list(comparison.layers), Cell(one.change, None, agrees=False), cause)
