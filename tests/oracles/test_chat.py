"""`--chat` against transformers' own `apply_chat_template`, and what a template may not do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from running import Run
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import attncli
from attncli.encoding.chat import Conversation
from attncli.engines.tokenize import open_tokenizer
from attncli.errors import UsageError

CHATML = """
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_3 = """{% set loop_messages = messages %}{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
{% set content = content + message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{ content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

GENERATION = """
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ message.content }}<|im_end|>
{% endgeneration %}
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- if loop.index > 8 %}{% break %}{% endif %}
{%- endfor %}"""

TEMPLATES = {"chatml": CHATML, "llama 3": LLAMA_3, "generation": GENERATION}
# Of a model that reads pictures too: it takes contents in parts.
IN_PARTS = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}{% if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}
{%- endif %}{% endfor %}<|im_end|>
{% endfor %}"""
CONTROLS = (
    "<|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <start_of_turn> <end_of_turn> [INST] "
    "[/INST] <s> </s>"
).split()


def save_chat_model(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["time flies like an arrow user system assistant model helpful"] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer.get_vocab()), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=512, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def write_template(folder: Path, template: str | None, form: str = "file") -> None:
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    config.pop("chat_template", None)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    if template is not None and form == "file":
        (folder / "chat_template.jinja").write_text(template)
    elif template is not None:
        other = {"name": "tool_use", "template": "nothing"}
        several = [other, {"name": "default", "template": template}]
        config["chat_template"] = several if form == "several" else template
    path.write_text(json.dumps(config))


USAGE, LOAD, NOT_EXPOSED, INPUT = 2, 3, 4, 5
TEXT = "time flies like an arrow"
PLAIN = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
CONTENTS = [
    TEXT, "  two\n\nlines, and blanks at the ends \n", "{{ bos_token }} {% raw %} \"quoted\" 'twice' \\n <b>&amp;</b>",
    "naïve ☃ 👩\u200d🚀 e\u0301", "a <|im_end|> that is written out, </s> too",
]  # fmt: skip


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    save_chat_model(folder)
    return folder


@pytest.fixture
def model(chat_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(chat_model, tmp_path / "model"))


def saved(folder: Path, *messages: tuple[str, str]) -> Path:
    path = folder / "chat.json"
    path.write_text(json.dumps([{"role": role, "content": content} for role, content in messages]), encoding="utf-8")
    return path


def words_of(document: dict[str, Any]) -> str:
    places = [range(token["start"], token["end"]) for token in document["tokens"] if not token["special"]]
    return "".join(document["text"][place] for place in sorted({place for some in places for place in some}))


@pytest.mark.parametrize(
    ("name", "form"), [(name, "file") for name in TEMPLATES] + [("chatml", "field"), ("chatml", "several")]
)
def test_texts_and_ids_are_those_of_transformers(model: Path, name: str, form: str) -> None:
    write_template(model, TEMPLATES[name], form)
    tokenizer = AutoTokenizer.from_pretrained(model)
    ours = open_tokenizer(model=str(model), chat=True)
    for system in [[], [("system", "speak  of\ntime ")]]:
        for content in CONTENTS:
            turns = [*system, ("user", content), ("assistant", TEXT), ("user", content[::-1])]
            messages = [{"role": role, "content": message} for role, message in turns]
            found = ours.tokenize(Conversation.of(messages))
            assert found.text == tokenizer.apply_chat_template(messages, tokenize=False)
            assert found.tokens.ids == tokenizer.apply_chat_template(messages)["input_ids"]
            controls = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
            assert [token.id in controls for token in found.tokens] == [token.special for token in found.tokens]


def test_both_engines_read_the_same_and_compute_what_the_model_does(attn: Run, model: Path, tmp_path: Path) -> None:
    write_template(model, TEMPLATES["llama 3"])
    tokenizer = AutoTokenizer.from_pretrained(model)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": TEXT}]
    ids = tokenizer.apply_chat_template(messages, return_tensors="pt")["input_ids"]
    whole = LlamaForCausalLM.from_pretrained(model, attn_implementation="eager")
    weights = whole(ids, output_attentions=True).attentions[0][0]
    chat = saved(tmp_path, ("system", "be brief"), ("user", TEXT))
    documents = []
    for engine in ("native", "transformers"):
        ran = attn("inspect", "-f", chat, "--chat", "-m", model, "--engine", engine, "-F", "json")
        assert (ran.code, ran.err) == (0, "")
        documents.append(ran.json)
        assert [token["id"] for token in ran.json["key_tokens"]] == ids[0].tolist()
        found = torch.tensor([head["weights"] for head in ran.json["layers"][0]["heads"]])
        assert (found - weights).abs().max() < 1e-6
    assert documents[0]["key_tokens"] == documents[1]["key_tokens"]
    assert documents[0]["text"] == documents[1]["text"] == tokenizer.apply_chat_template(messages, tokenize=False)
    assert documents[0]["source"]["engine"] == "native"


def test_files_hold_messages_and_lines_are_turns(attn: Run, model: Path, tmp_path: Path) -> None:
    write_template(model, PLAIN)
    run = ("--chat", "-m", model, "-F", "jsonl")
    lines = [json.dumps([{"role": "user", "content": each}]) for each in ("time flies", "fruit\nflies")]
    several = tmp_path / "chats.jsonl"
    several.write_text("\n".join([*lines, '{"role": "user"}', "", lines[0]]))
    ran = attn("tokens", "-f", several, *run)
    assert ran.code == INPUT
    assert [words_of(json.loads(line)) for line in ran.out.splitlines()] == ["time flies", "fruit\nflies", "time flies"]
    assert "sentence 3: the conversation is {'role': 'user'}; expected a list of messages" in ran.err
    text = tmp_path / "prompts.txt"
    text.write_text('time flies\n[{"role": "user"}]\n')
    found = [words_of(json.loads(line)) for line in attn("tokens", "-f", text, *run).out.splitlines()]
    assert found == ["time flies", '[{"role": "user"}]']
    assert words_of(attn("tokens", "-f", text, "--whole", *run).json) == text.read_text()
    assert words_of(attn("tokens", "-", *run, stdin="time flies").json) == "time flies"


def test_options_that_do_not_go_with_a_chat_are_usage_errors(attn: Run, model: Path, tmp_path: Path) -> None:
    write_template(model, PLAIN)
    refused(attn("inspect", TEXT, "--chat"), USAGE)
    refused(attn("inspect", "-f", saved(tmp_path, ("user", "time")), "--whole", "--chat", "-m", model), USAGE)
    refused(attn("mask", "model", "-m", model, TEXT, "--chat", "--pair", "x"), USAGE)
    with pytest.raises(UsageError, match="chat=True"):
        attncli.inspect([{"role": "user", "content": TEXT}], model=str(model))
    for texts in ([TEXT, TEXT], (TEXT,)):
        for how in ({}, {"model": str(model)}, {"model": str(model), "chat": True}):
            with pytest.raises(UsageError, match=f"expected one text, not a list of {len(texts)}; call it once"):
                attncli.inspect(texts, **how)


@pytest.mark.parametrize(("content", "reason"), [
    ("[" * 100_000, "is no JSON"), ("[]", "is []; expected a list of messages"),
    ('[{"role": "user"}]', "message 1 of the conversation is {'role': 'user'}"),
    ('[{"role": "user", "content": null}]', "'content': None}"),
])  # fmt: skip
def test_no_list_of_messages_is_one_sentence(attn: Run, model: Path, tmp_path: Path, content: str, reason: str) -> None:
    write_template(model, PLAIN)
    path = tmp_path / "bad.json"
    path.write_text(content)
    refused(attn("inspect", "-f", path, "--chat", "-m", model), INPUT, reason)


REFUSED = [
    (None, NOT_EXPOSED, "has no default chat template"), ("{% if %}", LOAD, "cannot be read"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", LOAD, "cannot be read"),
    ("{{ raise_exception('no\x1b[31m chat') }}", INPUT, "refuses these messages: no\\x1b[31m chat"),
    ("{{ messages.__class__.__mro__ }}", INPUT, "refuses these messages"),
    ("{{ messages.append(1) }}", INPUT, "refuses these messages"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", INPUT, "maximum recursion depth exceeded"),
    (" ", INPUT, "leaves out the messages"), (IN_PARTS, INPUT, "leaves out the messages"),
]  # fmt: skip


def test_a_checkpoint_without_a_template_or_with_a_bad_one_is_refused(attn: Run, model: Path) -> None:
    run = ("tokens", TEXT, "--chat", "-m", model)
    for template, code, reason in REFUSED:
        write_template(model, template)
        ran = attn(*run)
        refused(ran, code, reason)
        assert " at 0x" not in ran.err
    named = json.loads((model / "tokenizer_config.json").read_text())
    named["chat_template"] = [{"name": "tool_use", "template": "a"}, {"name": ["rag"], "template": "b"}, "c"]
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps(named))
    ran = attn(*run)
    assert (ran.code, "has no default chat template" in ran.err) == (NOT_EXPOSED, True), ran.err
