"""What a place offers: commands, options, and the values of a parameter by what its metavar says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attncli.cli.completion.candidate import Candidate
from attncli.cli.completion.line import Cursor, is_group
from attncli.cli.options import choices
from attncli.errors import UsageError


def candidates(place: Cursor) -> list[Candidate]:
    """Return what could stand at a place, in the order in which it is offered."""
    if place.parameter is not None:
        offered: Iterable[Candidate] = _values(place)
    elif place.names_option:
        offered = _options(place)
    else:
        offered = _commands(place.command) if is_group(place.command) and not place.before else ()
    fitting = (one for one in offered if one.value.startswith(place.value))
    return [
        one._replace(value=place.before + one.value, form=place.before + (one.form or one.value + "…"))
        for one in dict.fromkeys(fitting)
    ]


def _commands(group: Any) -> Iterator[Candidate]:
    for name in group.list_commands(None):
        yield Candidate(name, group.purpose(name))


def _options(place: Cursor) -> Iterator[Candidate]:
    for parameter in place.command.params:
        if parameter.param_type_name == "option" and (parameter.multiple or parameter.name not in place.given):
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name.startswith("--"):
                    yield Candidate(name, _first_sentence(parameter.help or ""))
    yield Candidate("--help", "Show what the command does.")


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[^.])\. |; |: ", text, maxsplit=1)[0].rstrip(".")


def _values(place: Cursor) -> Iterator[Candidate]:
    """Yield the values of a parameter: its choices, or what the parts of its metavar stand for."""
    parameter = place.parameter
    for choice in choices(parameter):
        yield Candidate(choice)
    if parameter.name in _BY_NAME:
        yield from _BY_NAME[parameter.name](place)
        return
    for part in (parameter.metavar or "").split("|"):
        if part in _BY_METAVAR:
            yield from _BY_METAVAR[part](place)
        elif part.islower():
            yield Candidate(part)


def _devices(_: Cursor) -> Iterator[Candidate]:
    yield from (Candidate("cpu"), Candidate("cuda"), Candidate("mps"))


def _masks(place: Cursor) -> Iterator[Candidate]:
    from attncli.cli.completion.expression import mask_expressions

    # Only `attn mask show` draws a bias beside a mask.
    yield from mask_expressions(place.value, allow_bias=place.command.name == "show")


def _files(*endings: str) -> Callable[[Cursor], Iterator[Candidate]]:
    """Return what yields the files with one of some endings, or all of them, and folders to go on into."""

    def offered(place: Cursor) -> Iterator[Candidate]:
        from attncli.cli.completion.paths import files

        yield from files(place.value, endings, place.has_home)

    return offered


def _mask_files(place: Cursor) -> Iterator[Candidate]:
    from attncli.cli.completion.paths import files
    from attncli.masks.notation import ENDINGS

    takes_function = place.parameter.param_type_name == "argument"  # `attn mask show file.py:function`
    for one in files(place.value, (*ENDINGS, ".py") if takes_function else ENDINGS, place.has_home):
        yield one._replace(value=one.value + ":", goes_on=True) if one.value.endswith(".py") else one


def _outputs(place: Cursor) -> Iterator[Candidate]:
    """Yield files with the endings of the formats that the command writes."""
    formats = next((choices(one) for one in place.command.params if one.name == "format_"), ())
    if formats:
        yield from _files(*("." + name.replace("table", "txt") for name in formats))(place)
    else:  # what `attn mask convert` writes
        from attncli.masks.notation import ENDINGS

        yield from _files(*ENDINGS)(place)


def _models(place: Cursor) -> Iterator[Candidate]:
    from attncli.cli.completion.models import cached_models
    from attncli.cli.completion.paths import folders_with

    for name in cached_models():
        yield Candidate(name, "in the local cache")
    yield from folders_with("config.json", place.value, place.has_home)


def _tokenizers(place: Cursor) -> Iterator[Candidate]:
    from attncli.cli.completion.paths import files, folders_with

    yield from folders_with("tokenizer.json", place.value, place.has_home)
    yield from files(place.value, (".json",), place.has_home)


def _revisions(place: Cursor) -> Iterator[Candidate]:
    from attncli.cli.completion.models import cached_revisions

    for name in _given_models(place)[:1]:
        yield from map(Candidate, cached_revisions(name))


def _given_models(place: Cursor) -> list[str]:
    """Return the checkpoints on the line, or the one that stands where the option takes it from there."""
    for parameter in place.command.params:
        if parameter.name == "model" and "model" not in place.given and parameter.envvar:
            return _standing_models()
    return place.given.get("model", [])


def _standing_models() -> list[str]:
    from attncli.cli.config import deciding, settings

    try:
        standing = deciding(settings()).get("model")
    except UsageError:
        return []  # the run will say what is wrong with a file; a TAB is no place for it
    return [str(standing.value)] if standing and standing.value else []


def _topics(place: Cursor) -> Iterator[Candidate]:
    """Yield what `attn help` can tell of: a topic, a command, or one of a group's commands."""
    from attncli.cli.help.topics import TOPICS

    command = place.root
    before = place.given.get(place.parameter.name, [])
    for name in before:
        command = command.get_command(None, name) if is_group(command) else None
    if not before:
        yield from (Candidate(name, one.purpose) for name, one in TOPICS.items())
    if is_group(command):
        yield from _commands(command)


def _layers(place: Cursor) -> Iterator[Candidate]:
    yield from _indices(place, "layer", _sizes(place).layers)


def _heads(place: Cursor) -> Iterator[Candidate]:
    yield from _indices(place, "head", _sizes(place).heads)


def _sizes(place: Cursor) -> Any:
    """Return how many layers and heads there are on the line: a checkpoint's, or the toy layer's."""
    from attncli.cli.completion.models import Sizes, sizes

    models = _given_models(place)
    if models:
        return sizes(models[0], place.given.get("revision", ["main"])[-1])
    if "from_" in place.given or not any(parameter.name == "num_heads" for parameter in place.command.params):
        return Sizes(0, 0)
    heads = place.given.get("num_heads", ["4"])[-1]
    return Sizes(1, int(heads) if re.fullmatch("[0-9]{1,4}", heads) else 0)


def _indices(place: Cursor, what: str, count: int) -> Iterator[Candidate]:
    """Yield the indices that could follow in `0,3,-1` or end a range `2-4`."""
    match = re.fullmatch(r"((?:.*,)?)((?:([0-9]{1,9})-)?)[0-9]*", place.value)
    if match is None:
        return
    first = int(match[3]) if match[3] else 0
    for index in range(first, count):
        yield Candidate(f"{match[1]}{match[2]}{index}", f"{what} {index} of {count}")
    yield Candidate("all", f"every {what}")


def _list_of(names: Callable[[], Iterable[str]]) -> Callable[[Cursor], Iterator[Candidate]]:
    """Return what yields the names that could follow in a list with commas, each once."""

    def offered(place: Cursor) -> Iterator[Candidate]:
        before, comma, _ = place.value.rpartition(",")
        taken = set(before.split(","))
        for name in names():
            if name not in taken:
                yield Candidate(before + comma + name)

    return offered


def _parts() -> Iterable[str]:
    from attncli.trace.view import PARTS

    return PARTS


def _codes() -> Iterable[str]:
    from attncli.masks.findings import CODES

    return CODES


# By the parameter's name, where its metavar is too general.
_BY_NAME: dict[str, Callable[[Cursor], Iterator[Candidate]]] = {
    "device": _devices,
    "from_": _files(".safetensors"),
    "output": _outputs,
    "revision": _revisions,
}
_BY_METAVAR: dict[str, Callable[[Cursor], Iterator[Candidate]]] = {
    "CODES": _list_of(_codes),
    "EXPR": _masks,
    "FILE": _mask_files,
    "FILE.safetensors": _files(".safetensors"),
    "HEADS": _heads,
    "LAYERS": _layers,
    "MODEL": _models,
    "NAME_OR_FOLDER": _models,
    "PARTS": _list_of(_parts),
    "PATH": _files(),
    "TOKENIZER": _tokenizers,
    "TOPIC": _topics,
}
