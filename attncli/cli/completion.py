"""Completion in a shell: Typer's scripts, and the values that an option's metavar stands for.

Files are left to the shell, which completes them where nothing is offered here. Typer's scripts hand candidates to the
shell as they are, so that a name which the shell could expand is never offered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from typing import Annotated, Any, get_args, get_origin

from typer import Context
from typer._completion_shared import get_completion_script
from typer.models import ParameterInfo

from attncli.errors import AttnError, UsageError

VARIABLE = "_ATTN_COMPLETE"  # through which a script asks
_PLAIN = re.compile(r"[\w@%+:,./-]+")

# How architectures call the same numbers in a config.json.
_LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "layers_block_type",
)  # fmt: skip
_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads",
    "decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads",
)  # fmt: skip
_NESTED = ("text_config", "encoder", "decoder")
_LARGEST = 10_000  # no model has as many layers or heads


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    text = get_completion_script(prog_name="attn", complete_var=VARIABLE, shell=shell)
    if shell == "zsh":  # Typer's only registers itself, so that the first TAB would do nothing
        register = "compdef _attn_completion attn"
        text = text.replace(
            register, f'if [ "$funcstack[1]" = "_attn" ]; then _attn_completion "$@"; else {register}; fi'
        )
    return text + "\n"


def with_values(annotation: Any) -> Any:
    """Return the annotation of a parameter with what completes its values; what `--help` leaves out is offered too."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *infos = get_args(annotation)
    offered = [copy(info) for info in infos]
    for info in offered:
        if isinstance(info, ParameterInfo):
            info.hidden = False
            if info.metavar:
                info.autocompletion = _completer(info.metavar)
    return Annotated[(kind, *offered)]


def _completer(metavar: str) -> Callable[[Context, str], list[Any]]:
    """Return what completes a value by the parts of its metavar: those in lower case are values themselves."""

    def complete(ctx: Context, incomplete: str) -> list[Any]:
        found: list[Any] = []
        for part in metavar.split("|"):
            found += VALUES[part](ctx, incomplete) if part in VALUES else [part] if part.islower() else []
        return found

    return complete


def _indices(what: str, ctx: Context, typed: str) -> Iterator[str]:
    """Yield the layers or heads that could follow in `0,3,-1` or end a range `2-4`."""
    match = re.fullmatch(r"((?:.*,)?)((?:([0-9]{1,9})-)?)[0-9]*", typed)
    if match is not None:
        yield from (f"{match[1]}{match[2]}{index}" for index in range(int(match[3] or 0), _sizes(ctx)[what]))
        yield "all"


def _listed(names: Callable[[], Iterable[str]], _: Context, typed: str) -> Iterator[str]:
    """Yield the names that could follow in a list with commas, each once."""
    before, comma, _last = typed.rpartition(",")
    yield from (before + comma + name for name in names() if name not in before.split(","))


def _parts() -> Iterable[str]:
    from attncli.trace.view import PARTS

    return PARTS


def _metrics() -> Iterable[str]:
    from attncli.analysis.metric_names import NAMES

    return NAMES


def _codes() -> Iterable[str]:
    from attncli.masks.findings import CODES

    return CODES


def _topics(ctx: Context, _: str) -> Iterator[tuple[str, str]]:
    """Yield what `attn help` can tell of."""
    from attncli.cli.help import topics

    root: Any = ctx.find_root().command
    yield from topics()
    yield from ((name, root.purpose(name)) for name in root.list_commands(ctx))


def _models(_: Context, typed: str) -> Iterator[tuple[str, str]]:
    """Yield the model in the box, and what models the hub's local cache has; folders are the shell's."""
    from attncli.checkpoints.checkpoint_folder import DEMO, cached_models

    yield DEMO, "a small model in the box"
    yield from ((name, "in the local cache") for name in cached_models() if _PLAIN.fullmatch(name))


def _masks(_: Context, typed: str) -> Iterator[tuple[str, str]]:
    """Yield the expression with each atom in place of its last word."""
    from attncli.masks.notation import NOTATION

    before = re.sub(r"\w*\Z", "", typed)
    if _MASK.fullmatch(before):
        for atom, kind in NOTATION.items():
            if atom not in ("file", "pad(left)"):
                yield before + atom + "(" * ("(" in kind.usage), kind.usage


_MASK = re.compile(r"[\w\s&|~(),=-]*")


def _sizes(ctx: Context) -> dict[str, int]:
    """Return how many layers and heads the checkpoint has, or the toy layer; 0 is unknown."""
    if model := ctx.params.get("base") or _model(ctx):
        return sizes(model)
    names = {parameter.name for parameter in ctx.command.params}
    if "from_" in ctx.params or "num_heads" not in names:
        return {"layer": 0, "head": 0}
    heads = ctx.params.get("num_heads", "4")
    return {"layer": 1, "head": int(heads) if re.fullmatch("[0-9]{1,4}", heads) else 0}


def _model(ctx: Context) -> str:
    """Return the checkpoint on the line, or the one that the option is set to elsewhere; or nothing."""
    from attncli.cli.config import deciding, settings

    if (model := ctx.params.get("model")) is not None:
        return model if isinstance(model, str) else next(iter(model), "")
    try:
        setting = deciding(settings()).get("model")
    except UsageError:
        return ""  # the run will say what is wrong with a file; a TAB is no place for it
    return str(setting.value) if setting else ""


def sizes(name: str) -> dict[str, int]:
    """Return how many layers and heads a checkpoint has, from its config.json; 0 is unknown.

    Args:
        name: a folder, or a name in the local cache; an adapter has the layers of its base.
    """
    from attncli.checkpoints.options import LoadOptions
    from attncli.checkpoints.snapshot import resolve

    try:
        config = resolve(os.path.expanduser(name), LoadOptions(offline=True), for_tokenizer=True).config
    except (AttnError, OSError, ValueError):
        config = {}
    parts = [config, *(config[name] for name in _NESTED if isinstance(config.get(name), dict))]
    return {"layer": _largest(parts, _LAYERS), "head": _largest(parts, _HEADS)}


def _largest(parts: list[dict[str, Any]], names: Iterable[str]) -> int:
    """Return the largest of what these names count, in a configuration and those nested in it for text."""
    values = [part.get(name) for part in parts for name in names]
    numbers = [len(value) if isinstance(value, list) else value for value in values]
    return max((number for number in numbers if isinstance(number, int) and 0 < number <= _LARGEST), default=0)


VALUES: dict[str, Callable[[Context, str], Iterable[Any]]] = {
    "CODES": partial(_listed, _codes),
    "EXPR": _masks,
    "HEADS": partial(_indices, "head"),
    "LAYERS": partial(_indices, "layer"),
    "METRIC": lambda *_: _metrics(),
    "METRICS": partial(_listed, _metrics),
    "MODEL": _models,
    "NAME_OR_FOLDER": _models,
    "PARTS": partial(_listed, _parts),
    "TOPIC": _topics,
}
