"""Standing values: what an option is in every run that does not give it, by the environment or a configuration file.

A flag goes before the environment, that before the working directory's file, that before the user's own, that before
the default. A standing value that does not apply to a run is left out of it, for nobody asked for it there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import typer

from attncli.cli.configuration import PROJECT, configured
from attncli.errors import UsageError
from attncli.text import visible

# Every option that takes standing values, by the name of its parameter, and what it is where nobody says; None is
# what depends on the rest. Each is a preference of a person, a project or a machine, and none is a question.
DEFAULTS: dict[str, str | int | bool | None] = {
    "model": None,
    "revision": None,
    "dtype": None,
    "device": "cpu",
    "device_map": None,
    "engine": "auto",
    "offline": False,
    "d_model": 32,
    "num_heads": 4,
    "init": "scaled",
    "positions": "none",
    "seed": 0,
    "rng": "numpy",
    "precision": None,
    "colormap": "viridis",
    "color": "auto",
    "width": None,
}
_OF_CHECKPOINTS = ("revision", "dtype", "device", "device_map", "engine")
_OF_THE_TOY_LAYER = ("d_model", "num_heads", "init", "positions", "seed", "rng")
_OF_SOURCES = ("model", "offline", *_OF_CHECKPOINTS, *_OF_THE_TOY_LAYER)

# What runs code that a checkpoint brings, or could; a repository that somebody cloned must not be able to ask for it.
FLAGS_ALONE = ("trust-remote-code", "allow-pickle")

# What a file has to hold, by the type of the option's values.
_EXPECTED: dict[Any, str] = {str: "a text in quotes", int: "a whole number", bool: "true or false"}

_TAKEN = "attncli.cli.standing"  # where a run's context keeps them


class Standing(NamedTuple):
    """A value that stands somewhere.

    Attributes:
        name: of the parameter.
        value: as it stands there, text in the environment; empty or false, it says that the default is wanted.
        rank: 0 is the environment, 1 the nearer file, 2 the other one.
        place: the variable, or the path of the file.
    """

    name: str
    value: Any
    rank: int
    place: str

    @property
    def label(self) -> str:
        """What it is called in an error."""
        return self.place if self.rank == 0 else f"'{option(self.name)}' in {self.place}"

    @property
    def is_default(self) -> bool:
        """Whether it only hides what stands further away."""
        return self.value == "" or (self.value is False and DEFAULTS[self.name] is False)

    @property
    def is_lifting(self) -> bool:
        """Whether a project would send a run to the network, from which its user may want to keep it."""
        return self.name == "offline" and self.value is False and self.place == PROJECT


def option(name: str) -> str:
    """Return what a parameter is called in a file, and behind `--`."""
    return name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a parameter."""
    return f"ATTN_{name.upper()}"


def standing_values() -> dict[str, list[Standing]]:
    """Return all values of each parameter that has some, the one that is in force first.

    Raises:
        UsageError: a file cannot be read, is no TOML, or says what no file can.
    """
    said = {name: os.environ[variable(name)] for name in DEFAULTS if variable(name) in os.environ}
    found = {name: [Standing(name, value, 0, variable(name))] for name, value in said.items()}
    for rank, (path, table) in enumerate(configured(), 1):
        for key, value in (table or {}).items():
            _check_key(key, path)
            name = key.replace("-", "_")
            found.setdefault(name, []).append(Standing(name, value, rank, path))
    return found


def decisive(found: Mapping[str, list[Standing]]) -> dict[str, Standing]:
    """Return what decides about each parameter, if only that it has its default."""
    return {
        name: first
        for name, values in found.items()
        if (first := next((one for one in values if not one.is_lifting), None))
    }


def in_force(found: Mapping[str, list[Standing]]) -> dict[str, Standing]:
    """Return the value of each parameter that has one beside its default."""
    return {name: one for name, one in decisive(found).items() if not one.is_default}


def unfit(standing: Mapping[str, Standing], given: Mapping[str, Any]) -> dict[str, str]:
    """Return the standing values that a run leaves out, each with the reason.

    Args:
        standing: what is in force, by the name of the parameter.
        given: the options of the command line, by the name of the parameter.
    """
    out: dict[str, str] = {}
    if "precision" in standing and _is_of_programs(given):
        out["precision"] = "does not apply to what programs read"
    if "from_" in given:
        return out | dict.fromkeys(_OF_SOURCES, "does not apply to --from, whose attention is already computed")
    if "model" in standing and (flags := _toy_flags(given)):
        out["model"] = f"does not apply to the toy layer, which --{option(flags[0])} asks for"
    model = None if "model" in out else standing.get("model")
    if "model" in given or model is not None:
        out |= dict.fromkeys(_OF_THE_TOY_LAYER, "does not apply to a checkpoint")
    else:
        out |= dict.fromkeys(_OF_CHECKPOINTS, "does not apply to the toy layer")
    if "revision" in standing and ("model" in given or (model and model.rank != standing["revision"].rank)):
        out["revision"] = "is of another model: it stands in another place than the model"
    for one, other in (("device", "device_map"), ("device_map", "device")):
        is_nearer = one in standing and other in standing and standing[one].rank < standing[other].rank
        if one in given or is_nearer:
            out[other] = f"gives way to {option(one)}"
    if "verify" in given and "engine" in standing and standing["engine"].value == "transformers":
        out["engine"] = "does not apply to --verify, which runs both engines"
    if given.get("project") == "none" and not given.get("out_proj"):
        out["init"] = "does not apply to --project none, which has no weights"
    return {name: why for name, why in out.items() if name in standing}


def take_up(context: typer.Context, parameters: Iterable[Any]) -> None:
    """Put the standing values under the options that the command line of a run leaves alone.

    Raises:
        UsageError: a file cannot be read, is no TOML, or says what no file can.
        typer.BadParameter: a value is none that the option takes.
    """
    options = {parameter.name: parameter for parameter in parameters if parameter.envvar}
    if not options:
        return
    given = {name: context.params[name] for name in context.params if is_typed(name, context)}
    standing = {name: one for name, one in in_force(standing_values()).items() if name in options}
    left_out = given.keys() | unfit(standing, given).keys()
    taken = {name: one for name, one in standing.items() if name not in left_out}
    for name, one in taken.items():
        context.params[name] = converted(one, options[name], context)
    context.meta[_TAKEN] = taken


def is_typed(name: str, context: typer.Context) -> bool:
    """Return whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def converted(standing: Standing, parameter: Any, context: typer.Context) -> Any:
    """Return a standing value as the option would have it.

    Raises:
        UsageError: it has another type than the option's values.
        typer.BadParameter: it is none of them.
    """
    value = standing.value
    if standing.rank:
        kind = parameter.type_descriptor.annotation
        expected = _EXPECTED.get(kind, _EXPECTED[str])
        is_huge = isinstance(value, int) and abs(value) >= 2**63
        if is_huge or type(value) is not (kind if kind in _EXPECTED else str):
            raise UsageError(f"{standing.label}: expected {expected}")
        value = str(value) if kind is int else value
    try:
        return parameter.process_value(context, [value] if parameter.multiple else value)
    except typer.BadParameter as error:
        error.param_hint = standing.label
        raise


def with_places(message: str, context: typer.Context) -> str:
    """Return an error's message, and where the standing values come from that it is about."""
    said = []
    for name, one in context.meta.get(_TAKEN, {}).items():
        value = visible(str(one.value))
        # A message about a checkpoint says its name, others say the option's.
        words = [f"--{option(name)}", *([re.escape(value)] if name in ("model", "revision") else [])]
        if re.search(rf"(?<![\w/])(?:{'|'.join(words)})(?![\w/-])", message):
            said.append(f"--{option(name)} {value} comes from {one.label}")
    return f"{message} ({'; '.join(said)})" if said else message


def _check_key(key: str, path: str) -> None:
    """Refuse a key of a file that is none of an option with standing values."""
    known = [option(name) for name in DEFAULTS]
    if key in known:
        return
    if key.replace("_", "-") in FLAGS_ALONE:
        raise UsageError(
            f"{path}: '{key}' is read from no file; it takes a flag, --{key.replace('_', '-')}, in each run"
        )
    import difflib

    near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    raise UsageError(
        f"{path}: there is no '{key}' to configure; "
        + (f"did you mean {near[0]}?" if near else f"expected some of {', '.join(known)}")
    )


def _toy_flags(given: Mapping[str, Any]) -> list[str]:
    """Return the options of the command line that only the toy layer has."""
    from attncli.sources.options import EngineOptions, ToyOptions

    of_checkpoints = {field.name for field in fields(EngineOptions)}
    return [field.name for field in fields(ToyOptions) if field.name in given and field.name not in of_checkpoints]


def _is_of_programs(given: Mapping[str, Any]) -> bool:
    """Return whether the output is for programs, to which every digit counts."""
    from attncli.formats import DRAWN

    path = given.get("resume", given.get("output", Path()))
    # A device has no ending, and gets the table.
    chosen = given.get("format_") or path.suffix.lower().removeprefix(".") or "table"
    return chosen not in DRAWN and chosen != "txt"
