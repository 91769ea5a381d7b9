"""Train the small model in the box that sees, that of `attn inspect -m demo-vision --image PICTURE`.

    python demo/train_vision.py

It takes seven minutes on one core, and needs `pip install -c constraints.txt -e '.[torch,image]'`.
docs/demo-vision.md says what the model is and what it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scenes import CELL, COLORS, GRID, PLACES, SHAPES, Scene
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

FOLDER = Path(__file__).parents[1] / "attncli" / "checkpoints" / "demo-vision"
SEED = 0
START, UNKNOWN, IMAGE = SPECIAL = ("<s>", "<unk>", "<image>")
WORDS = (*SPECIAL, "where", "is", "the", *COLORS, *SHAPES, *PLACES)
IDS = {word: index for index, word in enumerate(WORDS)}
IGNORED = -100  # a token that the model need not predict

STEPS = 3000
SHAPES_UNTIL = ((0.07, 2), (0.15, 4), (1.0, 8))  # of a scene at most, each until that share of the steps
RATE = 5e-3
# Then one head of the last layer learns to do alone what several share: the others are faded out, and come back.
HEAD = 2
FADING_STEPS = 1500
FADED, BACK = 900, 1425  # of these steps
FADING_RATE = 3e-3
SCENES = 32  # of a batch
QUESTIONS = 4  # about each of them
WARM = 50  # steps
LEAST_RIGHT = 0.95
LEAST_HITS = 0.9

WIDTH = 64
CONFIG = LlavaConfig(
    vision_config=CLIPVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=GRID * CELL,
        patch_size=CELL,
        projection_dim=WIDTH,
    ),
    text_config=LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=32,
        max_position_embeddings=128,
        # Slow rotations: a question finds a shape wherever it stands in the sequence.
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=0,
        eos_token_id=None,
    ),
    image_token_index=IDS[IMAGE],
    image_seq_length=GRID * GRID,
    vision_feature_layer=-1,
    tie_word_embeddings=True,
)


def tokenizer() -> Tokenizer:
    """Return the tokenizer: each word of `WORDS` in lower case; a text begins with `<s>`."""
    made = Tokenizer(models.WordLevel(IDS, unk_token=UNKNOWN))
    made.add_special_tokens(list(SPECIAL))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, 0)])
    return made


def pixels(scenes: list[Scene]) -> Tensor:
    """Return pictures as the model gets them, [scene, channel, height, width], between -1 and 1."""
    every = np.stack([scene.picture() for scene in scenes]).transpose(0, 3, 1, 2)
    return torch.from_numpy(every.astype(np.float32) / 127.5 - 1)


def batch(rng: np.random.Generator, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pixels of scenes, and tokens and labels of questions about each, [scene, token]."""
    scenes = [Scene.drawn(rng, most) for _ in range(SCENES)]
    ids, labels = [], []
    for scene in scenes:
        row = [IDS[START], *[IDS[IMAGE]] * GRID**2]
        label = [IGNORED] * len(row)
        for index in np.resize(rng.permutation(len(scene.kinds)), QUESTIONS):
            question, place = scene.question(int(index))
            words = [IDS[word] for word in question.split()]
            row += [*words, IDS[place]]
            label += [IGNORED] * len(words) + [IDS[place]]
        ids.append(row)
        labels.append(label)
    return pixels(scenes), torch.tensor(ids), torch.tensor(labels)


def train() -> LlavaForConditionalGeneration:
    """Return the trained model: all heads learn, then one of the last layer learns to do without the others."""
    model, rng = LlavaForConditionalGeneration(CONFIG), np.random.default_rng(SEED)
    print(f"{model.num_parameters():,} parameters", flush=True)
    for step in descend(model, STEPS, RATE):
        learn(model, *batch(rng, next(most for share, most in SHAPES_UNTIL if step < share * STEPS)))

    size = CONFIG.text_config.head_dim
    volume = torch.ones(CONFIG.text_config.num_attention_heads * size)  # of what each head writes
    is_faded = torch.arange(len(volume)) // size != HEAD
    projection = model.model.language_model.layers[-1].self_attn.o_proj
    hook = projection.register_forward_pre_hook(lambda module, inputs: (inputs[0] * volume,))
    for step in descend(model, FADING_STEPS, FADING_RATE):
        if step < BACK:
            volume[is_faded] = max(0.0, 1 - step / FADED)
        elif step == BACK:
            with torch.no_grad():
                projection.weight *= volume
            hook.remove()
        learn(model, *batch(rng, SHAPES_UNTIL[-1][1]))
    return model


def descend(model: LlavaForConditionalGeneration, steps: int, rate: float) -> Iterator[int]:
    """Yield each step, whose gradients are then followed; the rate is warmed up, and let down in a straight line.

    Matrices are trained by Muon (Jordan et al. 2024), the rest by AdamW (Loshchilov & Hutter 2019).
    """
    named = {name: parameter.ndim == 2 and "embed" not in name for name, parameter in model.named_parameters()}
    optimizers: tuple[torch.optim.Optimizer, ...] = (
        torch.optim.Muon(
            [each for name, each in model.named_parameters() if named[name]],
            weight_decay=0.1,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            [each for name, each in model.named_parameters() if not named[name]], betas=(0.9, 0.98), weight_decay=0.0
        ),
    )
    for step in range(steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * min((step + 1) / WARM, 1 - step / steps)
        yield step
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step:5} of {steps}  {time.process_time():4.0f} s", flush=True)


def learn(model: LlavaForConditionalGeneration, picture: Tensor, ids: Tensor, labels: Tensor) -> None:
    """Add the gradients of the loss of a batch."""
    model(input_ids=ids, pixel_values=picture, labels=labels, use_cache=False).loss.backward()


def save(model: LlavaForConditionalGeneration, folder: Path) -> None:
    """Write the model in float16, with its tokenizer and its processor, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # which was for its owner alone
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    side = GRID * CELL
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": START,
            "unk_token": UNKNOWN,
            "image_token": IMAGE,
            "model_max_length": CONFIG.text_config.max_position_embeddings,
        },
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "do_center_crop": False,
            "do_convert_rgb": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "size": {"height": side, "width": side},
        },
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "patch_size": CELL,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
            "image_token": IMAGE,
        },
    }
    for name, settings in files.items():
        (folder / name).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, count: int = 1000) -> bool:
    """Print what a saved model does with pictures that it never saw; return whether it answers, and a head looks."""
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    rng = np.random.default_rng(SEED + 1)
    scenes = [Scene.drawn(rng) for _ in range(count)]
    asked = [scene.question(0) for scene in scenes]
    ids = torch.tensor([
        [IDS[START], *[IDS[IMAGE]] * GRID**2, *(IDS[word] for word in question.split())] for question, _ in asked
    ])  # fmt: skip
    with torch.inference_mode():
        outputs = model(input_ids=ids, pixel_values=pixels(scenes), output_attentions=True)
    places = torch.tensor([IDS[place] for _, place in asked])
    right = float((outputs.logits[:, -1].argmax(-1) == places).float().mean())
    cells = torch.tensor([scene.cells[0] for scene in scenes])
    rows = torch.stack([each[:, :, -1] for each in outputs.attentions])  # [layer, scene, head, key]
    hits = (rows.argmax(-1) == cells[:, None] + 1).float().mean(dim=1)
    print(f"answers of {count} questions that are right: {right:.3f}")
    best = divmod(int(hits.argmax()), hits.shape[1])
    print(f"heaviest key of the last token is the right cell, layers × heads:\n{hits.numpy().round(3)}")
    print(f"best: layer {best[0]} head {best[1]}")
    return right >= LEAST_RIGHT and float(hits.max()) >= LEAST_HITS


def main() -> None:
    """Train, save and measure the model; exit with 1 where it answers too little or no head looks."""
    parser = argparse.ArgumentParser(description="Train the demo model that sees and measure it.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where it is written")
    parser.add_argument("--measure", action="store_true", help="measure what is there, and train nothing")
    chosen = parser.parse_args()
    disable_progress_bar()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums in one order, whatever the machine
    if not chosen.measure:
        save(train(), chosen.folder)
        print(f"{time.process_time():.0f} processor seconds")
    sys.exit(not measure(chosen.folder))


if __name__ == "__main__":
    main()
