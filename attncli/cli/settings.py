"""Settings of options: environment variables, and two configuration files.

A flag goes before the environment, that before the working directory's `pyproject.toml`, that before `attncli.toml`
among the user's own, that before the default. The files are looked for in these two places alone, in no parent folder:
a run can be understood where it is started. `applicability` decides which settings a run ignores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from attncli.cli.groups import NOT_SETTABLE, dashed, declaration_of, options_of, variable
from attncli.cli.options import SETTABLE
from attncli.errors import UsageError
from attncli.text import did_you_mean, visible

# Options that run code of a checkpoint; a cloned repository must not be able to set them.
FLAGS_ALONE = ("trust-remote-code",)

PROJECT = "pyproject.toml"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # as some editors of Windows save; no TOML, which has to be said
_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}


@cache
def defaults() -> dict[str, Any]:
    """Return the default of every option that can be set; None depends on other options."""
    found = {}
    for group in SETTABLE:
        for name, annotation, _ in options_of(group):
            setting = getattr(declaration_of(annotation), "setting", NOT_SETTABLE)
            if setting is not NOT_SETTABLE:
                found[name] = setting
    return found


class Setting(NamedTuple):
    """Value of an option from outside of the command line.

    Attributes:
        name: of the option, in Python.
        value: text in the environment; empty or false, it restores the default.
        rank: 0 is the environment, 1 the working directory's file, 2 the user's own.
        place: the variable, or the path of the file.
    """

    name: str
    value: Any
    rank: int
    place: str

    @property
    def label(self) -> str:
        """Name of the setting in an error."""
        return f"'{dashed(self.name)}' in {self.place}" if self.rank else self.place

    @property
    def is_default(self) -> bool:
        """Whether it only restores the default."""
        return self.value == "" or (self.value is False and defaults()[self.name] is False)

    @property
    def unsets_offline(self) -> bool:
        """Whether a project would send a run to the network, from which its user may want to keep it."""
        return self.name == "offline" and self.value is False and self.place == PROJECT

    def text(self, kind: Any) -> str:
        """Return the value as on a command line.

        Args:
            kind: the type of the option's values; what is no number and no flag is text.

        Raises:
            UsageError: a file has a value of another type.
        """
        if self.rank:
            expected = kind if kind in _EXPECTED else str
            is_huge = isinstance(self.value, int) and abs(self.value) >= 2**63
            is_whole_float = expected is float and type(self.value) is int
            if (type(self.value) is not expected and not is_whole_float) or is_huge:
                raise UsageError(f"{self.label}: expected {_EXPECTED[expected]}")
        return str(self.value)


def settings() -> dict[str, list[Setting]]:
    """Return the settings of each option, by precedence.

    Raises:
        UsageError: a file cannot be read, is no TOML, or sets an option that it may not; or an option is retired.
    """
    for name in sorted(os.environ):
        if name.startswith("ATTN_") and (instead := _instead_of(name.removeprefix("ATTN_").lower())):
            raise UsageError(f"{name} is retired: {instead}")
    found = {
        name: [Setting(name, os.environ[variable(name)], 0, variable(name))]
        for name in defaults()
        if variable(name) in os.environ
    }
    for rank, (path, table) in enumerate(((PROJECT, _project_table()), (user_file(), _table(user_file()))), 1):
        for key, value in table.items():
            _check_key(key, path)
            name = key.replace("-", "_")
            found.setdefault(name, []).append(Setting(name, value, rank, path))
    return found


def deciding(found: Mapping[str, list[Setting]]) -> dict[str, Setting]:
    """Return the deciding setting of each option, also where that restores its default."""
    effective = {name: [one for one in values if not one.unsets_offline] for name, values in found.items()}
    return {name: values[0] for name, values in effective.items() if values}


def with_places(message: str, standing: Iterable[Setting]) -> str:
    """Return an error's message, and where the settings come from that it is about."""
    origins = []
    for one in standing:
        value = visible(str(one.value))
        # A message about a checkpoint says its name, others say the option's.
        words = [f"--{dashed(one.name)}", *([re.escape(value)] if one.name == "model" else [])]
        if re.search(rf"(?<![\w/])(?:{'|'.join(words)})(?![\w/-])", message):
            origins.append(f"--{dashed(one.name)} {value} comes from {one.label}")
    return f"{message} ({'; '.join(origins)})" if origins else message


def user_file() -> str:
    """Return the path of the user's own file, by the XDG base directory specification, which ignores a relative one."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = home if os.path.isabs(home) else os.path.expanduser("~/.config")
    return os.path.join(folder, "attncli", "attncli.toml")


def _project_table() -> dict[str, Any]:
    tools = _table(PROJECT, marker=b"attncli").get("tool")
    table = tools.get("attncli", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{PROJECT}: expected a table [tool.attncli]")
    return table


def _table(path: str, marker: bytes = b"") -> dict[str, Any]:
    """Return the content of a TOML file; empty where it does not exist, or does not contain the marker.

    Most projects say nothing about attncli, and parsing takes longer than all of the rest.
    """
    if not os.path.exists(path):
        return {}  # not there, or in somebody else's home folder
    from attncli.files import MOST_SETTINGS, read_file

    try:
        content = read_file(path, MOST_SETTINGS)
    except PermissionError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except OSError as error:
        raise UsageError(f"{path} {error}; expected a configuration file") from None
    if marker not in content and not content.startswith(_UTF_16):
        return {}
    import tomllib

    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def _instead_of(key: str) -> str | None:
    """Return the replacement of a retired option; None where it is not retired."""
    from attncli.cli.retired import RETIRED

    return RETIRED.get(key.replace("_", "-"))


def _check_key(key: str, path: str) -> None:
    """Refuse a key of a file that is no option which can be set there."""
    names = [dashed(name) for name in defaults()]
    if instead := _instead_of(key):
        raise UsageError(f"{path}: '{key}' is retired: {instead}")
    if key.replace("_", "-") in FLAGS_ALONE:
        raise UsageError(f"{path}: '{key}' is a flag only; give --{dashed(key)} in each run")
    if key not in names:
        meant = did_you_mean(key, names) or f"; expected some of {', '.join(names)}"
        raise UsageError(f"{path}: unknown option '{key}'{meant}")
