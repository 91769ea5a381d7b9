"""The installation without extras: what works without torch and transformers, and what is said of the rest."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from architectures import tiny_model
from conformance import save
from packaging.requirements import Requirement
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
    script = "from importlib.util import find_spec; print(find_spec('torch'), find_spec('transformers'))"
    assert light(program=("-c", script)).out == "None None\n"


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


# What it takes, and what is said to take it; LLAMA and T5 are checkpoints.
TAKEN = {
    "inspect TEXT -m LLAMA --engine transformers": "the transformers engine",
    "inspect TEXT -m LLAMA --generate 2": "the native engine does not compute LLAMA: it writes no tokens. The",
    "inspect TEXT -m T5": "the native engine does not compute T5: the architecture t5 ",
    "check TEXT -m LLAMA": "attn check",
    "inspect TEXT --rng torch": "--rng torch",
    "inspect TEXT --mask mask.pt": "mask.pt",
    "mask convert causal --size 3 --to sdpa -o out.pt": "a .pt file",
    "tokens --file x.parquet": "a Parquet file",
    "tokens TEXT --chat -m CHAT": "--chat",
}
NEEDED = re.compile(r" needs ([\w ]+), which (?:is|are) not installed: ")


@pytest.mark.parametrize("line", TAKEN)
def test_what_takes_more_says_which_command_installs_it(
    line: str, light: Light, tiny_llama: str, tmp_path: Path
) -> None:
    for name in ("mask.pt", "x.parquet"):
        (tmp_path / name).touch()
    paths = {"LLAMA": tiny_llama, "T5": str(tmp_path / "t5"), "CHAT": str(tmp_path / "chat")}
    if "T5" in line:
        save(tiny_model("t5"), tmp_path / "t5")
    if "CHAT" in line:
        shutil.copytree(tiny_llama, tmp_path / "chat")
        (tmp_path / "chat" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    ran = light(*((paths | {"TEXT": TEXT}).get(word, word) for word in line.split()))
    assert (ran.code, ran.out) == (LOAD, "")
    for name, path in paths.items():
        ran.err = ran.err.replace(path, name)
    assert ran.err.startswith(f"attn: {TAKEN[line]}")
    missing = NEEDED.search(ran.err)
    assert missing is not None, ran.err
    assert ran.err.endswith(f": {install_command(*missing[1].split(' and '))}\n")
    assert not (tmp_path / "out.pt").exists()


def test_a_program_without_torch_and_a_call_from_python_say_so_too(light: Light, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\n")
    ran = light("run", "--prove", "causal", "program.py")
    assert ran.code == 1
    assert re.search("attn: attn run needs torch, which is not installed: .*pip install torch\n", ran.err)
    ran = light(program=("-c", "import attncli\nattncli.watch().__enter__()"))
    assert "LoadError" in ran.err.splitlines()[-1]


def test_files_of_sentences_are_read(light: Light, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\ntime flies\n", encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "fruit flies"}\n'))
    (tmp_path / "c.txt").write_text("like an arrow\n", encoding="utf-8")
    ran = light("tokens", "--file", ".", "-F", "json")
    assert (ran.code, ran.err, len(ran.json)) == (0, "", 3)
