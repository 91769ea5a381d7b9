"""Where a checkpoint is found: in the folders that people have, and an adapter and its base on the hub."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapters import save_adapter
from hub import Hub
from peft import LoraConfig
from refusals import refused
from running import Run

TEXT = "time flies"
COMMIT = "abc0"


def written(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_checkpoints_in_a_folder_are_listed_in_their_order(tiny_llama: str, tmp_path: Path, attn: Run) -> None:
    written(tmp_path / "out" / "1_Pooling" / "config.json", {"word_embedding_dimension": 24})
    for step in (1000, 500, 1500):
        shutil.copytree(tiny_llama, tmp_path / "out" / f"checkpoint-{step}")
    listed = "holds 3 checkpoints; give one of them: checkpoint-500, checkpoint-1000, checkpoint-1500"
    for line in (["inspect", TEXT, "-m"], ["tokens", TEXT, "-m"], ["check", "-m"]):
        refused(attn(*line, tmp_path / "out"), 3, listed)


@pytest.mark.parametrize(("files", "words"), [
    (["params.json", "consolidated.00.pth"], "has no config.json (there is consolidated.00.pth)"),
    (["config.json", "tf_model.h5"], "but no weights (there is tf_model.h5): expected model"),
    (["config.json"], "but no weights (there is config.json, "),
])  # fmt: skip
def test_the_files_there_are_named(files: list[str], words: str, tiny_llama: str, tmp_path: Path, attn: Run) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "checkpoint"))
    for name in ("config.json", "model.safetensors"):
        if name not in files:
            (folder / name).unlink()
    for name in files:
        if name != "config.json":
            written(folder / name, "")
    for engine in ("native", "transformers"):
        refused(attn("inspect", TEXT, "-m", folder, "--engine", engine), 3, words)


@pytest.fixture(scope="module")
def adapter(tiny_llama: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    save_adapter("llama", tiny_llama, LoraConfig(r=2, target_modules=["q_proj"]), folder)
    adapter_config = json.loads((folder / "adapter_config.json").read_text())
    written(folder / "adapter_config.json", adapter_config | {"base_model_name_or_path": "some/base"})
    return folder


@pytest.fixture
def org(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (tmp_path / "repository").mkdir()
    with Hub({"org/name": tmp_path / "repository"}) as hub:
        hub.reach(tmp_path / "home", monkeypatch)
        yield hub


def test_an_adapter_comes_with_its_base(org: Hub, adapter: Path, tiny_llama: str, tmp_path: Path, attn: Run) -> None:
    org.repositories |= {"some/lora": adapter, "some/base": Path(tiny_llama)}
    refused(attn("inspect", TEXT, "-m", "some/base", "--base", "some/other"), 2, "some/base is a model; drop --base")
    ask = ("inspect", TEXT, "-m", "some/lora", "-F", "json")
    first = attn(*ask, "--base", "some/base")
    assert first.code == 0, first.err
    assert first.json["source"]["base"] == "some/base"
    (weights,) = tmp_path.rglob("adapter_model.safetensors")  # as if the first download had been cut
    weights.unlink()
    assert attn(*ask).out == first.out
    by_transformers = attn(*ask, "--engine", "transformers")
    org.requests.clear()
    offline = attn(*ask, "--engine", "transformers", "--offline")
    assert (offline.out, offline.code) == (by_transformers.out, 0), offline.err
    offline = attn(*ask, "--offline")
    assert offline.out == first.out, offline.err
    assert org.requests == []


def test_a_folder_that_is_not_here_is_not_looked_for_on_the_hub(org: Hub, attn: Run) -> None:
    for name in ("org/name/checkpoint-500", "org/../checkpoint-500", "./name"):
        ran = attn("inspect", TEXT, "-m", name)
        refused(ran, 3)
        assert ran.err == f"attn: the checkpoint '{name}' was not found: there is no such folder; check the path\n"
    assert org.requests == []


def test_a_repository_without_a_checkpoint_is_one_sentence(org: Hub, tiny_llama: str, attn: Run) -> None:
    shutil.copytree(tiny_llama, org.repositories["org/name"] / "checkpoint-500")
    for line in (["inspect", TEXT, "-m"], ["tokens", TEXT, "-m"]):
        words = "of 'org/name' was not found on the hub or in the local cache, and there is no such folder"
        refused(attn(*line, "org/name"), 3, words)
    org.trouble = lambda _: (403, {"X-Error-Code": "GatedRepo"})
    words = "for a gated model hf auth login, or give the folder of a downloaded checkpoint (403"
    refused(attn("inspect", TEXT, "-m", "org/name@gated"), 3, words)
