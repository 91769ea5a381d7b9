"""`attncli.check`: lint the attention of a checkpoint as it really runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from attncli.analysis.check.report import Report, layers_by_mask
from attncli.checkpoints.options import Choice, LoadOptions, checked_options, with_explicit_signature
from attncli.errors import InputError, UsageError
from attncli.masks.findings import Finding
from attncli.text import as_list, layers_named, visible

if TYPE_CHECKING:
    from attncli.analysis.check.invariances import ModelRunner
    from attncli.analysis.check.layers import CapturedLayer
    from attncli.encoding.encode import EncodedInput
    from attncli.engines.torch.recorder import Sublayer

# Of different lengths, so that a batch of them is padded.
DEFAULT_TEXTS = (
    "time flies like an arrow",
    "fruit flies like a banana, and the green ones are sour, as everyone knows who ever ate one",
    "the cat sat on the mat because it was tired",
)

_MOST, _MOST_TOKENS = 8, 4096  # sentences of the batch, and tokens with their padding


@with_explicit_signature(LoadOptions)
def check(
    model: str,
    texts: str | Iterable[str] = (),
    *,
    target: str | None = None,
    layer: Choice = "all",
    special: bool = True,
    **options: Any,
) -> Report:
    """Check the attention of a checkpoint for errors.

    Its layers run on the texts in a padded batch, with the masks that its own code builds; these, the weights and
    the outputs are held against what its configuration says. Then the same texts run in the ways that should make
    no difference: alone, padded on either side, with a cache, in another implementation, packed.

    Args:
        model: a checkpoint's folder or hub name.
        texts: up to eight sentences; none are the built-in ones. With a single length there would be no padding to be
            checked, and a built-in one stands beside them.
        target: the decoder's text, for an encoder-decoder; None is each sentence itself.
        layer: which layers to look at.
        special: whether the tokenizer adds its special tokens.
        options: fields of `attncli.checkpoints.options.LoadOptions`; without `dtype` it is float32 on any device.

    Raises:
        UsageError: an option does not exist, the layers do not, or there are more texts.
        LoadError: the checkpoint cannot be loaded.
        NotExposedError: its attention cannot be observed.
        InputError: a text cannot be read, or is too long.
    """
    from attncli.analysis.check.graphs import check_graph, check_has_text
    from attncli.checkpoints.snapshot import resolve
    from attncli.engines.torch import announce_import

    texts = list(islice(as_list(texts), _MOST + 1))
    if len(texts) > _MOST:
        raise UsageError(f"a check runs at most {_MOST} texts, in one batch; give fewer")
    loading = checked_options(options, LoadOptions, "a checkpoint that transformers runs in several ways")
    check_has_text(texts, options)
    snapshot = resolve(model, loading)
    if snapshot.onnx:
        return check_graph(model, texts, special=special, layer=layer, **options)
    loading = loading.changed(dtype=loading.dtype or "float32")
    announce_import("attn check", snapshot)
    from attncli.analysis.check.invariances import ModelRunner
    from attncli.engines.source import ModelRequest
    from attncli.engines.torch.engine import Checkpoint
    from attncli.trace.selection import Indices

    request = ModelRequest(Indices.of("layer", layer), Indices.of("head", None), special=special)
    runner = ModelRunner(Checkpoint(snapshot, request, loading))
    return _report(runner, _batch(runner, texts, target), of_text=not loading.ids)


def _report(runner: ModelRunner, sentences: list[EncodedInput], *, of_text: bool) -> Report:
    """Run the sentences in a batch and in the other ways, and return what is found."""
    from attncli.analysis.check.invariances import findings_of, invariances
    from attncli.analysis.check.layers import captured

    checkpoint, lengths = runner.checkpoint, tuple(len(sentence.tokens) for sentence in sentences)
    # Padding after a sentence is hidden from it by a causal mask, and padding before it by nothing else.
    layers = [*captured(runner, sentences, "right"), *captured(runner, sentences, "left")]
    findings = _layer_findings(layers, runner.dtype)
    reported = {(finding.layer, finding.kind) for finding in findings}
    compared = tuple(invariances(runner, sentences))
    findings += _window_notes({layer: runner.implied[layer].window for layer in layers[0]}, max(lengths))
    findings += findings_of(runner, compared, reported)
    findings += _tokenizer_notes(runner, sentences[0]) if of_text else []
    return Report(
        model=checkpoint.name,
        architecture=checkpoint.part.architecture,
        dtype=runner.dtype,
        tokens=lengths,
        masks=layers_by_mask((str(runner.implied[layer].expression), layer) for layer in layers[0]),
        findings=tuple(sorted(findings, key=lambda finding: finding.severity == "note")),
        invariances=compared,
        tower=checkpoint.part.tower,
        notes=tuple(dict.fromkeys(chain(checkpoint.notes, *(sentence.notes for sentence in sentences)))),
    )


def _batch(runner: ModelRunner, texts: Sequence[str], target: str | None) -> list[EncodedInput]:
    """Return the sentences of the batch: the texts and, where nothing would be padded, a built-in one too."""
    sentences = _with_padding(runner, [runner.read(text, target) for text in texts], target)
    longest = max(len(sentence.tokens) for sentence in sentences)
    room = max(_MOST_TOKENS // longest, 2)
    if len(sentences) > room:
        raise InputError(f"{len(sentences)} texts of up to {longest} tokens do not fit into one batch; give {room}")
    return sentences


def _with_padding(runner: ModelRunner, sentences: list[EncodedInput], target: str | None) -> list[EncodedInput]:
    """Return the sentences; where nothing would be padded, with a built-in one too."""
    lengths = {len(sentence.tokens) for sentence in sentences}
    if len(lengths) > 1:
        return sentences
    built_in = []
    for text in DEFAULT_TEXTS:
        words = text.split()
        while words:  # fewer, where the model has too few positions
            with suppress(InputError):
                built_in.append(runner.read(" ".join(words), target))
                break
            words.pop()
    other = [sentence for sentence in built_in if len(sentence.tokens) not in lengths]
    return [*sentences, *other[:1]] if sentences else built_in


def _layer_findings(sentences: Iterable[dict[Sublayer, CapturedLayer]], dtype: str) -> list[Finding]:
    """Return one finding of each kind per layer: of the sentence in which it concerns most cells."""
    from attncli.analysis.check.layers import ADVICE, layer_findings

    worst: dict[tuple[Any, ...], Finding] = {}
    for (layer, kind), attention in chain.from_iterable(sentence.items() for sentence in sentences):
        for finding in layer_findings(attention, dtype):
            key = layer, kind, finding.code, finding.severity
            if key not in worst or finding.count > worst[key].count:
                worst[key] = replace(finding, layer=layer, kind=kind, advice=ADVICE.get(finding.code))
    return list(worst.values())


def _window_notes(windows: dict[Sublayer, int | None], longest: int) -> Iterator[Finding]:
    """Yield the windows that no text is long enough to see the edge of."""
    for width in dict.fromkeys(windows.values()):
        if width is not None and width >= longest:
            where = layers_named([number for (number, _), window in windows.items() if window == width])
            message = f"the window of {width} keys in {where} covers the longest text, {longest} tokens"
            yield Finding("window", "note", message, advice=f"give a text of more than {width} tokens to test its edge")


def _tokenizer_notes(runner: ModelRunner, sentence: EncodedInput) -> Iterator[Finding]:
    """Yield notes about a tokenizer that has made masks wrong."""
    encoder = runner.checkpoint.encoder
    tokenizer, padding = encoder.tokenizer, encoder.padding_id
    pad, bos, counted = tokenizer.pad_token, tokenizer.bos_token, runner.first_position - 1
    if pad is None:
        message = f"no pad token. This check pads with id {padding}, so only the attention mask marks padding"
        yield Finding("tokenizer", "note", message)
    elif pad == tokenizer.eos_token:
        message = f"the pad token is also the end token {visible(str(pad))}, so a mask made from ids hides the end of a"
        yield Finding("tokenizer", "note", f"{message} sentence. Use the tokenizer's attention mask")
    if counted not in (-1, padding):
        message = f"it pads with id {padding}, but the model skips id {counted} when it counts positions"
        yield Finding("tokenizer", "note", f"{message}, so padding shifts the tokens")
    if tokenizer.padding_side == "left":
        message = "it pads on the left. Compute positions from the attention mask: cumsum − 1"
        yield Finding("tokenizer", "note", message)
    if encoder.special and bos is not None and sentence.tokens[0].id != tokenizer.bos_token_id:
        yield Finding("tokenizer", "note", f"it does not add its beginning token {visible(str(bos))}")
