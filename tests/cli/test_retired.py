"""Options that earlier versions had: each is a usage error that says what to use instead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attncli.cli.retired import RETIRED


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_option_says_what_to_use_instead(name: str, attn: Callable[..., Any]) -> None:
    *command, option = ["help", *name.split()][-2:]
    ran = attn(*command, f"--{option}=1")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"attn: --{option} is retired: {RETIRED[name]}; see attn {command[0]} --help\n"


def test_a_retired_setting_says_so_too(
    attn: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = attn("inspect", "time flies", ATTN_REVISION="abc")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"attn: ATTN_REVISION is retired: {RETIRED['revision']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.attncli]\nrevision = "abc"\n')
    ran = attn("inspect", "time flies")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("attn: pyproject.toml: 'revision' is retired: ")
