"""A checkpoint that comes over the network: from a hub of our own, on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import NAME, Hub
from imported import COLD, PROGRAM, imported_by
from running import on_terminal, text_shown


@pytest.fixture
def online(tiny_llama: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    with Hub({NAME: Path(tiny_llama)}, has_storage=False, pause=0.3) as hub:
        yield hub.environment | {"HF_HOME": str(tmp_path)}


def test_a_download_shows_its_size_and_is_kept(online: dict[str, str], tiny_llama: str, tmp_path: Path) -> None:
    size = (Path(tiny_llama) / "model.safetensors").stat().st_size
    ask = ("inspect", "-m", NAME, "time flies", "-F", "json")
    first = on_terminal(*ask, **online)
    assert first[0] == 0, first
    shown = text_shown(first[2])
    assert f"downloading model.safetensors: 0 B of {size / 1000:.0f} kB" in shown
    assert json.loads(first[1])["source"]["model"] == NAME
    offline = on_terminal(*ask, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert offline[:2] == first[:2]
    assert "downloading" not in text_shown(offline[2])


def test_a_downloaded_checkpoint_needs_no_hub_client(online: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imported.COLD", COLD | online)
    for command, is_needed in (("tokens", True), ("inspect", True), ("tokens", False)):
        assert ("huggingface_hub" in imported_by(PROGRAM, command, "-m", NAME, "time flies")) == is_needed
