"""Every option has an effect: with it and without it a command line is answered in different ways."""

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import save_adapter
from fuzzing import commands
from peft import LoraConfig
from pictured_models import picture, save_tower
from safetensors.numpy import save_file
from small_checkpoints import save_tiny_llama
from typer.main import get_command
from whole_program import whole_program

from attncli.cli.app import app

# Each option in brackets is left out by itself. The fixture `material` has the files; --on is refused without
# -o FOLDER/, and what it does on a cluster is tested elsewhere, as is --offline.
LINES = """
inspect 'time flies' [--pair fruit] [--target fruit] [--model tiny] [--d-model 8] [--num-heads 2] [--d-k 2] [--d-v 2]
inspect 'time flies' [--init uniform] [--project qk] [--positions sinusoidal] [--scale none] [--seed 1] [--rng torch]
inspect 'time flies' [--vocab tiny] [--vocab-size 1] [--mask 'window(1)'] [--head 1] [--kind cross] [--query flies]
inspect 'time flies' [--key time] [--show q] [--precision 2] [--norms] [--mean heads] [--color always] [--format json]
inspect 'time flies' [--output trace.json] [--save again.safetensors] [--verbose]
inspect [--file lines.txt] [--from trace.safetensors] [--help-all]
inspect --file table.csv [--column words]
tokens --file lines.txt [--whole]
inspect 'time flies' -m bert [--no-special] [--hide-special] [--layer 2]
tokens 'time flies' -m chat [--chat]
inspect 'time flies' -m coded [--trust-remote-code]
inspect '3 4' -m tiny [--ids] [--tokenizer bert]
inspect 'time flies' -m lora [--base tiny]
inspect 'time flies' -m tiny [--dtype float16] [--device meta] [--device-map auto] [--generate 2] [--rollout]
tokens --file long.txt --whole -m bert [--truncate]
inspect 'time flies' -m tiny --show proof [--engine verify]
inspect 'time flies' -F json --show output [--no-out-proj]
inspect -m vit [--image picture.png]
inspect -m vit --image picture.png [--tower text]
inspect --from dump.safetensors [--grid 1x2]
inspect --from dump.safetensors --query 0 --grid 1x1 [--prefix 1]
inspect --file lines.txt [--jobs 0] [--on ray]
inspect 'time flies like' [--top-keys 1]
inspect 'time flies' --color always [--colormap gray] [--ramp linear]
inspect 'an embedding' -m bert [--words]
inspect --file long.txt [--width 60] [--all]
inspect 'time flies' -o figure.svg [--size 2in]
inspect 'time zeppelin' -m tiny [--quiet]
why 'time flies' -m tiny -q 1 -H 2.1 [--composition]
heads 'time flies' -m tiny [--induction]
heads [--pairs pairs.jsonl]
heads 'time flies' [--metrics entropy] [--sort entropy]
heads 'time flies' --sort entropy [--top 1]
ablate 'one two three one two' --head 2.3 [--next one] [--against one] [--loss all] [--edges '~keys(0,1)']
ablate 'one two three one two' --head 2.3 [--with mean]
ablate 'one two three one two' --layer 2 [--each]
mask check 'window(2)' --expect causal --size 4 [--fail-on pad]
diff 'time flies' -m tiny -m tiny [--first]
learn 'time flies' [--lesson softmax]
run [-m program]
run [--steps 1] [--place nowhere.py] [--expect 'window(1)'] [--prove 'window(1)'] [--lengths 2] program.py
run [--no-fail] --expect 'window(1)' program.py
run [--every 1] program.py
run --every 1 [--warn 'sink>0'] program.py
run --every 1 --warn 'sink>0' [--fail] program.py
mask show causal --size 2x4 [--past 0]
mask show mask.npy [--for mha]
mask show pad --size 4 [--lengths 2]
mask convert causal --size 3 -o mask.npy [--to mha]
"""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory, tiny_llama: str, minilm: str) -> Path:
    """The files and checkpoints that the lines name."""
    folder = tmp_path_factory.mktemp("material")
    (folder / "lines.txt").write_text("time flies\nfruit flies\n")
    (folder / "table.csv").write_text("text,words\ntime,fruit flies\n")
    (folder / "pairs.jsonl").write_text('{"text": "time flies", "query": "flies", "keys": ["time"]}')
    (folder / "long.txt").write_text("time flies like an arrow " * 200)
    (folder / "program.py").write_text(
        "import torch\n\nx = torch.nn.Parameter(torch.rand(1, 2, 3, 4))\n"
        "optimizer = torch.optim.SGD([x])\nfor _ in range(2):\n"
        "    torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()\n"
        "    optimizer.step()\n"
    )
    np.save(folder / "mask.npy", np.tri(4, dtype=bool))
    save_file({name: np.eye(2, dtype=np.float32) for name in "qk"}, folder / "dump.safetensors")
    picture(32, 32).save(folder / "picture.png")
    save_tower("vit", folder / "vit")
    (folder / "tiny").symlink_to(tiny_llama)
    (folder / "bert").symlink_to(minilm)
    chat = Path(shutil.copytree(tiny_llama, folder / "chat"))
    (chat / "chat_template.jinja").write_text("{{ messages[0].content }} an arrow")
    save_adapter("llama", tiny_llama, LoraConfig(r=2, target_modules=["q_proj"]), folder / "lora")
    adapter = json.loads((folder / "lora" / "adapter_config.json").read_text())
    (folder / "lora" / "adapter_config.json").write_text(json.dumps(adapter | {"base_model_name_or_path": None}))
    save_tiny_llama(str(folder / "coded"))
    (folder / "coded" / "modeling_own.py").write_text(
        "from transformers import LlamaModel\nprint('imported')\nclass Own(LlamaModel):\n    pass\n"
    )
    config = json.loads((folder / "coded" / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "modeling_own.Own"}}
    (folder / "coded" / "config.json").write_text(json.dumps(config))
    return folder


@cache  # of a line without an option, which several lines are compared with
def answered(line: str, material: Path) -> tuple[Any, ...]:
    """Run a command among copies of the files; return all that it did."""
    work = Path(tempfile.mkdtemp(dir=material.parent), "work")
    shutil.copytree(material, work, symlinks=True)
    with pytest.MonkeyPatch.context() as patch, whole_program() as attn:
        patch.chdir(work)
        ran = attn(*shlex.split(line))
    written = {
        path.name: path.read_bytes()
        for path in work.iterdir()
        if not (material / path.name).exists() and path.is_file()
    }
    return ran.code, ran.out, re.sub(r", [\d.]+ s$", "", ran.err, flags=re.MULTILINE), written


def with_and_without() -> Iterator[tuple[str, str]]:
    """Yield each command line with one of its options, and without."""
    for line in LINES.strip().splitlines():
        bare = re.sub(r"\[[^\]]*\]", "", line)
        for option in re.finditer(r"\[([^\]]*)\]", line):
            before, after = (re.sub(r"\[[^\]]*\]", "", part) for part in (line[: option.start()], line[option.end() :]))
            yield f"{before} {option[1]} {after}", bare


@pytest.mark.parametrize(("with_it", "without"), [*with_and_without()])
def test_an_option_has_an_effect(with_it: str, without: str, material: Path) -> None:
    assert answered(with_it, material) != answered(without, material)


def test_every_option_is_in_a_line() -> None:
    shown = {match[1] for match in re.finditer(r"\[(-[\w-]*)", LINES)}
    every = {
        frozenset([*one.opts, *one.secondary_opts]): one
        for command in commands(get_command(app)).values()
        for one in command.params
        if one.param_type_name == "option"
    }
    assert {min(names) for names in every if not names & shown} == {"--offline"}
    assert len({max(names, key=len) for names in every}) <= 93
    inspect = {one.name for one in commands(get_command(app))["inspect",].params if one.param_type_name == "option"}
    assert len(inspect) <= 66
