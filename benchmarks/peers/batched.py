"""The fastest script over many sentences that one can write with transformers: sorted by length, in padded batches.

Without ``--head`` it prints, for each head of each layer, the mean over the sentences of every metric of `attn heads`,
but for the highest score, which transformers does not return. With it, it prints the weights of that head as JSON
lines, in the order of the sentences. The layers above `--layer` are cut off, unless it is told not to.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import orjson
import torch
from transformers import AutoModel, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("--file", type=Path, required=True, help="one text a line")
parser.add_argument("--layer", type=int)
parser.add_argument("--head", type=int, help="this head alone")
parser.add_argument("--uncut", action="store_true", help="compute the layers above it too, as transformers does")
parser.add_argument("--batch", type=int, default=2048, help="tokens, with the padding")
arguments = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
model = AutoModel.from_pretrained(arguments.folder, attn_implementation="eager").eval()
if arguments.layer is not None and not arguments.uncut:
    model.encoder.layer = model.encoder.layer[: arguments.layer + 1]
texts = arguments.file.read_text().splitlines()
read = tokenizer(texts, return_special_tokens_mask=True)
lengths = [len(ids) for ids in read["input_ids"]]
order = sorted(range(len(texts)), key=lengths.__getitem__)


def batches() -> Iterator[list[int]]:
    """Yield the numbers of sentences of about one length."""
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) + 1) * lengths[number] > arguments.batch:
            yield batch
            batch = []
        batch.append(number)
    yield batch


def metrics(weights: torch.Tensor, ids: torch.Tensor, special: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Return the means over the rows of each sentence, [B, H, M], of weights [B, H, T, T]."""
    place = torch.arange(ids.shape[1])
    rows = real.float()[:, None]  # [B, 1, T]

    def mean(values: torch.Tensor, among: torch.Tensor = rows) -> torch.Tensor:
        return (values * among).sum(-1) / among.sum(-1)

    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    earlier = (ids[:, :, None] == ids[:, None]) & (place[:, None] > place)
    repeats = earlier.any(-1)[:, None] & real[:, None]
    earlier = earlier.float()[:, None]
    special = special.float()
    found = [
        mean(entropy),
        mean(entropy.exp()),
        mean(weights.amax(-1)),
        mean(weights[..., 1:, 0], rows[..., 1:]),
        mean((weights @ special[:, None, :, None])[..., 0]),
        mean((weights[..., 1:] @ special[:, None, 1:, None])[..., 0]),
        mean((weights * (place[:, None] - place).abs()).sum(-1)),
        mean(weights.diagonal(0, -2, -1)),
        mean(weights.diagonal(-1, -2, -1), rows[..., 1:]),
        mean(weights.diagonal(1, -2, -1), rows[..., 1:]),
        mean((weights * earlier).sum(-1), repeats),
        mean((weights[..., 1:] * earlier[..., :-1]).sum(-1), repeats),
    ]
    return torch.stack(found, -1)


lines: dict[int, bytes] = {}
sums = counts = torch.zeros(())
with torch.inference_mode():
    for batch in batches():
        longest = lengths[batch[-1]]
        ids = torch.tensor([read["input_ids"][number] + [0] * (longest - lengths[number]) for number in batch])
        real = torch.arange(longest) < torch.tensor([lengths[number] for number in batch])[:, None]
        attentions = model(input_ids=ids, attention_mask=real.long(), output_attentions=True).attentions
        if arguments.head is not None:
            of_head = attentions[arguments.layer][:, arguments.head].numpy()
            for weights, number in zip(of_head, batch, strict=True):
                shown = {"sentence": number + 1, "tokens": read["input_ids"][number]}
                own = weights[: lengths[number], : lengths[number]].copy()
                lines[number] = orjson.dumps({**shown, "weights": own}, option=orjson.OPT_SERIALIZE_NUMPY)
            continue
        special = torch.tensor(
            [read["special_tokens_mask"][number] + [0] * (longest - lengths[number]) for number in batch]
        )
        values = torch.stack([metrics(weights, ids, special, real) for weights in attentions], 1)  # [B, L, H, M]
        sums = sums + values.nan_to_num().sum(0)
        counts = counts + values.isfinite().sum(0)
if arguments.head is not None:
    print("\n".join(lines[number].decode() for number in range(len(texts))))
else:
    print(json.dumps((sums / counts).tolist()))
