"""Lines that name their own pictures: pairs of many pictures, cuts on them, and JSON Lines of questions."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_scenes import box_of, save_scene
from pictured_models import save_models
from refusals import refused

Run = Callable[..., Any]
SCENES = 60
FINDER = (1, 2)  # the layer and the head that look where the question points
LEAST_HITS, MOST_MEDIAN_HITS = 0.9, 0.4
NEEDED, SPARE = "L1H2", "L1H0,L1H1,L1H3"  # the head without which answers are lost, and those that can all be cut
LEAST_LOST = 0.9  # of the answers


def written(folder: Path, lines: Sequence[Mapping[str, Any]], name: str = "lines.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A file of questions, each about a picture of its own, and the answers."""
    folder, rng = tmp_path_factory.mktemp("scenes"), np.random.default_rng(2024)
    (folder / "drawn").mkdir()
    lines, answers = [], []
    for number in range(SCENES):
        scene = save_scene(rng, folder / "drawn" / f"{number}.png")
        index = int(rng.integers(len(scene.cells)))
        question, answer = scene.question(index)
        answers.append(answer)
        lines.append({
            "image": f"drawn/{number}.png", "text": question, "query": question.split()[-1],
            "keys": [box_of(scene.cells[index])],
        })  # fmt: skip
    return written(folder, lines), answers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


# --- the model that sees ----------------------------------------------------------------------------------------------


def test_one_head_finds_the_right_box_in_fresh_pictures(attn: Run, scenes: tuple[Path, list[str]]) -> None:
    ran = attn("heads", "-m", "demo-vision", "--pairs", scenes[0], "-F", "json")
    assert (ran.code, ran.err) == (0, "")
    document = ran.json
    assert (document["texts"], document["pairs"]) == (SCENES, SCENES)
    hits = {(head["layer"], head["head"]): head["hits"] for head in document["heads"]}
    assert hits[FINDER] == max(hits.values()) >= LEAST_HITS
    assert np.median([*hits.values()]) <= MOST_MEDIAN_HITS
    assert document["heads"][0]["hits_uniform"] < 0.05


def test_answers_are_lost_without_that_head_and_not_without_another(attn: Run, scenes: tuple[Path, list[str]]) -> None:
    file, answers = scenes
    lost = {}
    for heads in (NEEDED, SPARE):
        ran = attn("ablate", "-m", "demo-vision", "--file", file, "--head", heads, "-F", "jsonl")
        assert (ran.code, ran.err) == (0, "")
        documents = [json.loads(line) for line in ran.out.splitlines()]
        assert [document["outcome"]["next"]["text"] for document in documents] == answers
        assert min(document["before"] for document in documents) > np.log(0.5)
        lost[heads] = np.mean([document["after"] < np.log(0.5) for document in documents])
    assert lost[NEEDED] >= LEAST_LOST
    assert lost[SPARE] == 0


# --- tiny models ------------------------------------------------------------------------------------------------------


def test_json_lines_name_pictures_for_every_command(attn: Run, models: Path) -> None:
    lines = [{"image": "a.png", "text": "w40 w41"}, {"text": "w40 w41"}, {"image": ["b.png"], "text": "w42"}]
    file = written(models, lines, "questions.jsonl")
    ran = attn("inspect", "-m", models / "llava", "--file", file, "-F", "jsonl")
    assert (ran.code, ran.err) == (0, "")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert [[each["width"] for each in document.get("pictures", [])] for document in documents] == [[96], [], [50]]
    beside = attn("inspect", "-m", models / "llava", "--image", models / "b.png", "w42", "-F", "json").json
    assert documents[2]["layers"] == beside["layers"]
    assert "grids" not in attn("inspect", "-m", "demo", "--file", file, "-F", "jsonl").out  # as any other field


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_a_line_whose_picture_is_wrong_is_named_and_the_others_count(attn: Run, models: Path) -> None:
    pair = {"text": "w40", "query": "w40", "keys": ["@r0c0"]}
    (models / "no.png").write_bytes(b"no picture")
    lines = [{"image": name, **pair} for name in ("a.png", "none.png", "no.png", "b.png", "/dev/zero")]
    ran = attn("heads", "-m", models / "llava", "--pairs", written(models, lines), "-F", "json")
    assert (ran.code, ran.json["pairs"]) == (5, 2)
    assert f"sentence 2: the picture {models}/none.png does not exist" in ran.err
    assert f"sentence 3: the picture {models}/no.png has no format that attn reads" in ran.err
    assert "sentence 5: the picture /dev/zero is a pipe or a device" in ran.err


def test_lines_that_cannot_be_are_one_sentence(attn: Run, models: Path, tmp_path: Path) -> None:
    pair = {"text": "w40", "query": "w40", "keys": [0]}
    own = written(models, [{"image": "a.png", **pair}], "own.jsonl")
    image = ("--image", models / "a.png")
    refused(attn("heads", "-m", models / "llava", "--pairs", own, *image), 2, "--image does not apply to pairs")
    refused(attn("inspect", "-m", models / "llava", "--file", own, *image), 2, "--image does not apply to a line")
    refused(attn("heads", "-m", "demo", "--pairs", own), 2, "the lines name pictures, and demo reads text alone")
    file = written(tmp_path, [{"text": "red", "query": -1, "keys": [[0, 0, 8, 8]]}])
    ran = attn("heads", "-m", "demo-vision", "--pairs", file)
    assert "key [0, 0, 8, 8]: the pixels of picture 0 are unknown; give --image" in ran.err
    for wrong in (3, "", [""], {"path": "a.png"}):
        file = written(tmp_path, [{"text": "w40", **pair, "image": wrong}])
        ran = attn("heads", "-m", models / "llava", "--pairs", file)
        refused(ran, 5, f"{file}, line 1: 'image' is neither a path nor a list of paths")
    file = written(tmp_path, [{"text": "w40", **pair, "image": []}])
    refused(attn("heads", "-m", models / "llava", "--pairs", file), 5, "line 1: 'image' names no picture")
    file = written(tmp_path, [{"image": "a.png", "query": 0, "keys": [0]}])
    refused(attn("heads", "-m", models / "llava", "--pairs", file), 5, "line 1: 'text' is missing or no text")
    file = written(models, [{"text": "w40", "image": 3}], "wrong.jsonl")
    ran = attn("inspect", "-m", models / "llava", "--file", file, "-F", "json")
    assert "'image' is neither a path nor a list of paths" in ran.err
