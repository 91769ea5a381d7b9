"""Train the small model in the box anew, that of `attn inspect -m demo`.

    python demo/train.py

It takes ten minutes on one core, and needs `pip install -c constraints.txt -e '.[torch]'`. The texts are those
of WordNet 3.0, from Debian's package wordnet-base, which is downloaded where it is not installed. docs/demo-model.md
says what the model is and what it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import texts
import torch
from measure import measure
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

FOLDER = Path(__file__).parents[1] / "attncli" / "checkpoints" / "demo"
VOCABULARY = Path(__file__).with_name("vocabulary.txt")
SEED = 0
SPECIAL = START, UNKNOWN = "<s>", "<unk>"
HELD_OUT = 1000  # entries that are not trained on

STEPS = 4000
BATCH = 1024  # tokens
LENGTHS = ((0.5, 64), (0.8, 128), (1.0, 256))  # of a row of tokens, each until that share of the steps
KINDS = ("text", "text", "repeated text", "repeated random")  # of the rows of a batch, in turn
RATE = 5e-3
WARM = 50  # steps

CONFIG = LlamaConfig(
    vocab_size=3000,
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    initializer_range=0.06,
    bos_token_id=0,
    eos_token_id=None,
)


def tokenizer() -> Tokenizer:
    """Return the tokenizer: words in lower case, or pieces of them (`##`); a text begins with `<s>`.

    Its vocabulary was learned once, from the same texts by tokenizers' WordPieceTrainer, which breaks ties in another
    way in each run.
    """
    pieces = VOCABULARY.read_text("utf-8").splitlines()
    made = Tokenizer(models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token=UNKNOWN))
    made.add_special_tokens(list(SPECIAL))
    made.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, 0)])
    return made


class Rows:
    """What the model is trained on: rows of tokens, and which of them it has to foretell.

    Half of the rows are text. The others repeat themselves, a text or random tokens, each with a period of its own;
    only what can be foretold counts there, from the second time on.
    """

    def __init__(self, reader: Tokenizer, sentences: list[str], rng: np.random.Generator) -> None:
        encoded = [each.ids for each in reader.encode_batch(sentences, add_special_tokens=False)]
        self.ids = np.fromiter(chain.from_iterable(encoded), np.int64)
        starts = np.cumsum([0, *map(len, encoded)])
        self.starts = starts[starts <= len(self.ids) - CONFIG.max_position_embeddings]
        self.rng = rng

    def batch(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of some rows, and whether each is to be foretold; both of shape [rows, length]."""
        ids = np.zeros((BATCH // length, length), dtype=np.int64)  # each row begins with <s>
        counts = np.zeros(ids.shape, dtype=bool)
        for index, row in enumerate(ids):
            kind = KINDS[index % len(KINDS)]
            period = int(self.rng.integers(2, length // 2)) if "repeated" in kind else length - 1
            part = self.rng.integers(len(SPECIAL), CONFIG.vocab_size, period) if "random" in kind else self.text(period)
            row[1:] = np.resize(part, length - 1)
            counts[index, 1 + period if "repeated" in kind else 1 :] = True
        return torch.from_numpy(ids), torch.from_numpy(counts)

    def text(self, length: int) -> np.ndarray:
        """Return tokens from the beginning of some sentence on."""
        start = self.rng.choice(self.starts)
        return self.ids[start : start + length]


def train(rows: Rows) -> LlamaForCausalLM:
    """Return the trained model: matrices by Muon (Jordan et al. 2024), the rest by AdamW (Loshchilov & Hutter 2019).

    The rate is warmed up, and let down in a straight line.
    """
    model = LlamaForCausalLM(CONFIG)
    print(f"{model.num_parameters():,} parameters, {STEPS} steps of {BATCH} tokens", flush=True)
    matrices = [each for name, each in model.named_parameters() if "_proj" in name]
    others = [each for name, each in model.named_parameters() if "_proj" not in name]
    optimizers: Sequence[torch.optim.Optimizer] = (
        torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
    )
    begun = time.perf_counter()
    for step in range(STEPS):
        for group in chain.from_iterable(optimizer.param_groups for optimizer in optimizers):
            group["lr"] = RATE * min((step + 1) / WARM, 1 - step / STEPS)
        ids, counts = rows.batch(next(length for share, length in LENGTHS if step < share * STEPS))
        losses = foretold(model, ids, counts)
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 100 == 0:
            seconds = time.perf_counter() - begun
            print(f"step {step:5}  {seconds:4.0f} s  {_by_kind(losses.detach(), counts)}", flush=True)
    return model


def foretold(model: LlamaForCausalLM, ids: Tensor, counts: Tensor) -> Tensor:
    """Return the cross-entropy, in nats, of each token that counts, given those before it."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden[counts[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][counts[:, 1:]], reduction="none")


def _by_kind(losses: Tensor, counts: Tensor) -> str:
    kinds = torch.arange(len(counts))[:, None].expand_as(counts)[counts] % len(KINDS)
    return "  ".join(f"{name} {losses[kinds == kind].mean():.2f}" for kind, name in enumerate(KINDS) if kind)


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the model in float16, with its tokenizer, as transformers reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # which was for its owner alone
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "unk_token": UNKNOWN,
        "model_max_length": CONFIG.max_position_embeddings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train, save and measure the model; exit with 1 where a head is missing."""
    parser = argparse.ArgumentParser(description="Train the demo model and measure it.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where it is written")
    parser.add_argument("--measure", action="store_true", help="measure what is there, and train nothing")
    chosen = parser.parse_args()
    disable_progress_bar()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums in one order, whatever the machine
    entries = texts.entries(SEED)
    if not chosen.measure:
        sentences = list(chain.from_iterable(entries[HELD_OUT:]))
        rows = Rows(tokenizer(), sentences, np.random.default_rng(SEED))
        print(f"{len(sentences):,} sentences, {len(rows.ids):,} tokens", flush=True)
        save(train(rows), chosen.folder)
        print(f"{time.process_time():.0f} processor seconds")
    sys.exit(not measure(chosen.folder, entries[:HELD_OUT], SEED))


if __name__ == "__main__":
    main()
