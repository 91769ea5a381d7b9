"""What a TAB may put where a line ends: a command, an option, or a value by what the parameter's metavar says.

Typer's parser reads the line. Its completion of values would check every option of the command first, which takes
longer than all of this, and knows no value that goes on, as a mask does. A function imports what its values need.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import typer

from attncli.errors import LoadError, UsageError
from attncli.masks.notation import ENDINGS, NOTATION

_HERE = "\0"  # stands in a line where the cursor is; no word of a shell holds it


class Candidate(NamedTuple):
    """One thing that could stand there: all of it, a few words on it, and whether more has to follow."""

    value: str
    help: str = ""
    goes_on: bool = False


class Cursor(NamedTuple):
    """Where a line ends.

    Attributes:
        context: of the command that is named last.
        given: the values on the line, by the name of the parameter, as Typer's parser returns them.
        parameter: whose value is being typed.
        value: as far as it is typed.
        has_home: whether a ~ that it begins with is somebody's home folder.
    """

    context: Any
    given: dict[str, Any]
    parameter: Any = None
    value: str = ""
    has_home: bool = False


def candidates(root: Any, words: Sequence[str], has_home: bool = True) -> list[Candidate]:
    """Return what could stand in place of the last word, in the order in which it is offered.

    Args:
        root: the program's group of commands.
        words: what follows the program's name.
        has_home: whether a ~ that the last word begins with is somebody's home folder.
    """
    *before, typed = words
    is_dashed = typed.startswith("-") and "--" not in before
    kept = typed[: typed.find("=") + 1] if is_dashed else ""
    value = typed.removeprefix(kept)
    cursor = _cursor(root, [*before, kept + _HERE])
    if cursor is None:
        return []
    offered: Iterable[Candidate] = ()
    if is_dashed and getattr(cursor.parameter, "param_type_name", "argument") == "argument":
        offered = () if kept else _options(cursor)
    elif cursor.parameter is not None:
        offered = _values(cursor._replace(value=value, has_home=has_home and not kept))
    elif _is_group(cursor.context.command):
        offered = _commands(cursor.context.command)
    fitting = dict.fromkeys(one for one in offered if one.value.startswith(value))
    return [one._replace(value=kept + one.value) for one in fitting]


def _cursor(command: Any, words: list[str], name: str = "attn", parent: Any = None) -> Cursor | None:
    """Return where the mark stands among a command's words; None where they name a command that does not exist."""
    how = command.context_settings | {"resilient_parsing": True, "ignore_unknown_options": True}
    context = typer.Context(command, parent, name, **how)
    given, rest, _ = command.make_parser(context).parse_args(words)
    if _is_group(command) and rest[:1] not in ([], [_HERE]):
        inner_name, inner, rest = command.resolve_command(context, rest)
        return None if inner is None else _cursor(inner, rest, inner_name, context)
    holding = (one for one in command.params if _HERE in "".join(_words(given, one.name)))
    return Cursor(context, given, next(holding, None))


def _words(given: dict[str, Any], name: str) -> list[str]:
    """Return the values of a parameter on the line, which are none for a flag."""
    value = given.get(name)
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _commands(group: Any) -> Iterator[Candidate]:
    for name in group.list_commands(None):
        yield Candidate(name, group.purpose(name))


def _options(cursor: Cursor) -> Iterator[Candidate]:
    for parameter in cursor.context.command.get_params(cursor.context):
        if parameter.param_type_name == "option" and (parameter.multiple or parameter.name not in cursor.given):
            first_sentence = re.split(r"(?<=[^.])\. |; |: ", parameter.help or "", maxsplit=1)[0].rstrip(".")
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name.startswith("--"):
                    yield Candidate(name, first_sentence)


def _values(cursor: Cursor) -> Iterator[Candidate]:
    """Yield the values of a parameter: its choices, and what its name or the parts of its metavar stand for."""
    parameter = cursor.parameter
    for choice in parameter.shell_complete(cursor.context, ""):
        yield Candidate(choice.value)
    name = parameter.opts[0]
    for part in [name] if name in VALUES else (parameter.metavar or "").split("|"):
        if part in VALUES:
            yield from VALUES[part](cursor)
        elif part.islower():
            yield Candidate(part)


def _indices(what: str, cursor: Cursor) -> Iterator[Candidate]:
    """Yield the layers or heads that could follow in `0,3,-1` or end a range `2-4`."""
    match = re.fullmatch(r"((?:.*,)?)((?:([0-9]{1,9})-)?)[0-9]*", cursor.value)
    if match is None:
        return
    count = _sizes(cursor)[what]
    for index in range(int(match[3] or 0), count):
        yield Candidate(f"{match[1]}{match[2]}{index}", f"{what} {index} of {count}")
    yield Candidate("all", f"every {what}")


def _listed(cursor: Cursor, names: Iterable[str]) -> Iterator[Candidate]:
    """Yield the names that could follow in a list with commas, each once."""
    before, comma, _ = cursor.value.rpartition(",")
    for name in names:
        if name not in before.split(","):
            yield Candidate(before + comma + name)


def _columns(cursor: Cursor) -> Iterator[Candidate]:
    """Yield the names of the fields or columns of the files on the line, several for what takes several."""
    from attncli.corpus.reading import names_of
    from attncli.errors import AttnError

    try:
        names = names_of(*_words(cursor.given, "file"))
    except AttnError:
        return
    names = [name for name in names if name.isprintable() and "," not in name]
    yield from _listed(cursor, names) if cursor.parameter.metavar == "NAMES" else map(Candidate, names)


def _parts(cursor: Cursor) -> Iterator[Candidate]:
    from attncli.trace.view import PARTS

    return _listed(cursor, PARTS)


def _metrics(cursor: Cursor) -> Iterator[Candidate]:
    from attncli.analysis.metric_names import DETECTORS, NAMES

    return _listed(cursor, [*NAMES, *(DETECTORS if "induction" in cursor.given else ())])


def _codes(cursor: Cursor) -> Iterator[Candidate]:
    from attncli.masks.findings import CODES

    return _listed(cursor, CODES)


def _topics(cursor: Cursor) -> Iterator[Candidate]:
    """Yield what `attn help` can tell of: a topic, a command, or one of a group's commands."""
    from attncli.cli.help import topics

    command = cursor.context.find_root().command
    *before, _ = _words(cursor.given, cursor.parameter.name)
    for name in before:
        command = command.get_command(None, name) if _is_group(command) else None
    if not before:
        yield from (Candidate(name, purpose) for name, purpose in topics())
    if _is_group(command):
        yield from _commands(command)


# --- files and folders -------------------------------------------------------------------------------------

_MOST = 1000  # entries of a folder that are looked into; a TAB must stay quick in a folder of a million files


def _files(endings: tuple[str, ...], cursor: Cursor) -> Iterator[Candidate]:
    """Yield the files with one of the endings (all, if there are none), and the folders to go on into."""
    for typed, path in _paths(cursor):
        if os.path.isdir(path):
            yield Candidate(typed + "/", "folder", goes_on=True)
        elif not endings or path.lower().endswith(endings):
            yield Candidate(typed)


def _mask_files(cursor: Cursor) -> Iterator[Candidate]:
    yield from _files(ENDINGS, cursor)
    if cursor.parameter.param_type_name == "argument":  # `attn mask show file.py:function`
        yield from (Candidate(one.value + ":", goes_on=True) for one in _files((".py",), cursor) if not one.goes_on)


def _outputs(cursor: Cursor) -> Iterator[Candidate]:
    """Yield files with the endings of the formats that the command writes; `attn mask convert` writes masks."""
    formats = (one for one in cursor.context.command.params if "--format" in one.opts)
    choices = [one.value for option in formats for one in option.shell_complete(cursor.context, "")]
    return _files(tuple("." + name.replace("table", "txt") for name in choices) or ENDINGS, cursor)


def _folders_with(
    names: Sequence[str], cursor: Cursor, inner: Callable[[Path], Sequence[Path]] = lambda _: ()
) -> Iterator[Candidate]:
    """Yield the folders that hold a file of one of these names, and those to go on into.

    The latter are those with such a folder directly inside; where there is neither, all of them.

    Args:
        names: of the files.
        cursor: where the line ends.
        inner: returns the folders inside a folder that may be meant by it; where there is one, it is.
    """
    others, found = [], False
    for typed, path in _paths(cursor):
        held = next((name for name in names if os.path.isfile(os.path.join(path, name))), None)
        if held is not None:
            found = True
            yield Candidate(typed, f"holds a {held}")
        elif os.path.isdir(path) and len(meant := inner(Path(path))) == 1:
            found = True
            yield Candidate(typed, f"holds {meant[0].name}")
        elif any(os.path.isfile(os.path.join(path, one, name)) for one in _names(path) for name in names):
            found = True
            yield Candidate(typed + "/", "folder", goes_on=True)
        elif os.path.isdir(path):
            others.append(Candidate(typed + "/", "folder", goes_on=True))
    if cursor.value and not found:
        yield from others


def _paths(cursor: Cursor) -> Iterator[tuple[str, str]]:
    """Yield what begins as typed, as it would be typed and as it is opened, in the order of names."""
    cut = max(cursor.value.rfind("/"), cursor.value.rfind(os.sep)) + 1
    folder, begins = cursor.value[:cut], cursor.value[cut:]
    has_home = cursor.has_home and cursor.value.startswith("~")
    if has_home and not folder:
        return  # the name of a user, so far
    opened = os.path.expanduser(folder) if has_home else folder
    for name in sorted(_names(opened or ".")):
        is_hidden = name.startswith(".") and not begins.startswith(".")
        # A name with a line break or an escape sequence is not sent to a terminal.
        if name.startswith(begins) and name.isprintable() and not is_hidden:
            yield folder + name, opened + name


def _names(folder: str) -> list[str]:
    """Return what is in a folder, or nothing if it is none."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, _MOST)]
    except (OSError, ValueError):  # the latter for a name that the system cannot look up
        return []


# --- checkpoints on this machine ---------------------------------------------------------------------------

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


def _models(cursor: Cursor) -> Iterator[Candidate]:
    """Yield the model in the box, what models the hub's local cache has, folders that hold one, and GGUF files."""
    from attncli.checkpoints.folder import DEMO
    from attncli.checkpoints.nested import inner
    from attncli.checkpoints.suggestions import CONFIGS, cached

    yield Candidate(DEMO, "a small model in the box")
    yield from (Candidate(name, "in the local cache") for name in cached() if name.isprintable())
    yield from _folders_with(CONFIGS, cursor, inner)
    yield from (file for file in _files((".gguf",), cursor) if not file.goes_on)


def _tokenizers(cursor: Cursor) -> Iterator[Candidate]:
    yield from _folders_with(["tokenizer.json"], cursor)
    yield from _files((".json",), cursor)


def _revisions(cursor: Cursor) -> Iterator[Candidate]:
    """Yield the branches and tags of the model that the local cache knows."""
    from attncli.checkpoints.folder import repository

    refs = repository(_model(cursor)) / "refs"
    names = (path.relative_to(refs).as_posix() for path in refs.rglob("*") if path.is_file())
    yield from (Candidate(name) for name in sorted(names) if name.isprintable())


def _sizes(cursor: Cursor) -> dict[str, int]:
    """Return how many layers and heads the checkpoint has, or the toy layer; 0 is unknown."""
    if model := next(iter(_words(cursor.given, "base")), _model(cursor)):
        return sizes(model, cursor.given.get("revision", "main"))
    names = {parameter.name for parameter in cursor.context.command.params}
    if "from_" in cursor.given or "num_heads" not in names:
        return {"layer": 0, "head": 0}
    heads = cursor.given.get("num_heads", "4")
    return {"layer": 1, "head": int(heads) if re.fullmatch("[0-9]{1,4}", heads) else 0}


def _model(cursor: Cursor) -> str:
    """Return the checkpoint on the line, or the one that the option is set to elsewhere; or nothing."""
    from attncli.cli.config import deciding, settings

    if given := _words(cursor.given, "model"):
        return given[0]
    if not any(parameter.name == "model" and parameter.envvar for parameter in cursor.context.command.params):
        return ""
    try:
        setting = deciding(settings()).get("model")
    except UsageError:
        return ""  # the run will say what is wrong with a file; a TAB is no place for it
    return str(setting.value) if setting else ""


def sizes(name: str, revision: str) -> dict[str, int]:
    """Return how many layers and heads a checkpoint has, from its config.json; 0 is unknown.

    Args:
        name: a folder, or a name in the local cache; an adapter has the layers of its base.
        revision: which one of the cache.
    """
    from attncli.checkpoints.folder import opened, snapshot, split_name
    from attncli.checkpoints.nested import base_of, is_adapter, taken
    from attncli.files import MOST_SETTINGS, read_file

    folder = Path(opened(name)).expanduser()
    try:
        if not folder.is_dir():
            repository, within = split_name(name)
            folder = snapshot(repository, revision) / within
        path = Path(taken(str(folder)))
        if is_adapter(path) and not (path / "config.json").is_file():
            base, revision = base_of(path)
            path = Path(base) if os.path.isdir(base) else snapshot(base, revision or "main")
        config = json.loads(read_file(path / "config.json", MOST_SETTINGS))
    except (LoadError, OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        config = {}
    parts = [config, *(config[name] for name in _NESTED if isinstance(config.get(name), dict))]
    return {"layer": _largest(parts, _LAYERS), "head": _largest(parts, _HEADS)}


def _largest(parts: list[dict[str, Any]], names: Iterable[str]) -> int:
    """Return the largest of what these names count, in a configuration and those nested in it for text."""
    values = [part.get(name) for part in parts for name in names]
    numbers = [len(value) if isinstance(value, list) else value for value in values]
    return max((number for number in numbers if isinstance(number, int) and 0 < number <= _LARGEST), default=0)


# --- masks -------------------------------------------------------------------------------------------------

_IN_ARGUMENTS = re.compile(r"(?P<before>.*?\b(?P<atom>[a-z_]\w*)\((?:[^()]*,)?\s*)[^(),\s]*", re.DOTALL)
_IN_FILE = re.compile(r"(?P<before>.*\bfile\(\s*(?P<quote>[\"']))(?P<typed>[^\"']*)", re.DOTALL)
_A_FILE = re.compile(r"""\bfile\(\s*("[^"]*"|'[^']*')\s*\)""")
_LAST_NAME = re.compile(r"(?P<before>.*?)(?:\b[A-Za-z_]\w*)?", re.DOTALL)


def _masks(cursor: Cursor) -> Iterator[Candidate]:
    """Yield the expressions that go on from what is typed by one name, sign or argument."""
    from attncli.masks.expressions import ATOMS

    typed = cursor.value
    inside, name = _IN_ARGUMENTS.fullmatch(typed), _LAST_NAME.fullmatch(typed)
    if in_file := _IN_FILE.fullmatch(typed):
        for one in _files(ENDINGS, cursor._replace(value=in_file["typed"], has_home=False)):
            if in_file["quote"] not in one.value:  # the language of masks has no way to write it
                closed = "" if one.goes_on else in_file["quote"] + ")"
                yield one._replace(value=in_file["before"] + one.value + closed)
    elif inside and inside["atom"] in ATOMS:
        before = inside["before"]
        for keyword in sorted(ATOMS[inside["atom"]].keywords):  # numbers are for the user to choose
            if f"{keyword}=" not in before.rpartition("(")[2]:
                yield Candidate(f"{before}{keyword}=", goes_on=True)
    elif typed.endswith(")") and _is_mask(typed):
        yield Candidate(typed, goes_on=_unclosed(typed) > 0)
    elif typed.endswith(" ") and _is_mask(typed):
        yield Candidate(typed + "& ", "and", goes_on=True)
        yield Candidate(typed + "| ", "or", goes_on=True)
    elif name and _is_mask(name["before"] + "full"):
        before = name["before"]
        for atom, kind in ATOMS.items():
            if not kind.is_bias or cursor.context.command.name in ("show", "run"):  # which know a bias beside a mask
                opened = "(" if "(" in kind.usage else ""
                yield Candidate(before + atom + opened, kind.usage, bool(opened) or _unclosed(before) > 0)
        yield Candidate(f'{before}file("', NOTATION["file"].usage, goes_on=True)


def _expectations(cursor: Cursor) -> Iterator[Candidate]:
    """Yield how the expression goes on, behind the pattern of its places if there is one."""
    from attncli.analysis.calls.expectations import split_pattern

    _, typed = split_pattern(cursor.value)
    before = cursor.value[: len(cursor.value) - len(typed)]
    yield from (one._replace(value=before + one.value) for one in _masks(cursor._replace(value=typed)))


def _is_mask(text: str) -> bool:
    """Return whether an expression is right but for the parentheses that are still open; its files are not read."""
    from attncli.masks.parser import parse

    without_files = _A_FILE.sub("full", text)
    try:
        parse(without_files + ")" * _unclosed(without_files), allow_files=False, allow_bias=True)
    except UsageError:
        return False
    return True


def _unclosed(text: str) -> int:
    return text.count("(") - text.count(")")


# By the name of an option whose metavar is too general, or by a part of the metavar.
VALUES: dict[str, Callable[[Cursor], Iterable[Candidate]]] = {
    "--by": _columns,
    "--column": _columns,
    "--device": lambda _: map(Candidate, ("cpu", "cuda", "mps")),
    "--field": _columns,
    "--from": partial(_files, (".safetensors",)),
    "--keep": _columns,
    "--output": _outputs,
    "--revision": _revisions,
    "CODES": _codes,
    "[PATTERN=]EXPR": _expectations,
    "DIR": partial(_files, ()),
    "EXPR": _masks,
    "FILE": _mask_files,
    "FILE.safetensors": partial(_files, (".safetensors",)),
    "HEADS": partial(_indices, "head"),
    "LAYERS": partial(_indices, "layer"),
    "METRICS": _metrics,
    "MODEL": _models,
    "NAME_OR_FOLDER": _models,
    "PARTS": _parts,
    "PATH": partial(_files, ()),
    "SCRIPT ARGS": partial(_files, ()),
    "TOKENIZER": _tokenizers,
    "TOPIC": _topics,
}
