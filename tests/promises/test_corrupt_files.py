"""Files that are damaged, or made to do damage: a right answer or one sentence, nothing executed, memory bounded."""

import functools
import json
import operator
import os
import pickle
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
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
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save, save_file
from safetensors.torch import load_file
from tokenizer_folders import PLACED, spm
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig

Run = Callable[..., Any]
TEXT = "time flies like an arrow"


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


def save_gguf(path: Path) -> None:
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


def save_dump(path: Path) -> None:
    q = np.random.default_rng(0).standard_normal((2, 4, 3), dtype=np.float32)
    metadata = {"tokens": json.dumps(["a", "b", "c", "d"]), "scale": "0.5"}
    save_file({"q": q, "k": q + 1, "v": q, "mask": np.tri(4, dtype=bool)}, path, metadata=metadata)


@pytest.fixture
def files(attn: Run, tiny_llama: str, tmp_path: Path) -> Path:
    """A folder with whole files of every sort."""
    for ending in ("npy", "safetensors", "pt"):
        path = tmp_path / f"mask.{ending}"
        assert attn("mask", "convert", "causal", "--size", "5", "--to", "additive", "-o", path).code == OK
    path = tmp_path / "trace.safetensors"
    assert attn("inspect", TEXT, "--pair", "fruit", "--mask", "window(3)", "--save", path).code == OK
    save_dump(tmp_path / "dump.safetensors")
    save_gguf(tmp_path / "model.gguf")
    shutil.copytree(tiny_llama, tmp_path / "checkpoint")
    return tmp_path


# Each file with the command that reads it, FILE and FOLDER being its own, and how many damaged copies are tried.
_CHECKPOINT = f"inspect '{TEXT}' -l all -m FOLDER --engine"
DAMAGED = [
    *((f"mask.{ending}", f"inspect '{TEXT}' --mask FILE", 30) for ending in ("npy", "safetensors", "pt")),
    ("trace.safetensors", "inspect --from FILE --show tokens,q,weights,output,metrics", 100),
    ("dump.safetensors", "why --from FILE -q 1", 100),
    ("model.gguf", f"inspect '{TEXT}' -m FILE -l all", 200),
    ("checkpoint/tokenizer.json", f"inspect '{TEXT}' --vocab FILE", 60),
    *(
        (f"checkpoint/{name}", f"{_CHECKPOINT} {engine}", 25)
        for engine in ("auto", "transformers")
        for name in ("config.json", "tokenizer.json", "model.safetensors")
    ),
]


@pytest.mark.parametrize(("name", "command", "times"), DAMAGED)
def test_a_damaged_file_is_read_or_refused(name: str, command: str, times: int, attn: Run, files: Path) -> None:
    path = files / name
    words = command.replace(f"'{TEXT}'", "TEXT").split()
    arguments = [{"TEXT": TEXT, "FILE": path, "FOLDER": path.parent}.get(word, word) for word in words]
    whole, ended = path.read_bytes(), Counter[int]()
    assert attn(*arguments).code == OK
    for seed in range(times):
        path.write_bytes(damaged(whole, seed))
        ran = attn(*arguments)
        answered_or_refused(ran)
        ended[int(ran.code)] += 1
    assert set(ended) - {OK, FINDINGS}, "no damage was seen in any of them"


# --- other fields -----------------------------------------------------------------------------------------

# JSON that may stand in a field, whatever belongs there; None takes the field away.
OTHERS = (None, "null", "{}", "[]", "-1", "1e999", '"a text"', "[1, null]", "0.5", "true", '""', "0", "9" * 20)
_MARK = "what is to be replaced"


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON document; of a list and of a vocabulary the first."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for name, each in inner[:1] if isinstance(value, list) or place[-1:] == ("vocab",) else inner:
        yield (*place, name)
        yield from places(each, (*place, name))


def with_another(document: Any, place: tuple[Any, ...], other: str | None) -> str:
    """The document with something else in one place."""
    copy = json.loads(json.dumps(document))
    holder = functools.reduce(operator.getitem, place[:-1], copy)
    if other is None:
        del holder[place[-1]]
        return json.dumps(copy)
    holder[place[-1]] = _MARK
    return json.dumps(copy).replace(json.dumps(_MARK), other)


def test_whatever_stands_in_a_field_of_a_trace_is_read_or_refused(attn: Run, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.safetensors", tmp_path / "trace.safetensors"
    assert attn("inspect", "time flies", "--pair", "fruit", "--save", whole).code == OK
    tensors = load_arrays(whole)
    with safe_open(whole, framework="numpy") as file:
        document = json.loads(file.metadata()["attncli"])
    document["layers"][0]["proof"] = {
        "max_abs_error": "0.5",
        "against": "another output",
        "of": "weights·V",
        "magnitude": "1.0",
    }
    ended: Counter[int] = Counter()
    for place, other in product(places(document), OTHERS):
        save_file(tensors, path, metadata={"attncli": with_another(document, place, other)})
        ran = attn("inspect", "--from", path, "--show", "tokens,scores,heatmap,output")
        assert ran.code in (OK, INPUT), (place, other, ran.err)
        answered_or_refused(ran)
        ended[ran.code] += 1
    assert ended[OK] > 20
    assert ended[INPUT] > 300


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"],
)
def test_whatever_stands_in_a_field_of_a_checkpoint_is_read_or_refused(
    name: str, attn: Run, tiny_llama: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "llama"))
    config = json.loads(AutoConfig.from_pretrained(folder).to_json_string(use_diff=False))
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": ""}))  # which states all that it can
    (folder / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": [2], "max_length": 20}')
    (folder / "special_tokens_map.json").write_text('{"unk_token": {"content": "<unk>", "lstrip": false}}')
    commands = [
        ["inspect", TEXT, "-l", "all", "-m", folder],
        ["inspect", TEXT, "-l", "all", "--engine", "transformers", "-m", folder],
        ["mask", "model", "-m", folder, "time flies", "an"],
        ["check", "-m", folder, TEXT],
    ]
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    drawn, ended = random.Random(name), Counter(attn(*command).code for command in commands)
    assert set(ended) <= {OK, FINDINGS}
    for place in places(document):
        (folder / name).write_text(with_another(document, place, drawn.choice(OTHERS)), encoding="utf-8")
        ran = attn(*drawn.choice(commands))
        answered_or_refused(ran)
        ended[ran.code] += 1
    assert name == "generation_config.json" or ended[LOAD]


# --- made to do damage -------------------------------------------------------------------------------------


def test_no_pickle_runs(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    pickle.loads(pickle.dumps(Evil(canary)))
    canary.rmdir()  # it works where it is trusted
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Evil(canary)))
    (tmp_path / "bare.npy").write_bytes(pickle.dumps(Evil(canary)))
    torch.save(Evil(canary), tmp_path / "zipped.pt")
    torch.save({"mask": Evil(canary)}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    evil: Any = np.array([[Evil(canary)]], dtype=object)
    np.save(tmp_path / "objects.npy", evil, allow_pickle=True)
    commands: list[list[Any]] = [
        [*command, path]
        for path in sorted(tmp_path.iterdir())
        for command in (["inspect", TEXT, "--mask"], ["mask", "show"], ["inspect", "--from"])
    ]
    for number, (is_bare, is_zip) in enumerate(((True, True), (False, True), (False, False))):
        folder = Path(shutil.copytree(tiny_llama, tmp_path / f"checkpoint {number}"))
        tensors: dict[str, Any] = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(
            tensors | {"evil": Evil(canary)}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip
        )
        if is_bare:
            (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(canary)))
        commands += [["inspect", TEXT, "-m", folder, "--engine", engine] for engine in ("auto", "transformers")]
    assert len(commands) == 21
    for command in commands:
        ran = attn(*command)
        one_sentence(ran.code, ran.out, ran.err)
        assert not canary.exists(), command


def test_the_tensors_of_a_checkpoint_that_is_a_pickle_are_read(attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "pickled"))
    arguments = (
        "inspect",
        TEXT,
        "-m",
        folder,
        "-l",
        "all",
        "--engine",
        "transformers",
        "-F",
        "json",
        "--show",
        "q,k,v",
    )
    expected = attn(*arguments)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert attn(*arguments) == expected


def header(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '|b1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def bombs(trace: bytes) -> dict[str, bytes]:
    """Small files that ask for much memory, or for depth, by their names."""
    tensor = {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}
    deep = "[" * 100_000

    def traced(old: str, new: str) -> bytes:
        length = int.from_bytes(trace[:8], "little")
        whole = json.loads(trace[8 : 8 + length])
        assert old in whole["__metadata__"]["attncli"]
        whole["__metadata__"]["attncli"] = whole["__metadata__"]["attncli"].replace(old, new)
        return header(json.dumps(whole).encode()) + trace[8 + length :]

    def claims(form: str, *numbers: Any) -> bytes:
        return struct.pack("<4sIQQ" + form, b"GGUF", 3, *numbers)

    most = 2**63
    return {
        "exabytes.npy": npy_header((2**31, 2**32)),
        "deep.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 200_000) + b"(" * 200_000,
        "length.safetensors": header(b"{}", 2**63 - 1),
        "terabytes.safetensors": header(json.dumps({"mask": tensor, "q": tensor, "k": tensor}).encode()),
        "deep.safetensors": header(('{"__metadata__": {"attncli": ' + deep).encode()),
        "deep tokens.safetensors": save({"q": np.ones((2, 2)), "k": np.ones((2, 2))}, {"tokens": deep}),
        "many layers.safetensors": traced('"layers": 1,', '"layers": 9' + "9" * 15 + ","),
        "infinite.safetensors": traced('"softcap": null', '"softcap": 1e999'),
        "huge past.safetensors": traced('"past": 0', '"past": 2147483647'),
        "many documents.safetensors": traced('"causal"', '"docs(999999999)"'),
        "tensors.gguf": claims("", most, 0),
        "fields.gguf": claims("", 0, most),
        "name.gguf": claims("Q", 0, 1, most),
        "texts.gguf": claims("Q1sIIQ", 0, 1, 1, b"a", 9, 8, most),
        "axes.gguf": claims("Q1sI", 1, 0, 1, b"a", 2**31),
        "sizes.gguf": claims("Q1sIQQIQ", 1, 0, 1, b"a", 2, 2**32, 2**32, 0, 0),
    }


def in_little_memory(reading: dict[str, list[str]], mebibytes: int, gibibytes: int) -> dict[str, int]:
    """Return how each of these commands ended, in one process, and hold them to their memory."""
    ended = ran_apart(reading, gibibytes=gibibytes)
    for name, ran in ended.items():
        answered_or_refused(ran)
        assert ran.kibibytes < mebibytes * 1024, f"{name} took {ran.kibibytes // 1024} MiB"
    return {name: ran.code for name, ran in ended.items()}


def test_a_small_file_that_asks_for_much_is_refused_in_little_memory(attn: Run, tmp_path: Path) -> None:
    assert attn("inspect", TEXT, "--save", tmp_path / "trace.safetensors").code == OK
    reading: dict[str, list[str]] = {}
    for name, content in bombs((tmp_path / "trace.safetensors").read_bytes()).items():
        path = tmp_path / name
        path.write_bytes(content)
        if path.suffix == ".gguf":
            os.truncate(path, 2**31)  # nearly all of it holes
            reading[name] = ["inspect", TEXT, "-m", str(path)]
            continue
        reading[f"{name} as a mask"] = ["inspect", TEXT, "--mask", str(path)]
        if path.suffix == ".safetensors":
            reading[f"{name} as a trace"] = ["inspect", "--from", str(path), "-l", "all"]
            reading[f"{name}, many layers"] = ["inspect", "--from", str(path), "-l", "0-999999998"]
    ended = in_little_memory(reading, mebibytes=200, gibibytes=6)
    answered = [name for name, code in ended.items() if code <= FINDINGS]
    # A count of layers that nobody asks for, and a past that is only far away, are no harm.
    assert all(name.startswith(("huge past", "many layers")) for name in answered), answered


CLAIMS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "intermediate_size")
CLAIMS += ("vocab_size", "max_position_embeddings", "head_dim")


def test_a_configuration_that_claims_much_is_refused_in_little_memory(tiny_llama: str, tmp_path: Path) -> None:
    reading = {"a whole one": ["inspect", TEXT, "-m", tiny_llama]}
    for name in (*CLAIMS, "deep"):
        path = Path(shutil.copytree(tiny_llama, tmp_path / name), "config.json")
        config = json.loads(path.read_text(encoding="utf-8")) | {name: 10**9}
        path.write_text("[" * 100_000 if name == "deep" else json.dumps(config), encoding="utf-8")
        reading[name] = ["inspect", TEXT, "-m", str(path.parent), "-l", "all"]
    ended = in_little_memory(reading, mebibytes=1000, gibibytes=24)
    # More positions than a rotary model needs are no harm.
    answered = [name for name, code in ended.items() if code <= FINDINGS and not name.startswith("max_position")]
    assert answered == ["a whole one"]


# --- what is no file, or is too large ----------------------------------------------------------------------

# What reads each file, FILE being its path and FOLDER the checkpoint that it is in.
READERS = {
    "trace.safetensors": "inspect --from FILE", "mask.npy": "mask check FILE", "mask.pt": "mask check FILE",
    "mask.safetensors": "mask check FILE", "sentences.txt": "tokens --file FILE --whole",
    "vocabulary.json": "inspect TEXT --vocab FILE",
    **{f"checkpoint/{name}": "inspect TEXT -m FOLDER" for name in (
        "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
        "vocab.json", "merges.txt", "spiece.model", "model.safetensors.index.json", "chat_template.jinja",
        "adapter_config.json")},
    "weights/model.safetensors": "inspect TEXT -m FOLDER",
}  # fmt: skip
UNFIT: dict[str, Callable[[Path], Any]] = {
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "endless": lambda path: (path.touch(), os.truncate(path, 2**31 + 1)),  # nearly all of it holes
}
# It may come from another program; a line at a time is read, or the ranges that are asked for.
FIT = {("pipe", "sentences.txt"), ("endless", "sentences.txt"), ("endless", "weights/model.safetensors")}


def test_nothing_is_read_but_files_of_a_usual_size(tmp_path: Path, tiny_llama: str) -> None:
    reading, expected = {}, {}
    for number, (kind, reader) in enumerate(product(UNFIT, READERS)):
        if (kind, reader) in FIT or (kind == "folder" and "/" in reader):  # it is as if it were not there
            continue
        path = tmp_path / str(number) / reader
        if "/" in reader:
            shutil.copytree(tiny_llama, path.parent)
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        UNFIT[kind](path)
        own = {"FILE": str(path), "FOLDER": str(path.parent), "TEXT": TEXT}
        reading[f"{kind} {reader}"] = [own.get(word, word) for word in READERS[reader].split()]
        expected[f"{kind} {reader}"] = LOAD if "/" in reader or reader == "vocabulary.json" else INPUT
    assert in_little_memory(reading, mebibytes=200, gibibytes=4) == expected


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_weights_are_read_inside_the_folder_alone(engine: str, attn: Run, tiny_llama: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "elsewhere"))
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        names = list(file.keys())
    (folder / "inner").mkdir()
    os.rename(folder / "model.safetensors", folder / "inner" / "shard.safetensors")
    inside = "inner/shard.safetensors"
    for shard in (inside, f"{folder}/{inside}", f"inner/../../elsewhere/{inside}"):
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, shard)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        ran = attn("inspect", TEXT, "--engine", engine, "-m", folder)
        if shard == inside:
            assert ran.code == OK
        else:
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
