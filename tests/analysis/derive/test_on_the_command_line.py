"""The derived views as a user runs them: tables, JSON, TSV, saved traces, errors, widths."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer that has merged little: most words have several pieces, and many are halves."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["time flies like an arrow"] * 9, trainer)
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def arrays(document: dict[str, Any], name: str = "weights") -> np.ndarray:
    return np.array([[head[name] for head in layer["heads"]] for layer in document["layers"]])


def test_the_rule_is_printed_and_the_words_say_their_pieces(attn: Run, byte_level: Path) -> None:
    ran = attn("inspect", "time flies 你好", "--vocab", byte_level, "--words", "--head", "0")
    assert (ran.code, ran.err) == (0, "")
    assert "the weight on a word is the sum over its pieces, the weight from a word the mean over its pieces" in ran.out
    assert re.search(r"tokens +0 time +1 flies +2 你好", ran.out)
    assert re.search(r"pieces +0(-\d+)? +\d+-\d+ +\d+-\d+", ran.out)
    assert "<" not in ran.out


def test_words_in_json_and_tsv_agree_and_have_no_scores(attn: Run, byte_level: Path) -> None:
    command = ("inspect", "time flies like", "--vocab", byte_level, "--words")
    document = attn(*command, "-F", "json").json
    assert document["derived"]["words"] is True
    assert document["key_tokens"][1]["text"] == "flies"
    assert document["key_tokens"][1]["id"] is None
    assert document["layers"][0]["capture"] == "derived"
    assert set(document["layers"][0]["heads"][0]) == {"head", "mask", "weights", "metrics"}
    assert document["layers"][0]["heads"][0]["metrics"]["max_score"] is None
    header, *rows = [line.split("\t") for line in attn(*command, "-F", "tsv").out.splitlines()]
    assert header[-3:] == ["score", "allowed", "weight"]
    assert {row[8] for row in rows} == {""}
    weights = np.array([float(row[-1]) for row in rows], np.float32).reshape(arrays(document).shape)
    assert (weights == arrays(document).astype(np.float32)).all()
    assert [row[5] for row in rows[:9:3]] == ["time", "flies", "like"]


def test_a_query_and_a_key_are_asked_for_by_word(attn: Run, byte_level: Path) -> None:
    ran = attn("inspect", "time flies like", "--vocab", byte_level, "--words", "--query", "flies", "-F", "json")
    assert [token["text"] for token in ran.json["query_tokens"]] == ["flies"]
    missing = attn("inspect", "time flies like", "--vocab", byte_level, "--words", "--query", "ies")
    assert (missing.code, missing.err) == (2, "attn: --query 'ies': no such query token; did you mean 'flies'?\n")


def test_what_is_averaged_is_named(attn: Run) -> None:
    command = ("inspect", "time flies like", "--mean", "heads")
    shown = attn(*command).out
    assert "mean of heads" in shown
    assert "reduced: mean over heads 0-3" in shown
    assert "head 0" not in shown
    document = attn(*command, "-F", "json").json
    whole = arrays(attn("inspect", "time flies like", "-F", "json").json)[0]
    np.testing.assert_allclose(arrays(document)[0, 0], whole.mean(axis=0), atol=1e-6)
    assert document["layers"][0]["heads"][0]["head"] == "mean"
    assert "metrics" in document["layers"][0]["heads"][0]
    assert attn(*command, "-F", "tsv").out.splitlines()[1].split("\t")[3] == "mean"


def test_what_is_made_of_one_layer_or_one_head_is_called_so(attn: Run) -> None:
    assert "rollout: layer 0, the mean over all heads" in attn("inspect", "time flies", "--rollout").out
    assert "reduced: mean over head 2\n" in attn("inspect", "time flies", "--mean", "heads", "--head", "2").out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rollout", "--query", "2"], "query 1 'b' in head 1; the softmax"),
        (["--words"], "query 1 'b' in head 1; the softmax"),
        (["--mean", "heads"], "query 1 'b' in head 1; the softmax"),
        (["--mean", "heads", "--query", "0"], ""),
        (["--mean", "heads", "--head", "0,2"], ""),
    ],
)
def test_a_row_without_a_key_is_warned_about_whatever_is_made_of_it(
    attn: Run, tmp_path: Path, options: list[str], said: str
) -> None:
    allowed = np.ones((4, 3, 3), bool)
    allowed[1, 1] = False
    np.save(tmp_path / "mask.npy", allowed)
    ran = attn("inspect", "a b c", "--mask", f"file('{tmp_path / 'mask.npy'}')", *options)
    assert ran.code == 0
    assert ran.err.count("\n") == bool(said)
    assert said in ran.err


def test_norms_are_called_norms(attn: Run) -> None:
    command = ("inspect", "time flies", "--norms")
    assert "norms of every head" in attn(*command).out
    head = attn(*command, "-F", "json").json["layers"][0]["heads"][0]
    assert set(head) == {"head", "mask", "norms"}
    assert attn(*command, "-F", "csv").out.splitlines()[0].endswith("score,allowed,norm")


def test_a_trace_file_of_before_words_is_read(attn: Run, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    new, old = tmp_path / "new.safetensors", tmp_path / "old.safetensors"
    attn("inspect", "time flies", "--save", new)
    with safe_open(new, framework="numpy") as file:
        header = json.loads(file.metadata()["attncli"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for token in header["query_tokens"] + header["key_tokens"]:
        del token["word"]
    save_file(tensors, old, {"attncli": json.dumps(header)})
    ran = attn("inspect", "--from", old, "--words")
    assert ran.code == 0
    assert "a word is what no space divides" in ran.out


def test_a_ramp_changes_the_shades_and_what_stands_between_them_and_no_number(attn: Run) -> None:
    command = ("inspect", "time flies like an arrow", "--head", "0", "--show", "weights,heatmap")
    logarithmic, root, linear = (attn(*command, "--ramp", ramp).out for ramp in ("log", "sqrt", "linear"))
    assert "weights   ≤.001  ░░░ .0056 ░▒▒▒ .032 ▒▓▓▓ .18 ▓███ 1" in logarithmic
    assert "weights   0  ░░░ .062 ░▒▒▒ .25 ▒▓▓▓ .56 ▓███ 1" in root
    assert "weights   0  ░░░ .25 ░▒▒▒ .5 ▒▓▓▓ .75 ▓███ 1" in linear
    digits = [shown[: shown.index("weights   ")] for shown in (logarithmic, root, linear)]
    assert digits[0] == digits[1] == digits[2]
    maps = {shown[shown.index("0 time", shown.index("weights   ")) :] for shown in (logarithmic, root, linear)}
    assert len(maps) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rollout", "--norms"], "drop one of them"),
        (["--rollout", "--head", "1"], "mean over all heads of a layer; drop --head"),
        (["--rollout", "--mean", "heads"], "already the mean"),
        (["--mean", "layers"], "several layers"),
        (["--words", "--show", "q"], "they have tokens, shapes, mask, weights, heatmap, metrics, proof"),
        (["--norms", "--show", "metrics"], "they have tokens, shapes, mask, weights, heatmap, proof"),
        (["--mean", "rows"], "'rows' is not"),
        (["--reduce", "mean"], "use --mean heads"),
    ],
)
def test_what_does_not_apply_is_a_usage_error(attn: Run, options: list[str], said: str) -> None:
    ran = attn("inspect", "time flies", *options)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_dump_has_no_words_and_no_values(attn: Run, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "dump.safetensors"
    save_file({name: np.ones((3, 2), np.float32) for name in "qk"}, path)
    ran = attn("inspect", "--from", path, "--words")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "where each token stands" in ran.err
    ran = attn("inspect", "--from", path, "--norms")
    assert (ran.code, "needs the values V" in ran.err) == (4, True)
    assert attn("inspect", "--from", path, "--rollout").code == 0


TEXTS = {
    "CJK": "時間は矢のように飛ぶ 你好 世界",
    "emoji": "time 👩‍👩‍👧 flies 🦋🦋 ok",
    "Arabic": "الوقت يطير مثل سهم 2024",
    "Hebrew": "הזמן עף כמו חץ",
}


@pytest.mark.parametrize(
    ("name", "width", "words"),
    [
        ("CJK", 60, []),
        ("CJK", 200, ["--words"]),
        ("emoji", 60, ["--words"]),
        ("emoji", 100, []),
        ("Arabic", 100, ["--words"]),
        ("Hebrew", 60, []),
    ],
)
def test_every_script_keeps_its_columns(attn: Run, byte_level: Path, name: str, width: int, words: list[str]) -> None:
    command = ["inspect", TEXTS[name], "--vocab", byte_level, *words, "--head", "0", "--width", str(width)]
    shown = attn(*command, "--show", "heatmap").out.splitlines()
    assert max(map(cell_len, shown)) <= width
    start = next(place for place, line in enumerate(shown) if "head 0" in line)
    column = cell_len(shown[start].partition("head 0")[0])
    rows = [line for line in shown[start + 2 :] if line.strip()]
    # The first cell of every row, and all of the first row's, stand below the title.
    for line in rows:
        label = line[: next(cut for cut in range(len(line)) if cell_len(line[:cut]) == column)]
        assert cell_len(label) == column
        assert label.strip()[0].isdigit()


def test_letters_that_run_from_the_right_end_their_run(attn: Run) -> None:
    ran = attn("inspect", TEXTS["Arabic"], "--head", "0", "--show", "weights")
    for line in ran.out.splitlines():
        for found in re.finditer(r"\S+", line):
            letters = [unicodedata.bidirectional(character) for character in found[0]]
            assert ("AL" in letters) == found[0].endswith("\u200e")


def test_a_token_cannot_bring_a_mark_of_its_own(attn: Run) -> None:
    shown = attn("inspect", "a\u200eb \u202ec", "--vocab", "words", "--show", "tokens", "--words").out
    assert "\u202e" not in shown
    assert "\u200e" not in shown
