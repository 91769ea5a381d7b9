"""`attncli.check`: lint the attention of a checkpoint as it really runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from attncli.analysis.check.report import Report
from attncli.checkpoints.options import LoadOptions, checked_options
from attncli.checkpoints.signatures import Choice, with_explicit_signature
from attncli.errors import InputError, UsageError
from attncli.masks.findings import Finding
from attncli.text import as_list, layers_named

if TYPE_CHECKING:
    from attncli.analysis.check.model_runner import ModelRunner
    from attncli.encoding.encode import EncodedInput

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
    from attncli.checkpoints.snapshot import resolve
    from attncli.engines.torch import announce_import

    texts = list(islice(as_list(texts), _MOST + 1))
    if len(texts) > _MOST:
        raise UsageError(f"a check runs at most {_MOST} texts, in one batch; give fewer")
    loading = checked_options(options, LoadOptions, "a checkpoint that transformers runs in several ways")
    loading = loading.changed(dtype=loading.dtype or "float32")
    snapshot = resolve(model, loading)
    announce_import("attn check", snapshot)
    from attncli.analysis.check.invariances import findings_of, invariances
    from attncli.analysis.check.model_runner import ModelRunner
    from attncli.analysis.check.tokenizer import tokenizer_findings
    from attncli.engines.torch.engine import Checkpoint
    from attncli.trace.selection import Indices

    chosen, heads = Indices.of("layer", layer), Indices.of("head", None)
    runner = ModelRunner(Checkpoint(snapshot, chosen, heads, kind=None, mask=None, special=special, options=loading))
    sentences = _with_padding(runner, [runner.read(text, target) for text in texts], target)
    longest = max(len(sentence.tokens) for sentence in sentences)
    room = max(_MOST_TOKENS // longest, 2)
    if len(sentences) > room:
        raise InputError(f"{len(sentences)} texts of up to {longest} tokens do not fit into one batch; give {room}")
    findings = _layer_findings(runner, sentences)
    compared = tuple(invariances(runner, sentences))
    reported = {(finding.layer, finding.kind) for finding in findings}
    masks: dict[tuple[str, str], list[int]] = {}
    windows: dict[int, list[int]] = {}  # that no text is long enough to see the edge of
    for number, kind in runner.recorded:
        implied = runner.implied[number, kind]
        masks.setdefault((str(implied.expression), kind), []).append(number)
        if implied.window is not None and implied.window >= longest:
            windows.setdefault(implied.window, []).append(number)
    for width, layers in windows.items():
        where = f"the window of {width} keys in {layers_named(layers)}"
        advice = f"a text of more than {width} tokens shows its edge"
        message = f"{where} reaches over the longest text, {longest} tokens"
        findings.append(Finding("window", "note", message, advice=advice))
    findings += findings_of(runner, compared, reported)
    known_padding = runner.first_position - 1 if runner.first_position else None
    findings += tokenizer_findings(runner.checkpoint.encoder, sentences[0].tokens, known_padding)
    return Report(
        model=runner.checkpoint.name,
        architecture=runner.checkpoint.part.architecture,
        dtype=runner.dtype,
        tokens=tuple(len(sentence.tokens) for sentence in sentences),
        masks=tuple((expression, kind, tuple(layers)) for (expression, kind), layers in masks.items()),
        findings=tuple(sorted(findings, key=lambda finding: finding.severity == "note")),
        invariances=compared,
        tower=runner.checkpoint.part.tower,
        notes=tuple(dict.fromkeys(chain(runner.checkpoint.notes, *(sentence.notes for sentence in sentences)))),
    )


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
    longer = [sentence for sentence in built_in if len(sentence.tokens) not in lengths]
    return sentences + longer[:1] if sentences else built_in


def _layer_findings(runner: ModelRunner, sentences: Sequence[EncodedInput]) -> list[Finding]:
    """Return one finding of each kind per layer: of the sentence in which it concerns most cells."""
    from attncli.analysis.check.layers import ADVICE, layer_findings

    worst: dict[tuple[Any, ...], Finding] = {}
    # Padding after a sentence is hidden from it by a causal mask, and padding before it by nothing else.
    for sentence in [*runner.captured(sentences, "right"), *runner.captured(sentences, "left")]:
        for (layer, kind), attention in sentence.items():
            for finding in layer_findings(attention, runner.dtype):
                key = layer, kind, finding.code, finding.severity
                if key not in worst or finding.count > worst[key].count:
                    worst[key] = replace(finding, layer=layer, kind=kind, advice=ADVICE.get(finding.code))
    return list(worst.values())
