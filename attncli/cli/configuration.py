"""Configuration files: the working directory's `pyproject.toml`, and `attncli.toml` among the user's own.

They are looked for in these two places alone, in no parent folder: what a run does can be seen where it is started.
"""

from __future__ import annotations

import os
from typing import Any

from attncli.errors import UsageError
from attncli.files import MOST_SETTINGS, read_file

PROJECT = "pyproject.toml"

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # as some editors of Windows save; no TOML, which has to be said


def configured() -> list[tuple[str, dict[str, Any] | None]]:
    """Return both files, the nearer one first, each with what it says; None where there is no file, or no table.

    Raises:
        UsageError: a file cannot be read, or is no TOML.
    """
    user = user_file()
    content = _content(user)
    return [(PROJECT, _project()), (user, None if content is None else _parsed(content, user))]


def user_file() -> str:
    """Return the path of the user's own file, by the XDG base directory specification, which ignores a relative one."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = home if os.path.isabs(home) else os.path.expanduser("~/.config")
    return os.path.join(folder, "attncli", "attncli.toml")


def _project() -> dict[str, Any] | None:
    content = _content(PROJECT)
    # Most projects say nothing about attncli; parsing takes longer than all of the rest.
    if content is None or (b"attncli" not in content and not content.startswith(_UTF_16)):
        return None
    tools = _parsed(content, PROJECT).get("tool")
    table = tools.get("attncli") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
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
