"""What nobody would type: sentences, masks and command lines drawn by Hypothesis from the program's own parameters."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# FUZZ_TIMES=20 draws twenty times as many examples, and others every time; see conftest.
TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def examples(count: int) -> settings:
    """The settings of a test of so many examples, each of which has its own limit of time."""
    return settings(
        max_examples=count * TIMES,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# --- sentences ---
ODD_WORDS = (
    "time", "flies", "like", "an", "arrow", "##ing", "Ġthe", "▁x", "[CLS]", "[/INST]", "[bold red]", ":smile:",
    "\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "\u202etxt\u2066", "a\u200bb", "\ud800", "\udcff", "\ufeff", "\uffff",
    "<script>", "]]>", "&amp;", '"', "'", "\\", "\\t", "|", "`", "=1+1", "%s", "{0}", "﷽", "👨‍👩‍👧‍👦", "漢字",
    "\u0301\u0301", "\t", "\r", "\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\xa0",
    "-", "--", "-1", "0", "\x7f",
)  # fmt: skip
words = st.sampled_from(ODD_WORDS) | st.text(st.characters(codec=None, exclude_characters="\0"), max_size=8)
texts = st.lists(words, max_size=6).map(" ".join) | st.text(st.characters(exclude_characters="\0"), max_size=20)

# --- masks ---
_numbers = st.integers(0, 9).map(str) | st.sampled_from(
    ["-1", "10", "1000", "2147483647", "2147483648", "999999999", "1000000000", str(2**64), "9" * 40, "9" * 5000]
)
_likely = st.integers(0, 6).map(str)
_atoms = st.one_of(
    st.sampled_from(["full", "causal", "none"]),
    st.builds("{}({})".format, st.sampled_from(["window", "prefix", "chunk", "global", "docs"]), _likely),
    st.builds("{}({},{})".format, st.sampled_from(["band", "dilated", "keys", "queries", "global"]), _likely, _likely),
    st.builds("docs({})".format, st.lists(_likely, min_size=1, max_size=6).map(",".join)),
    st.builds("pad({}={})".format, st.sampled_from(["left", "right"]), _likely),
    st.builds("{}({})".format, st.sampled_from(["window", "band", "keys", "docs", "pad", "file", "x"]), _numbers),
)
grammatical = st.recursive(
    _atoms,
    lambda inner: st.one_of(st.builds("({})".format, inner), st.builds("~{}".format, inner),
        st.builds("{} & {}".format, inner, inner), st.builds("{}|{}".format, inner, inner)),
    max_leaves=6,
)  # fmt: skip

_odd = [
    *(f"{start}causal{end}" for start in ("(", "~" * 101, "~(" * 10_000, "causal & (" * 99) for end in ("", ")")),
    " & ".join(["causal"] * 3000), "file(", "causal window", "=", "pad(left", "٣", "²", "ﬁle",
]  # fmt: skip
_files = st.sampled_from(
    ["mask.npy", "mask.safetensors", "mask.pt", 'file("mask.npy")', 'causal & file("mask.npy")', "missing.npy", ".npy"]
)
masks = st.one_of(grammatical, grammatical, texts, _files, st.sampled_from(_odd))

# --- command lines ---
_names = st.sampled_from([f"out.{ending}" for ending in "json jsonl tsv csv svg html md txt parquet npy pt".split()])
Values = st.SearchStrategy[str] | list[str]
# What makes no sense for any option, or hardly; the last number has more digits than Python turns into one.
ODD = [
    "", " ", ",", ".", "-", "0", "-1", "7", "1.5", "1e3", "1_0", "٣", "nan", "inf", "1e999", "9" * 20, "9" * 5000, "x",
    "X=", "0-999999999", "1-0", "0--1", "2x", "0x1", "9999x9999", "-1GB", "1e9in", "a\nb", "\x1b[2J", "x\x1b[2J:1",
    "missing", "missing/out.json", "missing.gz", "/out.json/x.json", "text.txt/x", "x://y", "file:///missing", "[",
    "**", "no-one/nothing", "a/b/c", "mask.npy", "trace.safetensors", "bytes.txt", "empty.txt", "time " * 40,
]  # fmt: skip
_CHECKPOINTS = ["tiny", "tiny", "tiny", "."]
_MASKS = st.one_of(grammatical, grammatical, grammatical, _files)

# What makes sense, by metavar.
BY_METAVAR: dict[str, Values] = {
    "N": ["1", "2", "3", "8"], "N|QxK": ["3", "8", "2x5"],
    **{name: ["0", "-1", "all", "0,0"] for name in ("LAYERS", "HEADS")},
    "TEXT": st.one_of(*[texts.map("time {}".format)] * 3, texts),
    **{name: ["0", "-1", "time"] for name in ("TOKEN", "TOKENS")},
    "PARTS": st.lists(st.sampled_from("tokens shapes q k v scores mask weights heatmap output metrics".split()),
        min_size=1).map(",".join),
    "METRICS": ["entropy", "self,previous", "sink"], "METRIC": ["entropy", "-sink", "previous"],
    "CODES": ["leak", "leak,pad", "dead-row"], **dict.fromkeys(("EXPR", "EXPR|FILE", "[PATTERN=]EXPR"), _MASKS),
    "PATH|URL": ["text.txt", "table.csv", "lines.jsonl"], **dict.fromkeys(("FILE", "PATH"), _names),
    "sqrt|none|NUMBER": ["sqrt", "none", "0.5"], "words|TOKENIZER": ["words", "tokenizer.json", "tiny"],
    "auto": ["auto", "cpu"], "SIZE": ["20GB", "1 MB", "0", "3.3in"], "NAME": ["cpu", "main"], "MODEL": _CHECKPOINTS,
    "FOLDER|NAME": ["tiny", "missing"],
    "SCRIPT ARGS": ["program.py"], "LENGTHS": ["2", "4,1"], "MODULE": ["program"], "GLOB": ["program.py", "*:5"],
    "N|auto": ["1", "auto"], "ray|ray://HOST:PORT": ["ray://127.0.0.1:1"], "IMAGE": ["missing.png", "text.txt"],
    "RULES": ["max_score>50", "sink<0"],
    "ROWSxCOLUMNS": ["1x2", "2x1"], "zero|mean|TEXT": ["zero", "mean", "flies time"], "DIR": ["saved"],
}  # fmt: skip


def values(parameter: Any, is_wild: bool) -> st.SearchStrategy[str]:
    """What one parameter may be given: its choices, or what its metavar stands for; where it is wild, anything."""
    choices = [value for value in get_args(parameter.type_descriptor.annotation) if isinstance(value, str)]
    if choices:
        sane: Values = choices
    elif parameter.metavar is None:
        sane = ["bash", "zsh"] if parameter.name == "shell" else ["attn", "inspect", "--mask", "-m"]
    elif parameter.name == "width":
        sane = ["40", "60", "100", "200", "100000"]
    else:
        sane = ["trace.safetensors", "dump.safetensors"] if parameter.name == "from_" else BY_METAVAR[parameter.metavar]
    likely = st.sampled_from(sane) if isinstance(sane, list) else sane
    if not is_wild or parameter.metavar in ("MODULE", "DIR"):  # of any name one is run, or made
        return likely
    return st.one_of(masks if sane is _MASKS else st.sampled_from(ODD), likely, texts)


@dataclass(frozen=True)
class Line:
    path: tuple[str, ...]  # of the command, such as `mask show`
    options: tuple[tuple[str, ...], ...]  # names and values of the options
    arguments: tuple[str, ...]  # what stands between the options, or behind them
    stdin: bytes  # standard input

    @property
    def words(self) -> list[str]:
        return [*self.path, *(word for option in self.options for word in option), "--", *self.arguments]

    def given(self, *names: str) -> str | None:
        found = [option[-1] for option in self.options if option[0] in names]
        return found[-1] if found else None


def commands(root: Any) -> dict[tuple[str, ...], Any]:
    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not hasattr(command, "list_commands"):
            yield path, command
            return
        for name in command.list_commands(None):
            yield from below(command.get_command(None, name), (*path, name))

    return dict(below(root, ()))


@st.composite
def _option(draw: st.DrawFn, parameter: Any, is_wild: bool) -> tuple[str, ...]:
    name = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
    return (name,) if parameter.is_flag else (name, draw(values(parameter, is_wild)))


_stdin = st.sampled_from([b"", b"time flies\n", b"time\r\n\r\nflies\n", b"\xef\xbb\xbftime", b"\xff\n ok\n", b"a\0b\n"])

_OFTEN = (("inspect",), ("heads",), ("why",), ("diff",)) * 3

# Panels of options that belong to one source; the others are refused there, which is soon known.
_SOURCES = {"Model": "model", "Toy layer (without --model)": None, "": "from_"}
_TEXTS = {("why",): 1, ("diff",): 2}  # how many sentences a command takes; the others take any number


@st.composite
def lines(draw: st.DrawFn, found: dict[tuple[str, ...], Any]) -> Line:
    """A line of one of the commands: half of them make sense but for their combination of options, others less."""
    path = draw(st.sampled_from([*found, *_OFTEN]))
    wild = draw(st.sampled_from([0, 0, 1, 2]))  # how many values in three make no sense

    def is_wild() -> bool:
        return draw(st.integers(0, 2)) < wild

    source = draw(st.sampled_from([*_SOURCES, *_SOURCES, None])) if path != ("check",) or wild else "Model"
    parameters = [one for one in found[path].params if not one.is_eager]  # as --help-all is, which prints no data
    options, arguments = [], []
    for one in parameters:
        if one.param_type_name == "argument":
            most = _TEXTS.get(path, 2) if one.nargs == -1 else 1
            count = draw(st.integers(0, 3)) if wild == 2 else draw(st.integers(min(most, _TEXTS.get(path, 1)), most))
            arguments += [draw(values(one, is_wild())) for _ in range(count)]
        elif source is None or getattr(one, "rich_help_panel", None) not in _SOURCES.keys() - {source}:
            options.append(one)
    named = [one for one in options if one.name == (source is not None and _SOURCES[source])]
    needed = named * (2 if path == ("diff",) and source == "" else 1)
    needed += [one for one in options if one.required or (path, one.name) == (("why",), "query")]
    if draw(st.booleans()):
        needed += [one for one in options if one.name == "format_"]
    if source == "" and named and wild < 2:
        arguments = []
    unique = None if wild else lambda one: one.name
    chosen = draw(st.lists(st.sampled_from(options), max_size=5, unique_by=unique)) if options else []
    if not wild:
        chosen = [one for one in chosen if one not in needed]
    stdin = draw(_stdin | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
    return Line(path, tuple(draw(_option(one, is_wild())) for one in needed + chosen), tuple(arguments), stdin)
