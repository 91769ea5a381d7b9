"""What is answered to habits: an option of another tool, a sentence or a mask without its command."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fuzzing import commands
from typer import Context
from typer.main import get_command

from attncli.cli.app import app
from attncli.cli.meanings import COMMANDS, INSTEAD, MEANT

Run = Callable[..., Any]
CAUSAL_WINDOW = '--mask "causal & window(4)"'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "x", "--heads", "2"], "did you mean '--num-heads'?"),
        (["inspect", "x", "--heads", "2", "-m", "somebody/tiny"], "did you mean '--head'?"),
        (["inspect", "x", "-msomebody/tiny", "--heads=2"], "did you mean '--head'?"),
        (["inspect", "x", "--causal"], "did you mean '--mask causal'?"),
        (["inspect", "x", "--window", "4"], f"did you mean '{CAUSAL_WINDOW}'?"),
        (["inspect", "x", "--log"], "did you mean '--ramp log'?"),
        (["inspect", "x", "--no-sink"], "did you mean '--range no-sink'?"),
        (["inspect", "x", "--json"], "did you mean '--format json'?"),
        (["mask", "show", "causal", "--json"], "did you mean '--format json'?"),
        (["inspect", "x", "--output_format", "json"], "did you mean '--format'?"),
        (["heads", "x", "--no-color"], "did you mean '--color never'?"),
        (["inspect", "x", "--cuda"], "did you mean '--device cuda'?"),
        (["inspect", "x", "--FP16"], "did you mean '--dtype float16'?"),
        (["inspect", "x", "--temperature", "2"], "the softmax of attention has none; in the toy layer --scale says"),
        (["inspect", "--text", "time flies"], "the text itself is given, in quotes"),
        (["inspect", "x", "--num-layers", "2"], "the toy layer is one; --layer chooses some of a checkpoint's"),
        (["inspect", "x", "--pager"], "did you mean '--all'?"),
        (["inspect", "x", "--figure", "x.pdf"], "did you mean '--output FILE.pdf'?"),
        (["inspect", "x", "--dropout", "0.1"], "attention is shown as it is in use, without dropout"),
        (["mask", "check", "mask.npy", "--causal"], "did you mean '--expect causal'?"),
        (["mask", "show", "mask.npy", "--expect", "causal"], "attn mask check says whether a mask is what is expected"),
        (["mask", "check", "-f", "mask.npy"], "the mask is given by itself, without -f"),
        (["mask", "model", "-m", "demo"], "the model is given by itself, without -m"),
        (["mask", "model", "--model", "demo"], "the model is given by itself, without --model"),
        (["-m", "demo", "time flies"], "it stands after the command: attn inspect -m"),
        (["--verbose", "inspect", "x"], "it stands after the command: attn inspect --verbose"),
    ],
)
def test_an_option_of_another_tool_is_answered_with_what_it_means_here(
    arguments: list[str], said: str, attn: Run
) -> None:
    ran = attn(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert re.match(r"attn: no such option: --?\S+; ", ran.err)
    assert f"; {said}" in ran.err


def test_heads_are_those_of_a_checkpoint_that_is_set_elsewhere(attn: Run) -> None:
    assert "did you mean '--head'?" in attn("inspect", "x", "--heads", "2", ATTN_MODEL="somebody/tiny").err
    assert "did you mean '--num-heads'?" in attn("inspect", "x", "--heads", "2", ATTN_MODEL="").err


def test_what_a_command_has_no_option_for_is_not_suggested(attn: Run) -> None:
    assert attn("mask", "show", "causal", "--fp16").err == "attn: no such option: --fp16; see attn mask show --help\n"


def options_of_all_commands() -> Iterator[str]:
    root: Any = get_command(app)
    for path in commands(root):
        command = root
        for name in path:
            command = command.get_command(Context(command), name)
        yield from (name for parameter in command.params for name in parameter.opts)


def test_what_is_suggested_exists_and_what_is_not_there_does_not() -> None:
    known = set(options_of_all_commands())
    for word, meant in MEANT.items():
        assert meant.split()[0] in known, word
    for word in set(INSTEAD) - {"expect"}:  # which one command has
        assert f"--{word}" not in known, word


def test_commands_go_by_other_names(attn: Run) -> None:
    names = {" ".join(path[:1]) for path in commands(get_command(app))}
    for word, meant in COMMANDS.items():
        ran = attn(word, "time flies")
        assert ran.code == 2
        assert f"; did you mean attn {meant}?; see attn --help" in ran.err
        assert meant.split()[0] in names | {"mask", "--version"}
        assert word not in names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["time flies"], 'attn inspect "time flies"'),
        (["time", "flies", "--head", "2"], 'attn inspect "time flies"'),
        (['say "x"'], "attn inspect 'say \"x\"'"),
        (["time\x1b[31m flies"], 'attn inspect "time\\x1b[31m flies"'),
        (["time " * 50], 'attn inspect "' + ("time " * 12) + '…"'),
        (["mask", "causal"], "attn mask show causal"),
        (["mask", "causal & window(4)", "--size", "5"], "attn mask show 'causal & window(4)'"),
        (["mask", "mask.npy"], "attn mask show mask.npy"),
    ],
)
def test_a_sentence_or_a_mask_without_a_command_is_answered_with_the_command(
    arguments: list[str], said: str, attn: Run
) -> None:
    ran = attn(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("attn: no such command '")
    assert f"; did you mean {said}?; see attn " in ran.err


@pytest.mark.parametrize("arguments", [["frobnicate"], ["frobnicate", "--size", "3"], ["mask", "frobnicate"], [" "]])
def test_a_word_that_may_be_any_name_is_not_guessed_at(arguments: list[str], attn: Run) -> None:
    ran = attn(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "did you mean" not in ran.err


def test_a_command_that_is_nearly_there_goes_before_a_sentence(attn: Run) -> None:
    assert "did you mean 'inspect'?" in attn("inspct", "time flies").err


def test_more_words_than_a_command_takes_are_to_be_quoted(attn: Run) -> None:
    ran = attn("mask", "show", "causal", "time", "flies")
    assert ran.code == 2
    assert "extra argument(s) (flies); a text of several words stands in quotes" in ran.err
    assert "quotes" not in attn("config", "x").err
