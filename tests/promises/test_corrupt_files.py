"""Files that are damaged, or made to do damage: a right answer or one sentence, nothing executed, memory bounded."""

import json
import os
import pickle
import random
import shutil
import stat
import struct
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from apart import ran_apart
from gguf import GGUFWriter
from gguf_files import Kind, write_gguf
from outputs import FINDINGS, INPUT, LOAD, OK, answered_or_refused, one_sentence
from refusals import Evil, refused
from safetensors import safe_open
from safetensors.numpy import save, save_file
from tokenizer_folders import PLACED, spm
from tokenizers import Tokenizer, models, pre_tokenizers

Run = Callable[..., Any]
TEXT = "time flies like an arrow"
TRIES = 30  # damaged copies of each file


def damaged(content: bytes, seed: int) -> bytes:
    """A copy that is cut off, or has a few bits turned; half of them near the front, where a header stands."""
    drawn = random.Random(seed)
    if seed % 4 == 0:
        return content[: drawn.randrange(len(content))]
    copy = bytearray(content)
    reach = min(len(content), 300) if seed % 2 else len(content)
    for _ in range(drawn.randint(1, 4)):
        copy[drawn.randrange(reach)] ^= 1 << drawn.randrange(8)
    return bytes(copy)


def tried(attn: Run, path: Path, arguments: list[Any], times: int = TRIES) -> Counter[int]:
    """Run a command on damaged copies of one of its files; return how often it ended in which way."""
    whole = path.read_bytes()
    ended: Counter[int] = Counter()
    assert attn(*arguments).code == OK
    for seed in range(times):
        path.write_bytes(damaged(whole, seed))
        ran = attn(*arguments)
        answered_or_refused(ran)
        ended[int(ran.code)] += 1
    path.write_bytes(whole)
    assert attn(*arguments).code == OK
    return ended


def said(what: str, ended: Counter[int]) -> None:
    print(f"{what}: {sum(ended.values())} damaged files, {dict(sorted(ended.items()))} by exit code")
    assert set(ended) - {OK, FINDINGS}, "no damage was found in any of them"


@pytest.mark.parametrize("ending", ["npy", "safetensors", "pt"])
def test_a_damaged_mask_is_read_or_refused(ending: str, attn: Run, tmp_path: Path) -> None:
    path = tmp_path / f"mask.{ending}"
    assert attn("mask", "convert", "causal", "--size", "5", "--to", "additive", "-o", path).code == OK
    said(ending, tried(attn, path, ["inspect", TEXT, "--mask", path]))


def test_a_damaged_trace_is_read_or_refused(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    assert attn("inspect", TEXT, "--pair", "fruit", "--mask", "window(3)", "--save", path).code == OK
    said("trace", tried(attn, path, ["inspect", "--from", path, "--show", "tokens,q,weights,output,metrics"], 100))


def test_a_damaged_dump_is_read_or_refused(attn: Run, tmp_path: Path) -> None:
    path = tmp_path / "dump.safetensors"
    q = np.random.default_rng(0).standard_normal((2, 4, 3), dtype=np.float32)
    metadata = {"tokens": json.dumps(["a", "b", "c", "d"]), "scale": "0.5"}
    save_file({"q": q, "k": q + 1, "v": q, "mask": np.tri(4, dtype=bool)}, path, metadata=metadata)
    said("dump", tried(attn, path, ["why", "--from", path, "-q", "1"], 100))


@pytest.mark.parametrize("engine", ["auto", "transformers"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_damaged_checkpoint_is_read_or_refused(
    name: str, engine: str, attn: Run, tiny_llama: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "checkpoint"))
    said(name, tried(attn, folder / name, ["inspect", TEXT, "-m", folder, "-l", "all", "--engine", engine]))


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_damaged_adapter_is_read_or_refused(
    name: str, engine: str, attn: Run, tiny_llama: str, tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    settings = {"peft_type": "LORA", "base_model_name_or_path": tiny_llama, "r": 4, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    part = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    ones = np.ones((4, 24), np.float32)
    save_file({f"{part}A.weight": ones, f"{part}B.weight": ones.T.copy()}, folder / "adapter_model.safetensors")
    line = ["inspect", TEXT, "-m", folder, "-l", "all", "--engine", engine]
    said(name, tried(attn, folder / name, line, 20))


def gguf_file(path: Path) -> Path:
    """A model of two layers, whose tensors are in blocks of eight bits."""
    draw = np.random.default_rng(0)
    shapes = {f"self_attn.{name}_proj": (32, 32) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (64, 32), "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64)}
    shapes |= {"input_layernorm": (32,), "post_attention_layernorm": (32,)}
    tensors = {
        f"model.layers.{layer}.{name}.weight": draw.standard_normal(shape, dtype=np.float32)
        for layer in range(2)
        for name, shape in shapes.items()
    }
    tensors |= {"model.embed_tokens.weight": draw.standard_normal((257, 32), dtype=np.float32)}
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ti"]

    def tokenizer(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list(pieces)
        writer.add_token_types([1] * len(pieces))
        writer.add_token_merges(["t i"])
        writer.add_bos_token_id(3)

    fields = {"context_length": 64, "embedding_length": 32, "block_count": 2, "feed_forward_length": 64}
    fields |= {"attention.head_count": 2, "attention.head_count_kv": 2}
    write_gguf(path, "llama", tensors, fields | {"attention.layer_norm_rms_epsilon": 1e-5}, tokenizer, Kind.Q8_0)
    return path


def test_a_damaged_gguf_file_is_read_or_refused(attn: Run, tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "model.gguf")
    said("model.gguf", tried(attn, path, ["inspect", TEXT, "-m", path, "-l", "all"], 200))


def test_a_gguf_file_that_claims_too_much_is_refused_in_little_memory(tmp_path: Path) -> None:
    most = 2**63
    starts = {
        "tensors": struct.pack("<4sIQQ", b"GGUF", 3, most, 0),
        "fields": struct.pack("<4sIQQ", b"GGUF", 3, 0, most),
        "name": struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, most),
        "texts": struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 8, most),
        "lists": struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 9, most),
        "numbers": struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 4, most),
        "axes": struct.pack("<4sIQQQ1sI", b"GGUF", 3, 1, 0, 1, b"a", 2**31),
        "sizes": struct.pack("<4sIQQQ1sIQQIQ", b"GGUF", 3, 1, 0, 1, b"a", 2, 2**32, 2**32, 0, 0),
        "nothing": b"",
    }
    reading = {}
    for name, start in starts.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(start)
        if start:
            os.truncate(path, 2**31)  # nearly all of it holes
        reading |= {f"{command} {name}": [command, TEXT, "-m", str(path)] for command in ("inspect", "tokens")}
    assert set(in_little_memory(reading, mebibytes=200, gibibytes=6).values()) == {LOAD}


# --- made to do damage -------------------------------------------------------------------------------------


def test_no_pickle_of_a_mask_runs(attn: Run, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    pickle.loads(pickle.dumps(Evil(canary)))
    canary.rmdir()  # it works where it is trusted
    evil: Any = np.array([[Evil(canary)]], dtype=object)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Evil(canary)))
    (tmp_path / "bare.npy").write_bytes(pickle.dumps(Evil(canary)))
    torch.save(Evil(canary), tmp_path / "zipped.pt")
    torch.save({"mask": Evil(canary)}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    np.save(tmp_path / "objects.npy", evil, allow_pickle=True)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 5
    for path in paths:
        for arguments in (["inspect", TEXT, "--mask", path], ["mask", "show", path], ["inspect", "--from", path]):
            ran = attn(*arguments)
            one_sentence(ran.code, ran.out, ran.err)
            assert not canary.exists(), path


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '|b1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def header(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def with_header(trace: bytes, change: Callable[[str], str]) -> bytes:
    """A saved trace with another text in its metadata."""
    length = int.from_bytes(trace[:8], "little")
    whole = json.loads(trace[8 : 8 + length])
    whole["__metadata__"]["attncli"] = change(whole["__metadata__"]["attncli"])
    return header(json.dumps(whole).encode()) + trace[8 + length :]


def bombs(folder: Path, trace: bytes) -> dict[str, list[str]]:
    """Small files that ask for much memory, or for depth; by name the arguments that read them."""
    tensor = {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}
    small = save({"q": np.ones((2, 2), np.float32), "k": np.ones((2, 2), np.float32)})
    deep = "[" * 100_000
    layers = '"layers": 1,'
    assert with_header(trace, lambda text: text) != with_header(trace, lambda text: text.replace(layers, "x"))
    files = {
        "terabytes.npy": npy_header((2**20, 2**20)),
        "exabytes.npy": npy_header((2**31, 2**32)),
        "negative.npy": npy_header((-1, 4)),
        "deep.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 200_000) + b"(" * 200_000,
        "length.safetensors": header(b"{}", 2**63 - 1),
        "terabytes.safetensors": header(json.dumps({"mask": tensor, "q": tensor, "k": tensor}).encode()),
        "deep.safetensors": header(('{"__metadata__": {"attncli": ' + deep).encode()),
        "deep metadata.safetensors": with_header(trace, lambda _: deep),
        "deep tokens.safetensors": header(
            json.dumps({**json.loads(small[8 : 8 + small[0]]), "__metadata__": {"tokens": deep}}).encode()
        )
        + small[8 + small[0] :],
        "many layers.safetensors": with_header(
            trace, lambda text: text.replace(layers, '"layers": 9' + "9" * 15 + ",")
        ),
        "huge number.safetensors": with_header(
            trace, lambda text: text.replace(layers, '"layers": ' + "9" * 5000 + ",")
        ),
        "infinite.safetensors": with_header(trace, lambda text: text.replace('"softcap": null', '"softcap": 1e999')),
        "huge past.safetensors": with_header(trace, lambda text: text.replace('"past": 0', '"past": 2147483647')),
        "many documents.safetensors": with_header(trace, lambda text: text.replace('"causal"', '"docs(999999999)"')),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    reading: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        reading[f"{path.name} as a mask"] = ["inspect", TEXT, "--mask", str(path)]
        reading[f"{path.name} checked"] = ["mask", "check", str(path), "--expect", "causal"]
        if path.suffix == ".safetensors":
            reading[f"{path.name} as a trace"] = ["inspect", "--from", str(path), "-l", "all"]
            reading[f"{path.name}, many layers"] = ["inspect", "--from", str(path), "-l", "0-999999998"]
            reading[f"{path.name} measured"] = ["heads", "--from", str(path)]
    return reading


def in_little_memory(reading: dict[str, list[str]], mebibytes: int, gibibytes: int) -> dict[str, int]:
    """Return how each of these commands ended, in one process, and hold them to their memory."""
    ended = ran_apart(reading, gibibytes=gibibytes)
    for name, ran in ended.items():
        answered_or_refused(ran)
        assert ran.kibibytes < mebibytes * 1024, f"{name} took {ran.kibibytes // 1024} MiB"
        if name.startswith("pipe checkpoint/config.json"):
            assert "config.json is a pipe or a device" in ran.err
    return {name: ran.code for name, ran in ended.items()}


def test_a_small_file_that_asks_for_much_is_refused_in_little_memory(attn: Run, tmp_path: Path) -> None:
    assert attn("inspect", TEXT, "--save", tmp_path / "trace.safetensors").code == OK
    trace = (tmp_path / "trace.safetensors").read_bytes()
    (tmp_path / "bombs").mkdir()
    ended = in_little_memory(bombs(tmp_path / "bombs", trace), mebibytes=200, gibibytes=3)
    answered = [name for name, code in ended.items() if code <= FINDINGS]
    # A count of layers that nobody asks for, and a past that is only far away, are no harm.
    assert all(name.startswith(("huge past", "many layers")) for name in answered), answered


CLAIMS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "intermediate_size")
CLAIMS += ("vocab_size", "max_position_embeddings", "head_dim")


def test_a_configuration_that_claims_much_is_refused_in_little_memory(tiny_llama: str, tmp_path: Path) -> None:
    reading = {"a whole one": ["inspect", TEXT, "-m", tiny_llama]}
    for name in CLAIMS:
        folder = Path(shutil.copytree(tiny_llama, tmp_path / name))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {name: 10**9}), encoding="utf-8")
        reading[name] = ["inspect", TEXT, "-m", str(folder), "-l", "all"]
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "deep"))
    (folder / "config.json").write_text("[" * 100_000, encoding="utf-8")
    reading["deep"] = ["inspect", TEXT, "-m", str(folder)]
    ended = in_little_memory(reading, mebibytes=1000, gibibytes=24)
    # More positions than a rotary model needs are no harm.
    answered = [name for name, code in ended.items() if code <= FINDINGS and not name.startswith("max_position")]
    assert answered == ["a whole one"]


# --- what is no file, or is too large ----------------------------------------------------------------------

# What reads each file, FILE being its path and FOLDER the checkpoint that it is in.
READERS = {
    "trace.safetensors": [["inspect", "--from", "FILE"], ["diff", "--from", "FILE", "--from", "FILE"],
                          ["tokens", "--from", "FILE"]],
    **{f"mask.{ending}": [["mask", "check", "FILE"], ["inspect", TEXT, "--mask", "FILE"],
                           ["mask", "show", 'file("FILE")', "--size", "2"]]
       for ending in ("npy", "safetensors", "pt")},
    "sentences.txt": [["inspect", "--file", "FILE", "-F", "jsonl"], ["tokens", "--file", "FILE", "--whole"]],
    "vocabulary.json": [["inspect", TEXT, "--vocab", "FILE"]],
    **{f"checkpoint/{name}": [["inspect", TEXT, "-m", "FOLDER"], ["tokens", TEXT, "-m", "FOLDER"]]
       for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                    "added_tokens.json", "generation_config.json", "vocab.json", "merges.txt", "spiece.model",
                    "model.safetensors.index.json", "pytorch_model.bin.index.json", "chat_template.jinja",
                    "additional_chat_templates/rag.jinja", "adapter_config.json")},
    "weights/model.safetensors": [["inspect", TEXT, "-m", "FOLDER"]],
}  # fmt: skip
UNFIT = {
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "folder": Path.mkdir,
    "endless": lambda path: (path.touch(), os.truncate(path, 2**31 + 1)),  # nearly all of it holes
}


def unfit(reader: str, kind: str, folder: Path, tiny_llama: str) -> list[list[str]]:
    """Make a file that is none in a folder; return the commands that read it."""
    path = folder / reader
    if path.parent.name != folder.name:
        shutil.copytree(tiny_llama, folder / Path(reader).parts[0])
    path.parent.mkdir(exist_ok=True, parents=True)
    path.unlink(missing_ok=True)
    UNFIT[kind](path)
    inside = str(folder / Path(reader).parts[0])
    return [[word.replace("FILE", str(path)).replace("FOLDER", inside) for word in line] for line in READERS[reader]]


def test_nothing_is_read_but_files_of_a_usual_size(
    tmp_path: Path, tiny_llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reading, expected = {}, {}
    for number, (kind, reader) in enumerate(product(UNFIT, READERS)):
        if kind == "folder" and "/" in reader:
            continue  # it is as if it were not there
        if kind == "endless" and reader in ("sentences.txt", "weights/model.safetensors"):
            continue  # of which a line at a time is read, and what is asked for
        if kind == "pipe" and reader == "sentences.txt":
            continue  # which may come from another program
        Path(str(number)).mkdir()
        for line in unfit(reader, kind, Path(str(number)), tiny_llama):
            name = f"{kind} {reader}: {' '.join(line)}"
            reading[name] = line
            expected[name] = LOAD if "/" in reader or reader == "vocabulary.json" else INPUT
            if line[0] == "inspect" and reader in ("checkpoint/config.json", "weights/model.safetensors"):
                reading[f"{name} again"], expected[f"{name} again"] = [*line, "--engine", "transformers"], LOAD
    assert in_little_memory(reading, mebibytes=200, gibibytes=4) == expected


# --- a checkpoint that is not all in its folder ------------------------------------------------------------


INDEX = "model.safetensors.index.json"


def indexed(tiny_llama: str, folder: Path, shard: str) -> Path:
    """Copy a checkpoint whose weights are said to be in another file."""
    shutil.copytree(tiny_llama, folder)
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        names = list(file.keys())
    os.rename(folder / "model.safetensors", folder / "shard.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, shard)}))
    return folder


ENGINES = ("native", "transformers")


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_are_read_inside_the_folder_alone(engine: str, attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    run = ["inspect", TEXT, "--engine", engine, "-m"]
    folder = indexed(tiny_llama, tmp_path / "elsewhere", "inner/shard.safetensors")
    (folder / "inner").mkdir()
    os.rename(folder / "shard.safetensors", folder / "inner" / "shard.safetensors")
    assert attn(*run, folder).code == OK
    outside = (f"{folder}/inner/shard.safetensors", "inner/../../elsewhere/inner/shard.safetensors")
    for number, shard in enumerate(outside):
        ran = attn(*run, indexed(tiny_llama, tmp_path / str(number), shard))
        refused(ran, LOAD, "outside of the folder")


# --- vocabularies made to end the library that reads them --------------------------------------------------


def _model(kind: str, change: Callable[[Any], None]) -> bytes:
    """A model of sentencepiece, changed."""
    from transformers.convert_slow_tokenizer import import_protobuf

    model = import_protobuf().ModelProto()
    model.ParseFromString(spm(kind, 70 if kind == "unigram" else 330))
    change(model)
    return model.SerializeToString()


def _with_charsmap(model: Any) -> None:
    table = struct.pack("<I", 1024) + struct.pack("<I", 0x7FFFFC00) * 256 + b"ab\0" * 10
    model.normalizer_spec.precompiled_charsmap = table


def _with_long_piece(model: Any) -> None:
    model.pieces.add().piece = "t" * 10**6


CRAFTED: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    "table of characters": ("llama", "tokenizer.model", lambda: _model("unigram", _with_charsmap)),
    "long piece, Unigram": ("t5", "spiece.model", lambda: _model("unigram", _with_long_piece)),
    "long piece, BPE": ("llama", "tokenizer.model", lambda: _model("bpe", _with_long_piece)),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_vocabulary_that_would_end_its_library_is_one_sentence(name: str, attn: Run, tmp_path: Path) -> None:
    kind, file, content = CRAFTED[name]
    PLACED[kind](tmp_path)
    (tmp_path / file).write_bytes(content())
    answered_or_refused(attn("tokens", TEXT, "-m", tmp_path))


def test_a_tokenizer_json_with_a_long_piece_is_refused(attn: Run, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("time", -1.0)], unk_id=0))
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"].append(["t" * 10**6, -1.0])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    refused(attn("inspect", TEXT, "--vocab", path), LOAD, "tokenizer.json cannot be read")
