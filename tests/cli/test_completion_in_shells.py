"""Completion typed for real: bash, zsh and fish in a terminal, and what `attn` is then run with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from shells import Shell, shell

pytestmark = pytest.mark.system


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    home: Path = tmp_path_factory.mktemp(request.param)
    (home / "trace.safetensors").touch()
    with shell(request.param, home, HF_HOME=str(home / "none")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ("attn insp\t--colorm\tvi\t", ["inspect", "--colormap", "viridis"]),
        ("attn inspect -m de\t--layer 0,1\tx", ["inspect", "-m", "demo", "--layer", "0,1", "x"]),
        ("attn inspect --from tr\tx", ["inspect", "--from", "trace.safetensors", "x"]),
    ],
)
def test_a_tab_finishes_the_word(typed: Shell, keys: str, arguments: list[str]) -> None:
    assert typed.ran(keys) == arguments
