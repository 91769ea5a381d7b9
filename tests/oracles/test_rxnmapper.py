"""RXNMapper's ALBERT: the head that maps atoms is the one it uses, with the numbers of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from running import Run
from rxnmapper import atom_pairs, rxnmapper_folder
from transformers import AlbertModel, PreTrainedTokenizerFast


def test_the_head_that_maps_atoms_comes_first(attn: Run, tmp_path: Path) -> None:
    lines, folder = atom_pairs(), rxnmapper_folder()
    shipped = Path(__file__).parents[2] / "docs/cookbook/files/atoms.jsonl"
    assert list(map(json.loads, shipped.read_text().splitlines())) == lines
    file = tmp_path / "atoms.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    document = attn("heads", "-m", folder, "--pairs", file, "-F", "json").json
    assert (document["texts"], document["pairs"]) == (9, 95)
    best = document["heads"][:6]
    assert [head["head"] for head in best] == [5] * 6  # the head that RXNMapper reads, in layers that share weights
    assert all(head["hits"] >= 0.85 for head in best)
    assert round(median(head["hits"] for head in document["heads"]), 1) == 0.2
    expected = by_hand(folder, lines)
    for head in document["heads"]:
        hits, weight, by_chance = expected[head["layer"], head["head"]]
        assert abs(head["hits"] - hits) < 1e-12
        assert abs(head["weight"] - weight) < 1e-5
        assert abs(head["hits_uniform"] - by_chance) < 1e-12


def by_hand(folder: Path, lines: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[float, float, float]]:
    model = AlbertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    for line in lines:
        encoded = tokenizer(line["text"], return_tensors="pt", return_offsets_mapping=True)
        places = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            attentions = model(**encoded, output_attentions=True).attentions
        for pair in line["pairs"]:
            query, (right,) = places.index(pair["query"]), (places.index(key) for key in pair["keys"])
            among = [places.index(key) for key in pair["among"]]
            for layer, weights in enumerate(attentions):
                for head, row in enumerate(weights[0, :, query].tolist()):
                    hit = max(among, key=lambda key: row[key]) == right
                    rows.setdefault((layer, head), []).append((hit, row[right], 1 / len(among)))
    return {place: tuple(np.mean(found, axis=0)) for place, found in rows.items()}
