"""Completion typed for real: bash, zsh and fish in a terminal, and what `attn` is then run with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from shells import PROJECT, SCRIPTS, Shell, shell
from small_checkpoints import hub_cache

pytestmark = pytest.mark.system
SHELLS = ("bash", "zsh", "fish")
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module", params=SHELLS)
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, minilm: str) -> Iterator[Shell]:
    """Start a shell in a folder with a few files, and with a model in the local cache."""
    home = tmp_path_factory.mktemp(request.param)
    cache = hub_cache(home / "cache", MODEL, minilm)
    (home / "runs" / "small one").mkdir(parents=True)
    (home / "runs" / "small one" / "config.json").write_text('{"num_hidden_layers": 7, "num_attention_heads": 13}')
    for name in ("a mask.npy", "a mask.txt", "trace.safetensors", "time.txt"):
        (home / name).touch()
    with shell(request.param, home, HF_HOME=cache["HF_HOME"]) as opened:
        yield opened


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ("attn insp\t", ["inspect"]),
        ("attn mask sh\tfu\t--siz\t4", ["mask", "show", "full", "--size", "4"]),
        ("attn insp\t--form\tjsonl -F j\tx", None),
        ("attn inspect --colorm\tvi\t", ["inspect", "--colormap", "viridis"]),
        ("attn inspect --colormap=ci\t", ["inspect", "--colormap=cividis"]),
        ("attn inspect -F ht\tx", ["inspect", "-F", "html", "x"]),
        ("attn inspect --mask 'causal & win\t4)' x", ["inspect", "--mask", "causal & window(4)", "x"]),
        ('attn inspect --mask "causal & win\t4)" x', ["inspect", "--mask", "causal & window(4)", "x"]),
        ("attn inspect --mask 'causal & ~(win\t4) | pref\t2))'",
         ["inspect", "--mask", "causal & ~(window(4) | prefix(2))"]),
        ("attn inspect --mask 'causal & pad(l\t2)'", ["inspect", "--mask", "causal & pad(left=2)"]),
        ("attn inspect --mask 'causal & fu\tx", ["inspect", "--mask", "causal & full", "x"]),
        ("attn inspect --mask causal\\ \\&\\ fu\tx", ["inspect", "--mask", "causal & full", "x"]),
        ("attn inspect --mask cau\tx", ["inspect", "--mask", "causal", "x"]),
        ("attn inspect --mask a\tx", ["inspect", "--mask", "a mask.npy", "x"]),
        ("attn inspect --mask 'a\tx", ["inspect", "--mask", "a mask.npy", "x"]),
        ("attn inspect -m sent\tx", ["inspect", "-m", MODEL, "x"]),
        (f"attn inspect -m {MODEL} --layer 5\t-H 10\tx", ["inspect", "-m", MODEL, "--layer", "5", "-H", "10", "x"]),
        ("attn inspect -m ru\tsm\t--head 12\t-l 6\tx",
         ["inspect", "-m", "runs/small one", "--head", "12", "-l", "6", "x"]),
        ("attn inspect -m 'runs/sm\tx", ["inspect", "-m", "runs/small one", "x"]),
        ("attn inspect -m ~/ru\tsm\tx", ["inspect", "-m", "~/runs/small one", "x"]),
        ("attn inspect --from tr\tx", ["inspect", "--from", "trace.safetensors", "x"]),
        ("attn inspect --show q,k,mas\tx", ["inspect", "--show", "q,k,mask", "x"]),
        ("attn check --fail-on leak,dea\t", ["check", "--fail-on", "leak,dead-row"]),
        ("attn completion po\t", ["completion", "powershell"]),
        ("attn nonsense in\tx", ["nonsense", "in\tx"]),
    ],
)  # fmt: skip
def test_a_tab_finishes_the_word(typed: Shell, keys: str, arguments: list[str] | None) -> None:
    ran = typed.ran(keys)
    if arguments is None:  # several fit: nothing is decided for the user
        assert ran == ["inspect", "--format", "jsonl", "-F", "jsonx"]
        return
    home = str(typed.record.parent)
    assert ran == [one.replace("~", home, 1).replace("\t", "") if one.startswith("~/") else one.replace("\t", "")
                   for one in arguments]  # fmt: skip


@pytest.mark.parametrize("name", SHELLS)
def test_the_first_and_the_second_tab_list_what_fits(name: str, tmp_path: Path) -> None:
    with shell(name, tmp_path) as opened:
        opened.type("attn hea\t")
        opened.wait_for("heads")
        opened.type("--s\t\t")
        opened.wait_for("--seed")


def test_bash_completion_finds_the_script_where_the_readme_puts_it(tmp_path: Path) -> None:
    folder = tmp_path / ".local" / "share" / "bash-completion" / "completions"
    folder.mkdir(parents=True)
    (folder / "attn").write_text((PROJECT / "completions" / SCRIPTS["bash"]).read_text())
    with shell("bash", tmp_path, startup=". /usr/share/bash-completion/bash_completion") as opened:
        assert opened.ran("attn insp\t--mask 'win\t4)'") == ["inspect", "--mask", "window(4)"]
        assert opened.ran("attn insp\t--mas\tcau\t") == ["inspect", "--mask", "causal"]


def test_zsh_takes_the_script_from_the_program_as_well(tmp_path: Path) -> None:
    script = PROJECT / "completions" / SCRIPTS["zsh"]
    with shell("zsh", tmp_path, startup=f"autoload -Uz compinit; compinit -u -D; source {script}") as opened:
        assert opened.ran("attn insp\t--mask 'win\t4)'") == ["inspect", "--mask", "window(4)"]
        assert opened.ran("attn insp\t--mas\tcau\t") == ["inspect", "--mask", "causal"]


# Names that say something to a shell: what would run, what would expand, what would end a quote.
NASTY = [
    "e$(touch PWN)x", "e`touch PWN`x", 'e";touch PWN;"x', "e';touch PWN;'x", "e\\$(touch PWN)\\", "!!e!-1x!", "~root",
    "x=~root:~root", "=e ~x#*?[x]{a,b}&|<>;", "\"'", "\\'\\\"\\`touch PWN`", " $HOME (e)^%1@ ", "é''$",
]  # fmt: skip


@pytest.fixture(scope="module", params=SHELLS)
def among_nasty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Start a shell whose folders 0, 1, 2 … hold one of the names each, a folder, and in it the same again, a file."""
    home = tmp_path_factory.mktemp(request.param)
    for index, name in enumerate(NASTY):
        (home / str(index) / name).mkdir(parents=True)
        (home / str(index) / name / name).touch()
    with shell(request.param, home, HF_HOME=str(home / "none")) as opened:
        yield opened


@pytest.mark.parametrize("quote", ["", '"', "'"])
@pytest.mark.parametrize("index", range(len(NASTY)), ids=NASTY)
def test_no_name_of_a_file_is_executed_and_each_arrives_as_it_is(among_nasty: Shell, index: int, quote: str) -> None:
    home, name = among_nasty.record.parent, NASTY[index]
    among_nasty.type(f"cd {home}/{index}\r")
    among_nasty.wait_for("ready>")
    # Back and forth between the TABs, so that the second one is no question for more of the first.
    arguments = among_nasty.ran(f"attn inspect -f {quote}\t\x02\x06\t")
    assert list(home.rglob("PWN")) == []
    if name.startswith("~") and not quote and (home / ".config" / "fish").exists():
        assert arguments == ["inspect", "-f"], "fish would not escape it"
    else:
        assert arguments == ["inspect", "-f", f"{name}/{name}"]


def test_bash_offers_nothing_where_quotes_are_inside_of_what_expands(tmp_path: Path) -> None:
    (tmp_path / "e$(touch PWN)x").mkdir()
    (tmp_path / "e$(touch PWN)x" / "config.json").write_text("{}")
    with shell("bash", tmp_path) as opened:
        assert opened.ran('attn inspect "$(echo a)" "${HOME}$(echo "e\t")"') == ["inspect", "a", f"{tmp_path}e"]
        assert opened.ran("attn inspect `echo a` $'it\\'s' -m 'e\t'") == ["inspect", "a", "it's", "-m", "e"]
        assert opened.ran('attn inspect "$(echo a)" --mask \'fu\t') == ["inspect", "a", "--mask", "full"]
        assert not (tmp_path / "PWN").exists()


def test_zsh_offers_in_double_quotes_no_name_that_it_would_expand_itself(tmp_path: Path) -> None:
    folder = tmp_path / "e$'\\x24(touch PWN)'x"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with shell("zsh", tmp_path) as opened:
        assert opened.ran('attn inspect -m "e\t"') == ["inspect", "-m", "e"]
        assert opened.ran("attn inspect -m 'e\t") == opened.ran("attn inspect -m e\t") == ["inspect", "-m", folder.name]
        assert not (tmp_path / "PWN").exists()
