"""What options are set to where a run does not give them: environment variables, and two configuration files.

A flag goes before the environment, that before the working directory's `pyproject.toml`, that before `attncli.toml`
among the user's own, that before the default. The files are looked for in these two places alone, in no parent folder:
what a run does can be seen where it is started. A value that does not apply to a run is left out of it, since nobody
asked for it there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from attncli.errors import UsageError
from attncli.files import MOST_SETTINGS, read_file
from attncli.text import did_you_mean, visible

# Every option that can be set, by its name in Python, and what it is where nobody says; None depends on the rest.
# Each is a preference of a person, a project or a machine, and none is a question.
DEFAULTS: dict[str, str | int | bool | None] = {
    "model": None,
    "dtype": None,
    "device": "cpu",
    "device_map": None,
    "engine": "auto",
    "offline": False,
    "jobs": "auto",
    "d_model": 32,
    "num_heads": 4,
    "init": "scaled",
    "positions": "none",
    "seed": 0,
    "rng": "numpy",
    "precision": None,
    "colormap": "viridis",
    "ramp": "log",
    "color": "auto",
    "width": None,
}

# What runs code that a checkpoint brings; a repository that somebody cloned must not be able to ask for it.
FLAGS_ALONE = ("trust-remote-code",)

PROJECT = "pyproject.toml"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # as some editors of Windows save; no TOML, which has to be said
_EXPECTED = {int: "a whole number", bool: "true or false", str: "a text in quotes"}


class Setting(NamedTuple):
    """What an option is set to somewhere.

    Attributes:
        name: of the option, in Python.
        value: text in the environment; empty or false, it says that the default is wanted.
        rank: 0 is the environment, 1 the working directory's file, 2 the user's own.
        place: the variable, or the path of the file.
    """

    name: str
    value: Any
    rank: int
    place: str

    @classmethod
    def of_variable(cls, name: str) -> Setting:
        """Return what an option is set to in the environment."""
        return cls(name, os.environ[variable(name)], 0, variable(name))

    @property
    def label(self) -> str:
        """What it is called in an error."""
        return f"'{dashed(self.name)}' in {self.place}" if self.rank else self.place

    @property
    def is_default(self) -> bool:
        """Whether it only hides what is set further away."""
        return self.value == "" or (self.value is False and DEFAULTS[self.name] is False)

    @property
    def is_lifting(self) -> bool:
        """Whether a project would send a run to the network, from which its user may want to keep it."""
        return self.name == "offline" and self.value is False and self.place == PROJECT

    def text(self, kind: Any) -> str:
        """Return the value as a command line would have it.

        Args:
            kind: the type of the option's values; what is no number and no flag is text.

        Raises:
            UsageError: a file has a value of another type.
        """
        if self.rank:
            wanted = kind if kind in _EXPECTED else str
            is_huge = isinstance(self.value, int) and abs(self.value) >= 2**63
            if type(self.value) is not wanted or is_huge:
                raise UsageError(f"{self.label}: expected {_EXPECTED[wanted]}")
        return str(self.value)


def dashed(name: str) -> str:
    """Return what an option is called in a file, and behind `--`."""
    return name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of an option."""
    return f"ATTN_{name.upper()}"


def settings() -> dict[str, list[Setting]]:
    """Return what each option is set to, the setting that goes before the others first.

    Raises:
        UsageError: a file cannot be read, is no TOML, or says what no file can.
    """
    found = {name: [Setting.of_variable(name)] for name in DEFAULTS if variable(name) in os.environ}
    for rank, (path, table) in enumerate(((PROJECT, _project()), (user_file(), _user())), 1):
        for key, value in table.items():
            _check_key(key, path)
            name = key.replace("-", "_")
            found.setdefault(name, []).append(Setting(name, value, rank, path))
    return found


def deciding(found: Mapping[str, list[Setting]]) -> dict[str, Setting]:
    """Return what decides about each option, if only that it has its default."""
    effective = {name: [one for one in values if not one.is_lifting] for name, values in found.items()}
    return {name: values[0] for name, values in effective.items() if values}


def default_map() -> dict[str, Setting]:
    """Return what the files set, where the environment leaves it to them: what Click takes before a default.

    Raises:
        UsageError: see `settings`.
    """
    return {name: one for name, one in deciding(settings()).items() if one.rank and not one.is_default}


def unfit(standing: Mapping[str, Setting], typed: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a run leaves out, each with the reason.

    Args:
        standing: what is in force, by the name of the option.
        typed: the options of the command line, by their name.
    """
    if not standing:
        return {}
    from attncli.checkpoints.options import EngineOptions, ToyOptions

    of_the_toy_layer, of_checkpoints = ({field.name for field in fields(one)} for one in (ToyOptions, EngineOptions))
    out: dict[str, str] = {}
    if "precision" in standing and _is_of_programs(typed):
        out["precision"] = "does not apply to what programs read"
    if "from_" in typed:
        computing = ("model", "jobs", *of_the_toy_layer, *of_checkpoints)
        return out | dict.fromkeys(computing, "does not apply to --from, whose attention is already computed")
    if flags := [name for name in typed if name in of_the_toy_layer - of_checkpoints]:
        out["model"] = f"does not apply to the toy layer, which --{dashed(flags[0])} asks for"
    model = None if "model" in out else standing.get("model")
    if "model" in typed or model is not None:
        out |= dict.fromkeys(of_the_toy_layer - of_checkpoints, "does not apply to a checkpoint")
    else:
        out |= dict.fromkeys(of_checkpoints - of_the_toy_layer, "does not apply to the toy layer")
    for one, other in (("device", "device_map"), ("device_map", "device")):
        is_nearer = one in standing and other in standing and standing[one].rank < standing[other].rank
        if one in typed or is_nearer:
            out[other] = f"gives way to {dashed(one)}"
    if typed.get("project") == "none" and not typed.get("out_proj"):
        out["init"] = "does not apply to --project none, which has no weights"
    return {name: why for name, why in out.items() if name in standing}


def with_places(message: str, standing: Mapping[str, Setting]) -> str:
    """Return an error's message, and where the settings come from that it is about."""
    origins = []
    for name, one in standing.items():
        value = visible(str(one.value))
        # A message about a checkpoint says its name, others say the option's.
        words = [f"--{dashed(name)}", *([re.escape(value)] if name == "model" else [])]
        if re.search(rf"(?<![\w/])(?:{'|'.join(words)})(?![\w/-])", message):
            origins.append(f"--{dashed(name)} {value} comes from {one.label}")
    return f"{message} ({'; '.join(origins)})" if origins else message


def user_file() -> str:
    """Return the path of the user's own file, by the XDG base directory specification, which ignores a relative one."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = home if os.path.isabs(home) else os.path.expanduser("~/.config")
    return os.path.join(folder, "attncli", "attncli.toml")


def _user() -> dict[str, Any]:
    content = _content(user_file())
    return {} if content is None else _parsed(content, user_file())


def _project() -> dict[str, Any]:
    content = _content(PROJECT)
    # Most projects say nothing about attncli; parsing takes longer than all of the rest.
    if content is None or (b"attncli" not in content and not content.startswith(_UTF_16)):
        return {}
    tools = _parsed(content, PROJECT).get("tool")
    table = tools.get("attncli", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{PROJECT}: expected a table [tool.attncli]")
    return table


def _content(path: str) -> bytes | None:
    if not os.path.exists(path):
        return None  # not there, or in somebody else's home folder
    try:
        return read_file(path, MOST_SETTINGS)
    except PermissionError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except OSError as error:
        raise UsageError(f"{path} {error}; expected a configuration file there, or nothing") from None


def _parsed(content: bytes, path: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no valid TOML: {error}") from None


def _check_key(key: str, path: str) -> None:
    """Refuse a key of a file that is no option which can be set there."""
    names = [dashed(name) for name in DEFAULTS]
    if dashed(key) in FLAGS_ALONE:
        raise UsageError(f"{path}: '{key}' is read from no file; it takes a flag, --{dashed(key)}, in each run")
    if key not in names:
        meant = did_you_mean(key, names) or f"; expected some of {', '.join(names)}"
        raise UsageError(f"{path}: there is no '{key}' to configure{meant}")


def _is_of_programs(typed: Mapping[str, Any]) -> bool:
    """Return whether the output is for programs, to which every digit counts."""
    from attncli.formats import DRAWN

    path = Path(typed.get("output", ""))
    # A device has no ending, and gets the table.
    chosen = typed.get("format_") or path.suffix.lower().removeprefix(".") or "table"
    return chosen not in DRAWN and chosen != "txt"
