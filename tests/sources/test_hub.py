"""A checkpoint that comes over the network: from a hub of our own, on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import NAME, Hub
from running import on_terminal, program, text_shown


@pytest.fixture
def online(tiny_llama: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A hub with one checkpoint, whose weights take their time; the environment of a program that asks it."""
    with Hub({NAME: Path(tiny_llama)}, has_storage=False, pause=0.3) as hub:
        yield hub.environment | {"HF_HOME": str(tmp_path)}


def test_a_download_shows_its_name_and_size_on_a_terminal_and_is_there_afterwards(
    online: dict[str, str], tiny_llama: str, tmp_path: Path
) -> None:
    size = (Path(tiny_llama) / "model.safetensors").stat().st_size
    whole = ("inspect", "-m", NAME, "time flies", "-F", "json", "--whole-files")
    first = on_terminal(*whole, **online)
    assert first[0] == 0, first
    shown = text_shown(first[2])
    assert f"downloading model.safetensors: 0 B of {size / 1000:.0f} kB" in shown
    assert json.loads(first[1])["source"]["model"] == NAME
    again = on_terminal(*whole[:-1], **online)
    assert again[:2] == first[:2]
    assert "downloading" not in text_shown(again[2])
    offline = on_terminal(*whole, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert offline[:2] == first[:2]
    assert os.listdir(tmp_path / "hub") != []


TOKENS = """
import sys
from attncli.__main__ import main
try:
    main()
finally:
    print("huggingface_hub" in sys.modules, file=sys.stderr)
"""


def test_the_tokens_of_what_was_downloaded_are_read_without_the_hubs_client(
    online: dict[str, str], tmp_path: Path
) -> None:
    def tokens(**environment: str) -> tuple[str, str]:
        command = [sys.executable, "-c", TOKENS, "tokens", "-m", NAME, "time flies", "-F", "json"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
        return ran.stdout, ran.stderr

    shown, asked = tokens(**online)
    assert [token["text"] for token in json.loads(shown)["tokens"]] == ["time", "flies"]
    assert asked == "True\n"
    assert tokens(**online) == (shown, "False\n")
    assert tokens(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1") == (shown, "False\n")
    # Where a download may have ended before its last file, the client is asked, and finishes it.
    (missing,) = tmp_path.rglob(".no_exist/*/special_tokens_map.json")
    missing.unlink()
    assert tokens(**online) == (shown, "True\n")
    assert tokens(**online) == (shown, "False\n")


def test_a_hub_that_answers_was_reached(online: dict[str, str]) -> None:
    said = {
        "-m": "attn: the configuration of 'somebody/else' was not found on the hub or in the local cache, ",
        "--vocab": "attn: --vocab 'somebody/else' is no file or folder here and not on the hub: ",
    }
    for option, start in said.items():
        ran = program("inspect", "time flies", option, "somebody/else", env=os.environ | online)
        assert ran.returncode == 3
        assert ran.stderr.startswith(start), ran.stderr
