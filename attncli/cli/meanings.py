"""What people write by habit, from other tools, and what it is here: where its spelling says nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from attncli.errors import AttnError
from attncli.text import visible

# What is meant, as it would be written; it is said where the command has that option.
MEANT = {
    "causal": "--mask causal",
    "bidirectional": "--mask none",
    "no-causal": "--mask none",
    "no-mask": "--mask none",
    "window": '--mask "causal & window(4)"',
    "layers": "--layer",
    "heads": "--num-heads",
    "n-heads": "--num-heads",
    "n-head": "--num-heads",
    "all-heads": "--head all",
    "all-layers": "--layer all",
    "dim": "--d-model",
    "hidden-size": "--d-model",
    "embed-dim": "--d-model",
    "head-dim": "--d-k",
    "random-seed": "--seed",
    "checkpoint": "--model",
    "model-name": "--model",
    "model-path": "--model",
    "pretrained": "--model",
    "tokenizer": "--vocab",
    "attn-implementation": "--engine",
    "gpu": "--device cuda",
    "cuda": "--device cuda",
    "mps": "--device mps",
    "cpu": "--device cpu",
    "fp16": "--dtype float16",
    "half": "--dtype float16",
    "bf16": "--dtype bfloat16",
    "fp32": "--dtype float32",
    "local-files-only": "--offline",
    "max-length": "--truncate",
    "input": "--file",
    "input-file": "--file",
    "load": "--from",
    "trace": "--from",
    "tokens": "--show tokens",
    "scores": "--show scores",
    "weights": "--show weights",
    "heatmap": "--show heatmap",
    "metric": "--sort",
    "threshold": "--min-weight",
    "top-k": "--top-keys",
    "digits": "--precision",
    "decimals": "--precision",
    "round": "--precision",
    "full": "--all",
    "pager": "--all",
    "vmax": "--range",
    "interactive": "--output FILE.html",
    "cmap": "--colormap",
    "no-color": "--color never",
    "no-colour": "--color never",
    "log": "--ramp log",
    "no-sink": "--range no-sink",
    "output-format": "--format",
    "output-file": "--output",
    "out": "--output",
    "silent": "--quiet",
    "debug": "--verbose",
    "markdown": "--format md",
    **{name: f"--format {name}" for name in ("json", "jsonl", "tsv", "csv", "md", "html", "svg")},
    **{name: f"--output FILE.{name}" for name in ("pdf", "png", "parquet")},
    **dict.fromkeys(("figure", "fig", "plot", "savefig"), "--output FILE.pdf"),
}

# What there is no option for, and what there is instead.
INSTEAD = {
    "temperature": "the softmax of attention has none; in the toy layer --scale says what multiplies q·k",
    "cache-dir": "the variable HF_HOME says where the cache is",
    "stdin": "- is standard input",
    "dropout": "attention is shown as it is in use, without dropout",
    "output-attentions": "the attention is what is shown",
    "no-pager": "only --all has a pager",
    "title": "a figure has none; its caption is in the paper",
    "expect": "attn mask check says whether a mask is what is expected",
    **dict.fromkeys(("text", "prompt", "sentence"), "the text itself is given, in quotes"),
    **dict.fromkeys(("num-layers", "n-layers"), "the toy layer is one; --layer chooses some of a checkpoint's"),
}

# What people call what a command does.
COMMANDS = {
    **dict.fromkeys(("show", "view", "plot", "draw", "visualize", "visualise", "heatmap", "attention"), "inspect"),
    **dict.fromkeys(("toy", "text", "sentence"), "inspect"),
    "demo": "inspect -m demo",
    **dict.fromkeys(("explain", "cell", "weight"), "why"),
    **dict.fromkeys(("induction", "label", "labels", "metrics"), "heads"),
    "compare": "diff",
    **dict.fromkeys(("lint", "verify"), "check"),
    **dict.fromkeys(("tutorial", "teach", "walk", "lesson"), "learn"),
    **dict.fromkeys(("trace", "script"), "run"),
    **dict.fromkeys(("play", "live", "type", "interactive", "tui"), "explore"),
    "causal": "mask show causal",
    "version": "--version",
}

# Arguments that go by the names of options.
_ARGUMENTS = {"m": "model", "f": "mask", "file": "mask", "input": "mask"}

_SHOWN = 60  # characters of a sentence


def option_meant(option: str, known: Collection[str], has_model: bool) -> str:
    """Return what an option that does not exist was probably meant to be, or what there is instead, or nothing.

    Args:
        option: as it was written, without its value.
        known: the options of the command, and the names of its arguments.
        has_model: whether a checkpoint is named, which has its heads; those of the toy layer can be counted.
    """
    word = option.lstrip("-").replace("_", "-").lower()
    meant = "--head" if word == "heads" and has_model else MEANT.get(word, "")
    if word == "causal" and "--mask" not in known:
        meant = "--expect causal"
    if meant and meant.split()[0] in known:
        return f"; did you mean '{meant}'?"
    if word in INSTEAD:
        return f"; {INSTEAD[word]}"
    argument = _ARGUMENTS.get(word, word)
    return f"; the {argument} is given by itself, without {visible(option)}" if argument in known else ""


def place_meant(option: str, known: Collection[str]) -> str:
    """Return where an option belongs that stands before the command; `known` are those of `attn inspect`."""
    return f"; it stands after the command: attn inspect {option}" if option in known else ""


def command_meant(word: str) -> str:
    """Return the command that does what a word says, and nothing where no word says it."""
    return f"; did you mean attn {COMMANDS[word.lower()]}?" if word.lower() in COMMANDS else ""


def sentence_meant(words: Sequence[str]) -> str:
    """Return the command for a sentence that stands in its place; nothing for a single word, which may be any name."""
    text = " ".join(takewhile(lambda word: not word.startswith("-"), words))
    if not any(map(str.isspace, text.strip())):
        return ""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    import shlex

    quoted = shlex.quote(shown) if set(shown) & set('"$`\\!') else f'"{shown}"'
    return f"; did you mean attn inspect {visible(quoted)}?"


def mask_meant(word: str) -> str:
    """Return the command for a mask that stands in its place, and nothing where it is none."""
    import shlex

    from attncli.masks.layout import is_file
    from attncli.masks.parser import parse

    try:
        if not is_file(word):
            parse(word, states_true=False)
    except AttnError:
        return ""
    return f"; did you mean attn mask show {visible(shlex.quote(word))}?"
