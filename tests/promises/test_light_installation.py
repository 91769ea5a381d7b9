"""The installation without extras: what works without torch and transformers, and what is said of the rest."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import save_adapter
from architectures import tiny_model
from conformance import save
from hub import Hub
from packaging.requirements import Requirement
from peft import LoraConfig
from running import Ran

from attncli.errors import install_command

PROJECT = Path(__file__).parents[2]
TEXT = "time flies like an arrow"
LOAD = 3

Light = Callable[..., Ran]


def required(names: list[str], without: set[str]) -> set[str]:
    """Return distributions and all that they require, but for some and what only those require."""
    found: set[str] = set()
    while names:
        requirement = Requirement(names.pop())
        is_meant = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_meant and requirement.name not in found | without:
            found.add(requirement.name)
            names += distribution(requirement.name).requires or []
    return found


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to what `pip install .` brings."""
    folder = tmp_path_factory.mktemp("light")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in required(list(project["dependencies"]), set()):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).is_symlink():
                (folder / top).symlink_to(installed.locate_file(top))
    return folder


@pytest.fixture
def light(packages: Path, tmp_path: Path) -> Light:
    """Run `attn` in a process that finds these packages and no others."""

    def run(*arguments: str | Path, program: tuple[str, ...] = ("-m", "attncli"), **environment: str) -> Ran:
        ran = subprocess.run(
            [sys.executable, "-S", *program, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": f"{packages}{os.pathsep}{PROJECT}"} | environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)  # type: ignore[arg-type]

    return run


def test_the_light_installation_has_neither_torch_nor_transformers(light: Light) -> None:
    here = "from importlib.util import find_spec; import numpy, orjson, rich, safetensors, tokenizers, typer"
    ran = light(program=("-c", f"{here}; print(find_spec('torch'), find_spec('transformers'))"))
    assert (ran.out, ran.err) == ("None None\n", "")


def test_masks_are_drawn_checked_compared_and_converted(light: Light, tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.tri(4, dtype=bool))
    for arguments in (
        ("convert", "mask.npy", "--to", "additive", "-o", "mask.safetensors"),
        ("diff", "mask.safetensors", "causal"),
    ):
        ran = light("mask", *arguments)
        assert (ran.code, ran.err) == (0, "")


def test_a_program_without_torch_is_told_which_python_ran_it(light: Light, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\n")
    for prove in ([], ["--prove", "causal"]):
        ran = light("run", *prove, "program.py")
        assert ran.code == 1
        assert re.search("attn: attn run needs torch, which is not installed: .*pip install torch\n", ran.err)


def test_a_toy_layer_is_shown_saved_and_shown_again(light: Light, tmp_path: Path, attn: Callable[..., Ran]) -> None:
    trace = tmp_path / "trace.safetensors"
    shown = light("inspect", TEXT, "--save", trace, "--format", "json")
    assert (shown.code, shown.err) == (0, "")
    assert light("inspect", "--from", trace, "-F", "json").json["layers"] == shown.json["layers"]
    for command in (("why", "-q", "arrow"), ("inspect", "-F", "svg"), ("inspect", "-F", "html")):
        assert light(*command, "--from", trace) == attn(*command, "--from", trace)


def test_a_checkpoint_of_a_common_family_is_computed(light: Light, minilm: str, attn: Callable[..., Ran]) -> None:
    for command in (
        ("inspect", TEXT, "--layer", "5", "-F", "json", "-m", minilm),
        ("diff", TEXT, "fruit flies like a banana", "-m", minilm),
        ("tokens", TEXT, "-m", minilm),
        ("heads", TEXT, "-m", "demo"),
    ):
        ran = light(*command)
        assert ran.code == 0
        assert ran == attn(*command)


def test_an_adapter_on_the_hub_is_computed(
    light: Light, tiny_llama: str, tmp_path: Path, attn: Callable[..., Ran]
) -> None:
    lora = tmp_path / "lora"
    save_adapter("llama", tiny_llama, LoraConfig(r=2, target_modules=["q_proj"]), lora)
    with Hub({"some/lora": lora, "some/base": Path(tiny_llama)}) as hub:
        environment = hub.environment | {"HF_HOME": str(tmp_path / "home")}
        run = ("inspect", "w7 w8", "-F", "json")
        ran = light(*run, "-m", "some/lora", "--base", "some/base", **environment)
    assert ran.code == 0, ran.err
    expected = attn(*run, "-m", lora, "--base", tiny_llama, "--engine", "transformers").json
    for one, other in zip(ran.json["layers"], expected["layers"], strict=True):
        found, reference = (np.array([head["weights"] for head in each["heads"]]) for each in (one, other))
        np.testing.assert_allclose(found, reference, atol=1e-5)


# What it takes, and what is said to take it; LLAMA and T5 are checkpoints.
TAKEN = {
    "inspect TEXT -m LLAMA --engine transformers": "the transformers engine",
    "inspect TEXT -m LLAMA --generate 2": "the native engine does not compute LLAMA: it writes no tokens. The",
    "inspect TEXT -m T5": "the native engine does not compute T5: the architecture t5 ",
    "tokens TEXT -m T5": "T5: the architecture t5 ",
    "check TEXT -m LLAMA": "attn check",
    "mask model -m T5 TEXT": "the native engine does not compute T5: the architecture t5 ",
    "inspect TEXT --rng torch": "--rng torch",
    "inspect TEXT --mask mask.pt": "mask.pt",
    "mask convert causal --size 3 --to sdpa -o out.pt": "a .pt file",
}


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    save(tiny_model("t5"), folder)
    return folder


@pytest.mark.parametrize("line", TAKEN)
def test_what_takes_more_says_which_command_installs_it(
    line: str, light: Light, tiny_llama: str, t5: Path, tmp_path: Path
) -> None:
    (tmp_path / "mask.pt").touch()
    meant = {"LLAMA": tiny_llama, "T5": str(t5), "TEXT": TEXT}
    ran = light(*(meant.get(word, word) for word in line.split()))
    assert (ran.code, ran.out) == (LOAD, "")
    for name in ("LLAMA", "T5"):
        ran.err = ran.err.replace(meant[name], name)
    assert ran.err.startswith(f"attn: {TAKEN[line]}")
    missing = re.search(
        r" needs ((?:torch|transformers)(?: and transformers)?), which (?:is|are) not installed: ", ran.err
    )
    assert missing is not None, ran.err
    assert ran.err.endswith(f": {install_command(*missing[1].split(' and '))}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mask.pt"]


def test_a_chat_takes_what_runs_templates(light: Light, tiny_llama: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "chat"))
    run = ("tokens", TEXT, "--chat", "-m", folder)
    assert "has no default chat template" in light(*run).err
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    ran = light(*run)
    message = f"attn: --chat needs jinja2, which is not installed: {install_command('jinja2')}\n"
    assert (ran.code, ran.out, ran.err) == (LOAD, "", message)


def test_files_of_sentences_are_read_and_what_takes_more_says_so(light: Light, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\ntime flies\n", encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "fruit flies"}\n'))
    (tmp_path / "c.txt").write_text("like an arrow\n", encoding="utf-8")
    ran = light("tokens", "--file", ".", "-F", "json")
    assert (ran.code, ran.err, len(ran.json)) == (0, "", 3)
    for name, what in {"x.parquet": "a Parquet file needs pyarrow", "x.txt.zst": "a .zst file needs zstandard"}.items():
        (tmp_path / name).touch()
        ran = light("tokens", "--file", name)
        message = f"attn: {what}, which is not installed: {install_command(what.split()[-1])}\n"
        assert (ran.code, ran.out, ran.err) == (LOAD, "", message)
    ran = light("tokens", "--file", "s3://b/x")
    assert (ran.code, ran.out) == (LOAD, "")
    assert "a file at s3:// needs a package that is not installed: Install s3fs" in ran.err


def test_what_is_refused_anyway_is_not_said_to_take_more(light: Light, tiny_llama: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in light("inspect", TEXT, "-m", "empty").err
    ran = light("tokens", TEXT, "-m", "/nowhere/x")
    message = "attn: the checkpoint '/nowhere/x' was not found: there is no such folder; check the path\n"
    assert (ran.code, ran.out, ran.err) == (LOAD, "", message)
    folder = shutil.copytree(tiny_llama, tmp_path / "quantized")
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "torchao"}}
    (folder / "config.json").write_text(json.dumps(config))
    ran = light("inspect", TEXT, "-m", folder)
    assert ran.code == LOAD
    assert "does not read 'torchao'" in ran.err
    assert "installed" not in ran.err


def test_from_python_it_is_an_error_of_ours_too(light: Light, t5: Path) -> None:
    script = """
import sys, attncli
for call in (lambda: attncli.inspect("w7", model=sys.argv[1]), lambda: attncli.check(sys.argv[1]),
             lambda: attncli.watch().__enter__()):
    try:
        call()
    except attncli.AttnError as error:
        print(int(error.exit_code))
"""
    ran = light(t5, program=("-c", script))
    assert (ran.out.split(), ran.err) == (["3", "3", "3"], "")


def test_the_extra_for_the_tests_brings_what_the_light_installation_lacks() -> None:
    extras: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {Requirement(each).name for each in extras["optional-dependencies"]["torch"]}
    assert brought == {"torch", "transformers"}
    (ours,) = (one for each in extras["optional-dependencies"]["test"] if (one := Requirement(each)).name == "attncli")
    assert "torch" in ours.extras
