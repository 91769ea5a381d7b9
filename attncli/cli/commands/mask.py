"""`attn mask`: draw a mask, check it, compare two, write it for another API; the masks of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attncli.cli import options
from attncli.cli.environment import Environment
from attncli.cli.groups import Options, argument
from attncli.errors import ExitCode, UsageError
from attncli.text import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.masks.comparison import Comparison
    from attncli.masks.expressions import Expression
    from attncli.masks.findings import Finding
    from attncli.masks.mask_grid import GridOptions, MaskGrid
    from attncli.render.masks import MaskView
    from attncli.trace.masks import LayerMask
    from attncli.trace.trace import Trace


_MASK = argument("'causal & window(4)', mask.npy or a saved trace.", "EXPR|FILE")
Mask = Annotated[str, _MASK]
MaskOrNone = Annotated[str | None, _MASK]
From = Annotated[Path | None, options.input_option("Read the mask of a saved trace.", "FILE")]
_SIDES = {"query": "queries", "key": "keys"}
_SIZE = re.compile(r"([1-9][0-9]{0,8})(?:x([1-9][0-9]{0,8}))?")


class MaskInput(Options):
    """Options for the size of a mask, and the meaning of its values."""

    size: str | None = options.size_option("Set queries, or queries and keys: 3x8. Default: the mask's, or 8.", "N|QxK")
    past: int | None = options.size_option(
        "Set the keys before the first query. Default: keys minus queries.", "N", low=0
    )
    for_: Literal["sdpa", "mha", "additive"] | None = options.input_option(
        "Set what True means: attend (sdpa) or masked (mha); or additive."
    )
    lengths: options.Lengths = None
    layer: str | None = options.choice_option(
        "Choose the layer of a saved trace, where its masks differ.", "LAYERS", "-l"
    )
    kind: Literal["self", "encoder", "decoder", "cross"] | None = options.choice_option(
        "Choose the kind of attention of a saved trace.", rare=True
    )

    def grid_options(self, *masks: str, tokens: Sequence[str] | None = None, trace: Path | None = None) -> GridOptions:
        """Return the options of reading masks: their size, which a text has too, lengths of rows, and masks of traces.

        Raises:
            UsageError: the size is invalid or given twice, or an option applies to none of the masks.
            InputError: a trace cannot be read.
        """
        from attncli.masks.mask_grid import GridOptions, MaskSize, as_expression, has_padding_of_rows, is_file

        size = MaskSize(None, None if tokens is None else len(tokens), self.past)
        if self.size is not None:
            match = _SIZE.fullmatch(self.size)
            if match is None:
                expected = "expected queries, such as 8, or queries and keys, such as 3x8"
                raise UsageError(f"--size {visible(self.size)}: {expected}")
            queries = int(match[1])
            size = MaskSize(queries, queries + (self.past or 0) if match[2] is None else int(match[2]), self.past)
        if self.lengths is not None and not any(
            has_padding_of_rows(as_expression(mask)) for mask in masks if not is_file(mask)
        ):
            raise UsageError("--lengths needs an expression with a bare pad, such as 'causal & pad'")
        traces = {}
        for name in masks:
            if name == str(trace) or name.lower().endswith(".safetensors"):
                from attncli.trace.masks import is_trace, mask_of_trace

                if name == str(trace) or is_trace(name):
                    traces[name] = mask_of_trace(name, self.layer, self.kind)
        for option, value in (("--for", self.for_), ("--past", self.past)):
            if traces and value is not None:
                raise UsageError(f"{option} does not apply to a saved trace, whose mask is known")
        if not traces and (self.layer, self.kind) != (None, None):
            raise UsageError("--layer and --kind apply to a saved trace, such as trace.safetensors")
        return GridOptions(size, self.for_, options.parse_lengths(self.lengths), traces)


def show(
    environment: Environment,
    mask_input: MaskInput,
    output: options.DocumentOutput,
    name: MaskOrNone = None,
    text: str | None = argument("A text whose words are the keys and the queries.", "TEXT"),
    from_: From = None,
    colormap: options.Colormap = None,
) -> None:
    """Draw a mask over the words of a text or over positions.

    Examples:
    attn mask show "causal & window(4)" --size 12
    attn mask show "causal | prefix(3)" "time flies like an arrow"
    attn mask show "causal & pad" --lengths 5,2 --size 6
    attn mask show --from trace.safetensors
    """
    from attncli.masks.mask_grid import open_masks

    name, tokens = _only(name, from_), None
    if text is not None:
        from attncli.encoding.encode import check_texts
        from attncli.encoding.vocabulary import WordVocabulary

        check_texts(text)
        tokens = [token.label for token in WordVocabulary([text], None).encode(text, None)]
    (subject,) = open_masks([name], mask_input.grid_options(name, tokens=tokens, trace=from_))
    subject.check_read()
    if tokens is not None:
        subject = subject._replace(tokens=(tokens[subject.past :], tokens))
    _note_idle(environment, subject)
    if output.chosen() == "json":
        from attncli.formats.documents import write_masks

        environment.write(write_masks([subject]), output.file)
        return
    _draw(environment, output, "show", name, lambda view: view.shown(subject), [subject], colormap)


def check(
    environment: Environment,
    mask_input: MaskInput,
    output: options.DocumentOutput,
    name: MaskOrNone = None,
    from_: From = None,
    expect: str | None = options.choice_option("Compare with this mask: 'causal & pad(right=2)' or a file.", "EXPR"),
    dtype: Literal["float16", "bfloat16", "float32", "float64"] | None = options.choice_option(
        "Check that fill values fit this type of the model."
    ),
    fail_on: options.FailOn = None,
) -> ExitCode:
    """Find what is wrong with a mask; exit with 1 if something is.

    Examples:
    attn mask check mask.npy
    attn mask check mask.npy --expect "causal & window(4)"
    attn mask check mask.npy --expect causal --fail-on leak,pad
    attn mask check trace.safetensors --layer 0 --expect causal
    """
    from attncli.masks.audit import audit, audit_fills
    from attncli.masks.findings import fails, parse_fail_on
    from attncli.masks.mask_grid import as_expression, is_file, open_masks, read_grid

    name = _only(name, from_)
    both = [name] if expect is None else [name, expect]
    codes, how = parse_fail_on(fail_on), mask_input.grid_options(*both, trace=from_)
    expected = None if expect is None else as_expression(expect, how.lengths)
    subject = read_grid(name, how, expected) if is_file(name) else open_masks([name], how, expected)[0]
    findings = [*audit(subject, expected, how.size), *audit_fills(subject, dtype)]
    failed = fails(findings, codes)
    _note_idle(environment, subject, *([] if expected is None else [subject._replace(expression=expected)]))
    if output.chosen() == "json":
        from attncli.formats.documents import what_was_read, write_findings

        environment.write([write_findings(not failed, findings, what_was_read(subject))], output.file)
    else:
        from attncli.render.findings import checked

        comparison, is_compared = _against(subject, expected, findings), expected is not None
        shown = [subject] if findings and comparison is None else []
        drawn = partial(checked, subject, findings, comparison, is_compared=is_compared)
        _draw(environment, output, "check", name, drawn, shown)
    return ExitCode.FINDINGS if failed else ExitCode.OK


def diff(
    environment: Environment,
    mask: Mask,
    other: Annotated[str, argument("The mask to compare with.", "EXPR|FILE")],
    mask_input: MaskInput,
    output: options.PictureOutput,
) -> ExitCode:
    """Show where two masks differ; exit with 0 if they are equal and with 1 if not.

    Examples:
    attn mask diff mask.npy "causal & window(4)"
    attn mask diff before.npy after.npy
    """
    from attncli.masks.comparison import compare
    from attncli.masks.mask_grid import open_masks
    from attncli.render.masks import compared

    first, second = open_masks([mask, other], mask_input.grid_options(mask, other))
    for subject in (first, second):
        subject.check_read()
    _note_idle(environment, first, second)
    comparison = compare(first, second)
    title = f"{mask} / {other}"
    draw = partial(compared, comparison)
    _draw(environment, output, "diff", title, lambda view: draw(view.palette, view.room, view.lines), [])
    return ExitCode.FINDINGS if comparison.count else ExitCode.OK


def convert(
    _: Environment,
    mask: Mask,
    mask_input: MaskInput,
    to: Annotated[
        Literal["sdpa", "mha", "additive"],
        options.output_option("Write for sdpa (True attends), mha (True masks), or additive."),
    ],
    output: Annotated[Path, options.output_option("Write to a .npy, .pt or .safetensors file.", "FILE", "-o")],
    dtype: Literal["float16", "float32", "float64"] | None = options.output_option(
        "Set the type of an additive mask. Default: float32."
    ),
) -> None:
    """Write a mask as another API expects it.

    Examples:
    attn mask convert mask.npy --to mha -o mha.npy
    attn mask convert "causal" --size 8 --to sdpa -o mask.npy
    """
    from attncli.masks.conventions import encode_mask
    from attncli.masks.files import write_values
    from attncli.masks.mask_grid import open_masks

    (subject,) = open_masks([mask], mask_input.grid_options(mask))
    subject.check_read()
    write_values(output, encode_mask(subject.cells, to, dtype or "float32"))


def model(
    environment: Environment,
    load: options.Engine,
    output: options.DocumentOutput,
    text: list[str] | None = argument("Sentences, each in quotes. Default: time flies like an arrow.", "TEXT"),
    model: str | None = options.model_option("Choose the checkpoint; demo is built in.", "MODEL", "-m", env=True),
    chat: options.Chat = False,
    pair: options.Pair = None,
    target: str | None = options.input_option("Set the decoder's text. Default: the sentence itself.", "TEXT"),
    no_special: options.NoSpecial = False,
    colormap: options.Colormap = None,
) -> None:
    """Show the masks that a checkpoint attends by, one for each kind of layer.

    Examples:
    attn mask model -m demo
    attn mask model -m gpt2 "time flies" "fruit flies like a banana"
    attn mask model -m gpt2 "time flies like an arrow" -F json
    """
    from attncli.analysis.learn import TEXT
    from attncli.cli.environment import status
    from attncli.cli.loop import check_meant
    from attncli.engines import open_source
    from attncli.trace.masks import layer_masks

    if model is None:
        name = visible(text[0]) if text and len(text[0].split()) == 1 else "demo"
        raise UsageError(f"give the checkpoint with -m: attn mask model -m {name}")
    chosen, text = output.chosen(), text or [TEXT]
    check_meant(text, environment)
    more: dict[str, Any] = {**dict(load.explicit_values()), **({"chat": True} if chat else {})}
    with status(environment, f"loading {model}"):
        source = open_source(model, layer="all", special=not no_special, **more)
    own_target = target is None and source.is_encoder_decoder
    traces = [source.trace(sentence, pair, sentence if own_target else target) for sentence in text]
    environment.note(*dict.fromkeys(note for trace in traces for note in (*trace.source.notes, *trace.notes)))
    masks = [(number, trace, mask) for number, trace in enumerate(traces, 1) for mask in layer_masks(trace)]
    if chosen == "json":
        from attncli.formats.documents import write_masks

        described = [_described(*mask) for mask in masks]
        environment.write(write_masks([_grid(mask) for _, _, mask in masks], described), output.file)
        return
    named = [_named(mask) for _, _, mask in masks]

    def renderables(view: MaskView) -> Iterator[RenderableType]:
        from rich.text import Text

        titled = 0
        for (number, trace, _), grid in zip(masks, named, strict=True):
            if len(traces) > 1 and number != titled:
                yield Text(visible(f"sentence {number}: {trace.text}"), "bold")
            titled = number
            yield from view.shown(grid)

    _draw(environment, output, "model", model, renderables, named, colormap)


def _only(name: str | None, trace: Path | None) -> str:
    """Return the name of the one mask."""
    if (name is None) == (trace is None):
        raise UsageError("give one mask: an expression such as 'causal & window(4)', a file, or --from TRACE")
    if trace is not None and trace.suffix in (".npy", ".pt"):
        raise UsageError(f"{visible(str(trace))} is no saved trace; give it without --from")
    return str(trace) if name is None else name


def _note_idle(environment: Environment, *subjects: MaskGrid) -> None:
    """Note which atoms of expressions have no effect."""
    from attncli.masks.comparison import idle_note

    notes = (idle_note(subject.expression, subject.size) for subject in subjects if subject.expression is not None)
    environment.note(*dict.fromkeys(filter(None, notes)))


def _against(subject: MaskGrid, expected: Expression | None, findings: Sequence[Finding]) -> Comparison | None:
    """Return the comparison of a mask with the expected one, where cells are wrong."""
    from attncli.masks.comparison import compare
    from attncli.masks.mask_grid import grid_of_expression

    if expected is None or not any(finding.cells for finding in findings if finding.code != "varies"):
        return None
    return compare(subject, grid_of_expression(expected, subject.size))


def _draw(
    environment: Environment,
    output: options.OutputOptions,
    command: str,
    title: str,
    renderables: Callable[[MaskView], Iterable[RenderableType]],
    subjects: Iterable[MaskGrid],
    colormap: str | None = None,
) -> None:
    """Draw a view of masks, and note on stderr which of those that it draws are pooled."""
    from attncli.render.masks import MaskView, pooling_note

    with output.view(environment, output.chosen(), f"mask {command}") as canvas:
        view = MaskView(canvas.palette(colormap or "viridis"), canvas.width, canvas.height)
        canvas.show(renderables(view), title)
        for pool in {view.pool(subject) for subject in subjects} - {(1, 1)}:
            environment.note(pooling_note(pool, "model" if command == "model" else "show"))


def _grid(mask: LayerMask) -> MaskGrid:
    """Return a mask under the rule that it follows, if it follows one."""
    from attncli.masks.mask_grid import MaskGrid
    from attncli.masks.recognition import recognise_plane

    rule = recognise_plane(mask.allowed[0], 0) if len(mask.allowed) == 1 else None
    return MaskGrid("" if rule is None else str(rule), mask.allowed, 0, rule)


def _described(number: int, trace: Trace, mask: LayerMask) -> dict[str, Any]:
    """Return the entries of a mask in the JSON document besides its cells."""
    tokens = {f"{side}_tokens": [token.as_dict() for token in getattr(mask, name)] for side, name in _SIDES.items()}
    texts = {"sentence": number, "text": trace.text, "pair": trace.pair, "target": trace.target}
    # Keys dropped of a KV cache have room in the schema.
    return {"kind": mask.kind, "layers": list(mask.layers), **texts, **tokens, "dropped_keys": 0}


def _named(mask: LayerMask) -> MaskGrid:
    """Return a mask with its tokens, under the names of its layers."""
    from attncli.masks.mask_grid import MaskGrid
    from attncli.text import layers_named

    queries, keys = ([token.label for token in side] for side in (mask.queries, mask.keys))
    return MaskGrid(f"{mask.kind} · {layers_named(mask.layers)}", mask.allowed, 0, tokens=(queries, keys))
