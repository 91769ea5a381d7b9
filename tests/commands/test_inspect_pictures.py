"""Pictures as a user gives them to `attn inspect`: alone, beside a text, and over a saved trace."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictured_models import picture, save_models
from refusals import refused

from attncli.trace.store import load

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


def test_pictures_alone_go_through_a_vision_transformer_one_after_the_other(attn: Run, models: Path) -> None:
    files = [models / "a.png", models / "b.png"]
    ran = attn("inspect", "-m", models / "vit", "--image", files[0], "--image", files[1], "-F", "jsonl")
    assert (ran.code, ran.err) == (0, "")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert [document["text"] for document in documents] == list(map(str, files))
    assert [document["pictures"][0]["width"] for document in documents] == [96, 50]
    grid = documents[0]["grids"][0]
    assert (grid["start"], grid["rows"], grid["columns"], grid["box"]) == (1, 4, 4, [0, 0, 96, 64])
    tower = attn("inspect", "-m", models / "llava", "--image", files[0])
    assert "vision tower" in tower.out
    assert "0 [CLS] attends to" in tower.out


def test_a_folder_of_pictures_becomes_a_folder_of_parts(attn: Run, models: Path, tmp_path: Path) -> None:
    for number in range(5):
        picture(20, 20, seed=number).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"no picture")
    words = ("inspect", "-m", models / "vit", "--image", tmp_path, "-o", f"{tmp_path}/out/", "--show", "metrics")
    ran = attn(*words, "-F", "jsonl")
    assert ran.code == 5
    assert f"attn: sentence 4: the picture {tmp_path}/3.png has no format that attn reads" in ran.err
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    assert [json.loads(line)["sentence"] for line in part.read_text().splitlines()] == [1, 2, 3, 5]
    words = [str(word).replace("/out/", "/parallel/") for word in words]
    parallel = attn(*words, "-F", "jsonl", "--jobs", "2")
    assert parallel.code == 5
    assert [each.read_text() for each in (tmp_path / "parallel").glob("part-*.jsonl")] == [part.read_text()]


def test_a_trace_with_a_picture_is_drawn_as_it_was(attn: Run, models: Path, tmp_path: Path) -> None:
    words = ("inspect", "-m", models / "llava", "--image", models / "a.png", "w40 w41", "--query", "@r1c2")
    shown = attn(*words, "--save", tmp_path / "t.safetensors", "--color", "always")
    again = attn("inspect", "--from", tmp_path / "t.safetensors", "--query", "@60,20", "--color", "always")
    assert shown.code == again.code == 0
    assert shown.out == again.out
    assert "▀" in shown.out
    plain = attn("inspect", "--from", tmp_path / "t.safetensors", "--query", "w41")
    assert "17 w41 attends to" in plain.out
    assert "▀" not in plain.out
    assert "a cell is where a token came from" in plain.out
    trace = load(tmp_path / "t.safetensors")
    cells = trace.layers[0].head(2).weights[17][trace.grids[0].positions]
    heaviest = np.unravel_index(cells.argmax(), cells.shape)
    assert f"H2 r{heaviest[0]}c{heaviest[1]} {cells.max():.2f} {cells.sum():.0%}" in plain.out


def test_pictures_are_read_aloud(attn: Run, models: Path, tmp_path: Path) -> None:
    words = ("inspect", "-m", models / "llava", "--image", models / "a.png", "w40 w41", "--head", "1")
    aloud = attn(*words, "--save", tmp_path / "t.safetensors", ACCESSIBLE="1")
    trace = load(tmp_path / "t.safetensors")
    row, grid = trace.layers[0].head(1).weights[-1], trace.grids[0].positions
    place = int(row.argmax())
    cell = np.argwhere(grid == place).tolist()
    name = f"row {cell[0][0]} column {cell[0][1]}" if cell else trace.key_tokens[place].label
    _, read, facts = aloud.out.strip().split("\n\n")
    head, query = read.split("\n")
    assert head.startswith("layer 0 head 1")
    assert query.startswith(f"query 17 w41: {row[place]:.2f} {name}, ")
    assert facts.startswith("rows and columns count from 0\na cell is where a token came from")
    assert "18 queries: the last one is printed. --query chooses others." in aloud.err
    chosen = attn(*words, "--query", "@r0c0", ACCESSIBLE="1")
    assert "\nquery 0 row 0 column 0: " in chosen.out


def test_what_cannot_be_read_is_one_sentence(attn: Run, models: Path, tmp_path: Path) -> None:
    image = ("--image", models / "a.png")
    vit, llava = ("inspect", "-m", models / "vit"), ("inspect", "-m", models / "llava")
    refused(attn(*vit, "x"), 4, "reads a picture, not text; give a picture alone: attn inspect --image x.png")
    refused(attn(*vit, "x", *image), 4, "reads a picture, not text")
    refused(attn("inspect", "-m", "demo", "x", *image), 4, "reads text alone, or attn does not know its pictures")
    refused(attn("inspect", "-m", "demo", *image), 4, "has no vision transformer that attn knows, but llama")
    refused(attn(*llava, *image, "--tower", "text"), 2, "give a sentence")
    refused(attn(*llava, *image, "<image> <image> x"), 5, "does not read this")
    refused(attn(*llava, *image, "x", "--engine", "native"), 4, "drop --engine")
    refused(attn(*vit, *image, "--generate", "2"), 2, "a vision tower writes none")
    refused(attn(*vit, *image, "--query", "@96,0"), 2, "picture 0 has 96 × 64 pixels")
    refused(attn("inspect", "x", "--query", "@r0c0"), 2, "no query is a cell of picture 0; give --grid")
