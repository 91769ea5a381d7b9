"""What a TAB offers, asked as the scripts ask."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from imported import STARTED, imported_by
from running import program
from shells import PROJECT, SCRIPTS
from small_checkpoints import hub_cache
from typer.main import get_command

from attncli.cli.app import app
from attncli.cli.candidates import VALUES, candidates, sizes
from attncli.cli.completion import answer, split
from attncli.cli.help import commands_of
from attncli.masks.expressions import ATOMS
from attncli.masks.parser import parse

ROOT = get_command(app)
CONTEXT = typer.Context(ROOT, info_name="attn")  # type: ignore[arg-type]
COMMANDS: dict[tuple[str, ...], Any] = {
    tuple(one.command_path.split()[1:]): one.command for one in (CONTEXT, *commands_of(CONTEXT))
}
ONLY_THE_USER_KNOWS = {
    "ray://HOST:PORT",
    "GLOB",
    "LENGTHS",
    "MODULE",
    "N",
    "N,N,…",
    "NUMBER",
    "SIZE",
    "START:STOP",
    "TEXT",
    "TOKEN",
    "URL",
}  # what these are called that have no completion


def offered(*words: str) -> list[str]:
    """Return the words that could stand in place of the last one."""
    return [one.value for one in candidates(ROOT, words)]


def asked(attn: Callable[..., Any], shell: str, *words: str) -> list[tuple[str, str]]:
    """Return the marks and words with which the program answers a shell."""
    ran = attn("__complete", shell, "--", *words)
    assert (ran.code, ran.err) == (0, "")
    return [(line.split("\t")[0], line.split("\t")[1]) for line in ran.out.splitlines()]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_scripts_in_the_repository_are_what_the_program_prints(shell: str, attn: Callable[..., Any]) -> None:
    ran = attn("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (PROJECT / "completions" / SCRIPTS[shell]).read_text(encoding="utf-8")
    assert ran.out.startswith("#compdef attn\n" if shell == "zsh" else "# ")


def test_every_command_is_offered_with_what_it_is_for(attn: Callable[..., Any]) -> None:
    assert offered("") == ROOT.list_commands(None)
    assert offered("mask", "") == ["show", "check", "diff", "convert", "model"]
    assert offered("ins") == ["inspect"]
    assert offered("frobnicate", "") == offered("mask", "frobnicate", "") == []
    assert "__complete" not in offered("")
    assert "__complete" not in attn("--help").out
    for line in attn("__complete", "zsh", "--", "").out.splitlines():
        mark, name, purpose = line.split("\t")
        assert mark == "="
        assert purpose == COMMANDS[(name,)].get_short_help_str(100)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_long_option_is_offered_until_it_is_given(path: tuple[str, ...]) -> None:
    options = [one for one in COMMANDS[path].params if one.param_type_name == "option"]
    names = {name: one for one in options for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
    assert set(offered(*path, "-")) == set(offered(*path, "--")) == names.keys() | {"--help"}
    for name, option in names.items():
        assert name in offered(*path, name[:-1])
        value = [] if option.is_flag else ["1"]
        assert (name in offered(*path, name, *value, "--")) == bool(option.multiple)
    assert "--help" not in offered(*path, "--", "--")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_value_has_something_to_offer_or_is_the_users_own(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        if getattr(parameter, "is_flag", False):
            continue
        choices = [value for value in get_args(parameter.type_descriptor.annotation) if isinstance(value, str)]
        name = parameter.opts[0] if parameter.param_type_name == "option" else None
        if choices and name:
            assert offered(*path, name, "") == choices
            assert offered(*path, f"{name}=") == [f"{name}={choice}" for choice in choices]
            assert offered(*path, name, choices[0][:-1])[0].startswith(choices[0][:-1])
        elif not choices and name not in VALUES:
            parts = set((parameter.metavar or "").split("|")) - VALUES.keys() - ONLY_THE_USER_KNOWS
            assert all(map(str.islower, parts)), (path, parameter.name, parts)


def test_choices_and_lists(attn: Callable[..., Any]) -> None:
    assert offered("inspect", "--format", "j") == ["json", "jsonl"]
    assert offered("inspect", "--colormap", "") == ["viridis", "cividis", "gray"]
    assert offered("inspect", "-F", "ht") == ["html"]
    assert offered("inspect", "--scale", "") == ["sqrt", "none"]
    assert offered("heads", "--on", "") == ["ray"]
    assert offered("inspect", "--show", "q,k,me") == ["q,k,metrics"]
    assert "q,q" not in offered("inspect", "--show", "q,")
    assert offered("check", "--fail-on", "leak,dea") == ["leak,dead-row"]
    assert offered("completion", "") == ["bash", "zsh", "fish", "powershell"]
    assert offered("inspect", "--device", "cu") == ["cuda"]
    assert offered("inspect", "time flies", "") == offered("inspect", "--seed", "") == []


# --- mask expressions --------------------------------------------------------------------------------------


def test_atoms_are_offered_where_a_mask_may_stand() -> None:
    for before in ("", "causal & ", "causal&", "~", "(causal | ~", "causal & (", "window(4) |", "~ ( "):
        found = offered("inspect", "--mask", before)
        names = [one[len(before) :].rstrip("(") for one in found if one.startswith(before)]
        assert {name for name in names if name in ATOMS} == ATOMS.keys() - {"alibi"}, before
    assert offered("inspect", "--mask", "causal & win") == ["causal & window("]
    assert offered("inspect", "--mask=causal & fu") == ["--mask=causal & full"]
    assert offered("mask", "check", "m.npy", "--expect", "causal & pre") == ["causal & prefix("]
    assert offered("inspect", "--mask", "no") == ["none"]
    assert offered("run", "--expect", "decoder.*=causal & pre") == ["decoder.*=causal & prefix("]
    assert offered("run", "--expect", "causal & pad(") == ["causal & pad(left=", "causal & pad(right="]
    assert "--expect" in offered("run", "--expect", "causal", "--ex")
    assert "causal & alibi(" in offered("mask", "show", "causal & ")
    assert "*.attn=causal & alibi(" in offered("run", "--expect", "*.attn=causal & ")
    assert "causal & alibi(" not in offered("mask", "check", "causal & ")


def test_arguments_and_signs_are_offered_inside_an_expression() -> None:
    assert offered("inspect", "--mask", "causal & pad(") == ["causal & pad(left=", "causal & pad(right="]
    assert offered("inspect", "--mask", "pad(left=2,r") == ["pad(left=2,right="]
    assert offered("inspect", "--mask", "window(") == offered("inspect", "--mask", "band(1,") == []
    assert offered("inspect", "--mask", "causal ") == ["causal & ", "causal | "]
    assert offered("inspect", "--mask", "window(4)") == ["window(4)"]
    assert offered("inspect", "--mask", "causal win") == offered("inspect", "--mask", "causal ~") == []


SIMPLE = ["causal", "full", "window(4)", "pad(left=2)", "docs(3,2)", "band(1, 2)", "~chunk(2)", '~ file("m.npy")']
MASKS = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: st.tuples(inner, st.sampled_from(["&", " & ", "|", " |  "]), inner).map(
        lambda parts: "".join(["(", *parts, ")"])
    ),
    max_leaves=6,
).map(lambda mask: mask[1:-1] if mask.startswith("(") else mask)


@given(MASKS, st.data())
def test_every_name_of_a_mask_is_offered_wherever_it_is_cut(mask: str, data: st.DataObject) -> None:
    names = [match for match in re.finditer(r"[a-z]+(?![a-z]*=)", mask) if match[0] in ATOMS or match[0] == "file"]
    name = data.draw(st.sampled_from(names))
    cut = data.draw(st.integers(name.start(), name.end()))
    expected = mask[: name.end()] + ("(" if mask[name.end() :].startswith("(") else "")
    expected += '"' if name[0] == "file" else ""
    assert expected in offered("inspect", "--mask", mask[:cut])


@given(st.lists(st.sampled_from(["causal", "window(2)", "&", "|", "~", "(", ")", " ", "pad(left=1)", "w", "p"])))
def test_what_is_offered_as_whole_is_a_mask(pieces: list[str]) -> None:
    typed = "".join(pieces)
    for one in candidates(ROOT, ["inspect", "--mask", typed]):
        assert one.value.startswith(typed)
        if not one.goes_on:
            parse(one.value)


# --- models, layers, heads ---------------------------------------------------------------------------------


def test_models_of_the_local_cache_and_folders_that_hold_a_configuration(
    tmp_path: Path, minilm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "sentence-transformers/all-MiniLM-L6-v2"
    for variable, value in hub_cache(tmp_path / "cache", name, minilm).items():
        monkeypatch.setenv(variable, value)
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "cache" / "hub" / "models--tokenizer--only" / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "cache" / "hub" / "datasets--a--b").mkdir()
    work = tmp_path / "work"
    for folder in ("runs/first", "runs/second", "empty/deep"):
        (work / folder).mkdir(parents=True)
    for folder in ("here", "runs/first"):
        (work / folder).mkdir(exist_ok=True)
        (work / folder / "config.json").write_text('{"n_layer": 3, "n_head": 5}')
    monkeypatch.chdir(work)
    assert offered("inspect", "-m", "") == ["demo", name, "here", "runs/"]
    assert offered("mask", "model", "sent") == [name]
    assert offered("inspect", "--model=ru") == ["--model=runs/"]
    assert offered("inspect", "-m", "runs/") == ["runs/first"]
    assert offered("inspect", "-m", "em") == ["empty/"], "the way to a folder further down"
    assert offered("inspect", "-m", str(work / "he")) == [str(work / "here")]
    (work / "runs" / "third.gguf").touch()
    assert offered("inspect", "-m", "runs/t") == ["runs/third.gguf"]
    assert offered("inspect", "-m", name, "--revision", "") == ["main"]
    assert offered("inspect", "-m", name, "--layer", "") == [*"012345", "all"]
    assert offered("inspect", "-m", name, "--revision", "main", "--head", "1") == ["1", "10", "11"]
    assert offered("inspect", "-m", name, "--revision", "0" * 40, "--head", "1") == ["1", "10", "11"]
    assert offered("inspect", "-m", name, "--revision", "other", "--head", "") == ["all"]
    assert offered("inspect", "-m", "demo", "-l", "") == [*"0123", "all"]
    assert offered("inspect", "--model=here", "-l", "") == ["0", "1", "2", "all"]
    assert offered("inspect", "-mhere", "-l", "0,1-") == ["0,1-1", "0,1-2"]
    assert offered("diff", "-m", "here", "-m", name, "-H", "0,") == [f"0,{head}" for head in range(5)]
    assert offered("inspect", "-m", "nowhere/nothing", "--head", "") == ["all"]


def test_adapters_and_folders_that_hold_one_checkpoint_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "adapter_config.json").write_text('{"base_model_name_or_path": "../base"}')
    for variable, value in hub_cache(tmp_path / "cache", "some/lora", str(tmp_path / "snapshot")).items():
        monkeypatch.setenv(variable, value)
    work = tmp_path / "work"
    for folder in ("base", "one/checkpoint-5", "two/checkpoint-5", "two/checkpoint-10"):
        (work / folder).mkdir(parents=True)
        (work / folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 3, "n_head": 5}')
    for folder in ("lora", "lost"):
        (work / folder).mkdir()
    (work / "lora" / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    (work / "lost" / "adapter_config.json").write_text("[]")
    monkeypatch.chdir(work)
    assert offered("inspect", "-m", "") == ["demo", "some/lora", "base", "lora", "lost", "one", "two/"]
    assert offered("inspect", "-m", "lora", "--base", "b") == ["base"]
    assert offered("inspect", "-m", "one", "--layer", "") == ["0", "1", "2", "all"]
    assert offered("inspect", "-m", "lora", "--layer", "") == ["0", "1", "2", "all"]
    assert offered("inspect", "-m", "lost", "--layer", "") == offered("inspect", "-m", "two", "--layer", "") == ["all"]
    assert offered("inspect", "-m", "lost", "--base", "base", "--layer", "") == ["0", "1", "2", "all"]


def test_the_toy_layer_has_the_heads_that_the_line_says() -> None:
    assert offered("inspect", "--head", "") == ["0", "1", "2", "3", "all"]
    assert offered("inspect", "--num-heads", "2", "--head", "") == ["0", "1", "all"]
    assert offered("inspect", "--num-heads", "many", "--head", "") == ["all"]
    assert offered("inspect", "--layer", "") == ["0", "all"]
    assert offered("inspect", "--from", "trace.safetensors", "--layer", "") == ["all"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"[" * 200_000, b"\xff\xfe", b'{"n_layer": "3"}', b'{"n_layer": -1}',
     b'{"n_layer": 1e9}', b'{"n_layer": 99999999999}', b"[" + b"1," * 600_000 + b"1]"],
)  # fmt: skip
def test_a_configuration_that_makes_no_sense_offers_no_layers(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert offered("inspect", "-m", str(tmp_path), "--layer", "") == ["all"]


# Of these the configuration says something else than how many layers run, or nothing.
ODD_SIZES = {
    "blt": "its parts have no defaults",
    "dots3_note_text": "heads differ from layer to layer",
    "funnel": "blocks of layers",
    "longcat_flash": "two attentions a layer",
}


def test_sizes_are_those_that_transformers_reads_of_every_architecture(tmp_path: Path) -> None:
    from architectures import CONFIG_MAPPING, architectures

    wrong = {}
    for name in architectures():
        if name in ODD_SIZES:
            continue
        config = CONFIG_MAPPING[name]()
        (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
        text = config.get_text_config()
        layers = max(text.num_hidden_layers, getattr(text, "decoder_layers", 0))
        if sizes(str(tmp_path), "main") != {"layer": layers, "head": text.num_attention_heads}:
            wrong[name] = sizes(str(tmp_path), "main")
    assert wrong == {}


# --- files -------------------------------------------------------------------------------------------------


def test_files_are_offered_by_their_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("f.npy", "f.txt", "f.safetensors", "f.json", "f.JSON", "f.html", "f.csv", ".f.npy", "f.py"):
        (tmp_path / name).touch()
    assert offered("inspect", "--file", "f.t") == ["f.txt"]
    assert offered("inspect", "--from", "f") == offered("inspect", "--save", "f") == ["f.safetensors", "folder/"]
    assert offered("inspect", "--mask", "f.") == ["f.JSON", "f.csv", "f.json", "f.npy", "f.safetensors"]
    assert offered("inspect", "--mask", ".f") == [".f.npy"]
    assert offered("mask", "show", "f.p") == ["f.py:"]
    assert offered("inspect", "-o", "f.") == ["f.JSON", "f.csv", "f.html", "f.json", "f.txt"]
    assert offered("check", "-o", "f.") == ["f.JSON", "f.html", "f.json", "f.txt"]
    assert offered("mask", "diff", "f.npy", "f.npy", "-o", "f.") == ["f.html", "f.txt"]
    assert offered("mask", "convert", "f.npy", "-o", "f.n") == ["f.npy"]
    assert offered("inspect", "--mask", 'causal & file("f.n') == ['causal & file("f.npy")']
    assert offered("inspect", "--vocab", "f") == ["folder/", "f.JSON", "f.json"]
    assert offered("inspect", "--file", "nowhere/") == []
    monkeypatch.setenv("HOME", str(tmp_path))
    assert offered("inspect", "--from", "~/f.s") == ["~/f.safetensors"]


def test_no_name_of_a_file_reaches_a_terminal_as_an_escape_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attn: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a\x1b[31m.npy", "a\nb.npy", "a\u202eb.npy", "a\tb.npy", "añ.npy"):
        (tmp_path / name).touch()
    for shell in ("zsh", "fish"):
        assert asked(attn, shell, "inspect", "--mask", "a") == [("=", "añ.npy")]
        assert "\x1b" not in attn("__complete", shell, "--", "inspect", "--mask", "a").out


# --- the line, as shells give it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words", "quote"),
    [
        ("attn in", ["attn", "in"], ""),
        ("attn  inspect ", ["attn", "inspect", ""], ""),
        ("attn --mask 'causal & win", ["attn", "--mask", "causal & win"], "'"),
        ('attn --mask="a \\"b\\c', ["attn", '--mask=a "b\\c'], '"'),
        ("attn 'it'\\''s' x", ["attn", "it's", "x"], ""),
        ("attn a\\ b '' ", ["attn", "a b", "", ""], ""),
        ("", [""], ""),
        ("attn a\\", ["attn", "a"], ""),
    ],
)
def test_a_line_is_split_as_a_shell_splits_it(line: str, words: list[str], quote: str) -> None:
    assert split(line)[:2] == (words, quote)


ASK = "attn inspect --mask"


@pytest.mark.parametrize(
    ("shell", "words", "answer"),
    [
        ("bash", (f"{ASK} 'causal & fu", "causal & fu"), [("=", "causal & full")]),
        ("bash", (f"{ASK} fu", "fu"), [("=", "full")]),
        ("bash", (f"{ASK}=fu", "fu"), [("=", "full")]),
        ("bash", (f"{ASK} win", "win"), [("+", "'window(")]),
        # Two, so that bash does not close the quote behind what has to go on.
        ("bash", (f"{ASK} 'win", "win"), [("+", "window("), ("+", "window(…")]),
        ("powershell", ("inspect", "--mask", "=win"), [("+", "'window(")]),
        ("powershell", ("inspect", "--mask", "='causal & fu"), [("=", "'causal & full'")]),
        ("powershell", ("inspect", "=--forma"), [("=", "--format")]),
        ("powershell", ("=in",), [("=", "inspect")]),
    ],
)
def test_a_shell_is_answered_as_it_quotes(
    shell: str, words: tuple[str, ...], answer: list[tuple[str, str]], attn: Callable[..., Any]
) -> None:
    assert asked(attn, shell, *words) == answer


def test_a_question_that_no_script_asks_is_answered_in_one_line(attn: Callable[..., Any]) -> None:
    ran = attn("__complete", "tcsh", "--", "in")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert (attn("__complete", "bash", "--", "attn in").code, attn("__complete", "fish").code) == (0, 2)


@given(st.sampled_from(sorted(SCRIPTS)), st.lists(st.text(max_size=20), min_size=1, max_size=6))
def test_no_line_is_too_strange(shell: str, words: list[str]) -> None:
    answer(ROOT, shell, words)
    answer(ROOT, shell, ["inspect", "--mask", *words])


def test_what_an_encoding_lacks_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "añ.npy").touch()
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(PROJECT)}
    for words in (["inspect", "--mask", ""], ["inspect", "--s"]):
        ran = program("__complete", "zsh", "--", *words, env=plain, cwd=tmp_path)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.isascii()


# --- what it costs -----------------------------------------------------------------------------------------

TABS = {
    "in": "in",
    "an option": "inspect --",
    "a mask": "inspect --mask causal&win",
    "a list": "inspect --show q,",
    "a model": "inspect -m ./",
    "a head": "heads --head=",
    "a folder": "mask model ./",
}
HEAVY = {"torch", "transformers", "huggingface_hub", "tokenizers", "safetensors", "pydantic", "rich"}


@pytest.mark.parametrize("typed", TABS.values(), ids=TABS)
def test_a_tab_imports_nothing_heavy(typed: str) -> None:
    assert not HEAVY & imported_by(STARTED, "__complete", "zsh", "--", *typed.split())


@pytest.mark.parametrize("typed", ["inspect --", "inspect --mask causal&win"])
def test_a_tab_costs_at_most_1_6_times_the_import_floor(typed: str) -> None:
    def seconds(*arguments: str) -> float:
        """Return its own, of a processor: what else the machine does takes none of them."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    question = ["-m", "attncli", "__complete", "zsh", "--", *typed.split()]
    pairs = [
        (seconds("-c", "import numpy, typer, rich.console, rich.table"), seconds(*question)) for _ in range(7)
    ]  # A B A B: what makes a processor slower falls on both
    floor, tab = (min(side) for side in zip(*pairs, strict=True))
    assert tab <= 1.6 * floor


def test_a_column_is_offered_as_the_file_on_the_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {"id": [1], "body": ["time"], "a,b": ["no name in a list"], "\x1b[2J": [2]}
    pd.DataFrame(columns).to_csv("a.csv", index=False)
    pd.DataFrame(columns).to_parquet("b.parquet")
    pd.DataFrame(columns).to_json("c.jsonl", orient="records", lines=True)
    (tmp_path / "d.txt").write_text("time flies", encoding="utf-8")
    for name, option in {"a.csv": "--column", "b.parquet": "--column", "c.jsonl": "--field"}.items():
        assert offered("tokens", "--file", name, option, "") == ["id", "body"]
        assert offered("tokens", "--file", name, "--keep", "id,") == ["id,body"]
    for place in ("d.txt", "missing.csv", "nothing/*", "s3://bucket/x.csv", "-"):
        assert offered("tokens", "--file", place, "--column", "") == []
    assert offered("tokens", "--column", "") == []
