"""`attncli.check`: lint the attention of a checkpoint as it really runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from attncli.analysis.check.report import Invariance, Report
from attncli.checkpoints.options import LoadOptions, checked_options
from attncli.checkpoints.signatures import Choice, LoadKeywords, spelling_out
from attncli.errors import InputError
from attncli.masks.findings import Finding
from attncli.text import as_list, layers_named

if TYPE_CHECKING:
    from attncli.analysis.check.model_runner import CapturedLayer, ModelRunner
    from attncli.encoding.encode import EncodedInput
    from attncli.engines.torch.recorder import Sublayer

# Of different lengths, so that a batch of them is padded.
DEFAULT_TEXTS = (
    "time flies like an arrow",
    "fruit flies like a banana, and the green ones are sour, as everyone knows who ever ate one",
    "the cat sat on the mat because it was tired",
)

# Of a batch: sentences, and tokens with their padding.
_MOST, _MOST_TOKENS = 8, 4096


@spelling_out(LoadKeywords, LoadOptions)
def check(
    model: str,
    texts: str | Iterable[str] = (),
    *,
    target: str | None = None,
    documents: bool = False,
    layers: Choice = "all",
    special: bool = True,
    **options: Unpack[LoadKeywords],
) -> Report:
    """Say what is wrong with the attention of a checkpoint.

    Its layers run on the texts in a padded batch, with the masks that its own code builds; these, the weights and
    the outputs are held against what its configuration says. Then the same texts run in the ways that should make
    no difference: alone, padded on either side, with a cache, in another implementation, packed.

    Args:
        model: a checkpoint's folder or hub name.
        texts: a sentence, or several; none are the built-in ones. With a single length there would be no padding to be
            checked, and a built-in one stands beside them.
        target: the decoder's text, for an encoder-decoder; None is each sentence itself.
        documents: whether the texts are also packed into one sequence, where none may attend to another.
        layers: which layers to look at.
        special: whether the tokenizer adds its special tokens.
        options: fields of `attncli.checkpoints.options.LoadOptions`.

    Raises:
        UsageError: an option does not exist, or the layers do not.
        LoadError: the checkpoint cannot be loaded.
        NotExposedError: its attention cannot be observed.
        InputError: a text cannot be read, or is too long.
    """
    from attncli.checkpoints.snapshot import resolve
    from attncli.engines.torch import announce_import

    loading = checked_options(model, options, LoadOptions, "a checkpoint that transformers runs in several ways")
    snapshot = resolve(model, loading)
    announce_import("attn check", snapshot)
    from attncli.analysis.check.invariances import findings_of, invariances
    from attncli.analysis.check.model_runner import ModelRunner
    from attncli.analysis.check.tokenizer import tokenizer_findings
    from attncli.engines.torch.engine import Checkpoint
    from attncli.trace.selection import Indices

    def opened(how: LoadOptions) -> ModelRunner:
        chosen, heads = Indices.of("layer", layers), Indices.of("head", None)
        return ModelRunner(Checkpoint(snapshot, chosen, heads, kind=None, mask=None, special=special, options=how))

    runner = opened(loading)
    groups = list(_groups(runner, [runner.read(text, target) for text in as_list(texts)], target))
    sentences = [sentence for group in groups for sentence in group]
    found = _worst(finding for group in groups for finding in _layers(runner, group, documents))
    compared = _furthest(
        # Another type needs the checkpoint a second time, which the first sentences have to do for.
        each
        for number, group in enumerate(groups)
        for each in invariances(
            runner, group, None if number else (lambda dtype: opened(replace(loading, dtype=dtype)))
        )
    )
    reported = {(finding.layer, finding.kind) for finding in found}
    found += _unseen_windows(runner, max(len(sentence.tokens) for sentence in sentences))
    found += findings_of(runner, compared, documents, reported)
    found += tokenizer_findings(runner.checkpoint.encoder, sentences[0].tokens, runner.known_padding)
    return Report(
        model=runner.checkpoint.name,
        architecture=runner.checkpoint.part.architecture,
        dtype=runner.dtype,
        tokens=tuple(len(sentence.tokens) for sentence in sentences),
        masks=_masks(runner),
        findings=tuple(sorted(found, key=lambda finding: finding.severity == "note")),
        invariances=tuple(compared),
        tower=runner.checkpoint.part.tower,
        notes=tuple(dict.fromkeys([*runner.checkpoint.notes, *(note for one in sentences for note in one.notes)])),
    )


def _groups(runner: ModelRunner, sentences: Sequence[EncodedInput], target: str | None) -> Iterator[list[EncodedInput]]:
    """Yield the sentences that stand in one batch; where nothing would be padded, with a built-in one beside them."""
    group: list[EncodedInput] = []
    for sentence in sentences:
        longest = max(len(one.tokens) for one in (*group, sentence))
        if len(group) >= min(_MOST, _MOST_TOKENS // longest, runner.checkpoint.room_for(longest)) and group:
            yield _padded_in_part(runner, group, target)
            group = []
        group.append(sentence)
    yield _padded_in_part(runner, group, target)


def _padded_in_part(runner: ModelRunner, group: list[EncodedInput], target: str | None) -> list[EncodedInput]:
    lengths = {len(sentence.tokens) for sentence in group}
    if len(lengths) > 1:
        return group
    built_in = list(_built_in(runner, target))
    return group + [one for one in built_in if len(one.tokens) not in lengths][:1] if group else built_in


def _built_in(runner: ModelRunner, target: str | None) -> Iterator[EncodedInput]:
    """Yield the built-in sentences, shortened where the model has too few positions."""
    for text in DEFAULT_TEXTS:
        words = text.split()
        while words:
            with suppress(InputError):
                yield runner.read(" ".join(words), target)
                break
            words.pop()


def _layers(runner: ModelRunner, sentences: Sequence[EncodedInput], documents: bool) -> Iterator[Finding]:
    """Yield what is wrong with the layers, for each sentence."""
    from attncli.analysis.check.layers import ADVICE, layer_findings

    # Padding after a sentence is hidden from it by a causal mask, and padding before it by nothing else.
    seen: list[dict[Sublayer, CapturedLayer]] = []
    for side in ("right", "left"):
        seen += runner.audited(sentences, side)
    if documents:
        seen += runner.audited_documents(sentences)
    for sentence in seen:
        for (layer, kind), attention in sentence.items():
            for finding in layer_findings(attention, runner.dtype):
                yield replace(finding, layer=layer, kind=kind, advice=ADVICE.get(finding.code))


def _worst(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding of each kind per layer: of the sentence in which it concerns most cells."""
    found: dict[tuple[Any, ...], Finding] = {}
    for finding in findings:
        key = (finding.layer, finding.kind, finding.code, finding.severity)
        if key not in found or finding.count > found[key].count:
            found[key] = finding
    return list(found.values())


def _furthest(compared: Iterable[Invariance]) -> list[Invariance]:
    """Return each comparison once: of the sentences whose change is largest."""
    found: dict[str, Invariance] = {}
    for each in compared:
        before = found.get(each.name)
        if before is None or each.has_failed or not (each.change or 0) <= (before.change or 0):
            found[each.name] = each
    return list(found.values())


def _unseen_windows(runner: ModelRunner, longest: int) -> Iterator[Finding]:
    """Yield a note for the windows that no text was long enough to see the edge of."""
    widths: dict[int, list[int]] = {}
    for place in runner.recorded:
        width = runner.implied[place].window
        if width is not None and width >= longest:
            widths.setdefault(width, []).append(place[0])
    for width, layers in widths.items():
        message = (
            f"the window of {width} keys in {layers_named(layers)} reaches over the longest text, {longest} tokens"
        )
        yield Finding("window", "note", message, advice=f"a text of more than {width} tokens shows its edge")


def _masks(runner: ModelRunner) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return the masks that the configuration implies, each with its kind and its layers."""
    found: dict[tuple[str, str], list[int]] = {}
    for layer, kind in runner.recorded:
        found.setdefault((str(runner.implied[layer, kind].expression), kind), []).append(layer)
    return tuple((expression, kind, tuple(layers)) for (expression, kind), layers in found.items())
