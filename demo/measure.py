"""What the demo model can do, by transformers' own attention: its loss on texts that it never saw, and two heads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

PERIOD = 50  # tokens, after which random sequences come again
LEAST_PREVIOUS = 0.6
LEAST_INDUCTION = 0.5

SENTENCES = """
The old man walked to the river because he wanted to see the boats.
When the rain stopped, the children ran out and the dog ran after them.
She put the key on the table, took the letter and closed the door.
A cat sat on the mat, and the mat was warm.
My brother told my sister that my mother had lost her keys.
Time flies like an arrow, but fruit flies like a banana.
The teacher asked the student a question that the student could not answer.
He bought bread, milk and apples, and then he forgot the bread.
Most people would rather be on time than be right.
The red house stands behind the blue house near the school.
""".strip().splitlines()


def measure(folder: Path, held_out: list[list[str]], seed: int) -> bool:
    """Print what a saved model does with texts that it was not trained on; return whether both heads are there."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [torch.tensor([tokenizer.encode(" ".join(entry)).ids]) for entry in held_out]
    with torch.inference_mode():
        summed = sum(float(model(ids, labels=ids).loss) * (ids.shape[1] - 1) for ids in texts)
        previous = np.mean([_previous(model, torch.tensor([tokenizer.encode(each).ids])) for each in SENTENCES], axis=0)
        tokens = np.random.default_rng(seed).integers(2, model.config.vocab_size, (40, PERIOD))  # no special ones
        repeated = torch.from_numpy(np.insert(np.tile(tokens, 2), 0, 0, axis=1))  # each begins with <s>
        induction = _induction(model, repeated)
        layer, head = (int(each) for each in np.unravel_index(previous.argmax(), previous.shape))
        with _silenced(model, layer, head):
            without = _induction(model, repeated)
    count, letters = sum(ids.shape[1] - 1 for ids in texts), sum(len(" ".join(entry)) for entry in held_out)
    print(f"entries held out: {summed / count:.2f} nats a token, {summed / letters / np.log(2):.2f} bits a character")
    print(f"previous token, over {len(SENTENCES)} sentences: {_best(previous)}")
    print(f"induction, over {len(repeated)} sequences of {PERIOD} random tokens, twice: {_best(induction)}")
    print(f"induction, where layer {layer} head {head} gives zeros: {_best(without)}")
    return bool(previous.max() >= LEAST_PREVIOUS and induction.max() >= LEAST_INDUCTION)


def _previous(model: LlamaForCausalLM, ids: torch.Tensor) -> np.ndarray:
    """Return the mean weight of each head on the token before, [layer, head]."""
    return np.diagonal(_weights(model, ids), -1, 3, 4).mean(axis=(1, 3))


def _induction(model: LlamaForCausalLM, ids: torch.Tensor) -> np.ndarray:
    """Return the mean weight of each head on the token after the same one's earlier place, [layer, head].

    The queries are those of the second time: the first of them is at PERIOD + 1, and its key at 2.
    """
    return np.diagonal(_weights(model, ids), 1 - PERIOD, 3, 4)[..., 2:].mean(axis=(1, 3))


@contextmanager
def _silenced(model: LlamaForCausalLM, layer: int, head: int) -> Iterator[None]:
    """Let a head give zeros."""
    width = model.config.head_dim

    def silence(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        original = inputs[0].clone()
        original[..., head * width : (head + 1) * width] = 0
        return (original,)

    hook = model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()


def _weights(model: LlamaForCausalLM, ids: torch.Tensor) -> np.ndarray:
    """Return the attention weights, [layer, sequence, head, query, key]."""
    return np.stack([each.numpy() for each in model(ids, output_attentions=True).attentions])


def _best(scores: np.ndarray) -> str:
    """Return the best three heads of scores [layer, head]."""
    found = sorted(np.ndindex(scores.shape), key=lambda index: -scores[index])[:3]
    return ", ".join(f"layer {layer} head {head} {scores[layer, head]:.3f}" for layer, head in found)
