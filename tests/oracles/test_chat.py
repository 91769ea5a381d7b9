"""`--chat` against transformers' own `apply_chat_template`, and which tokens are the template's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_templates import IN_PARTS, REWRITES, TEMPLATES, save_chat_model, write_template
from tokenizer_folders import custom
from transformers import AutoTokenizer, LlamaForCausalLM

import attncli
from attncli.encoding.chat import Conversation, TemplateError, TemplateProcess
from attncli.engines.tokenize import open_tokenizer
from attncli.errors import UsageError
from attncli.trace.tokens import Token

Run = Callable[..., Any]

USAGE, LOAD, NOT_EXPOSED, INPUT = 2, 3, 4, 5
TEXT = "time flies like an arrow"
CONTENTS = [
    TEXT,
    "  two\n\nlines, and blanks at the ends \n",
    "user",  # which templates write as well
    "{{ bos_token }} {% raw %} \"quoted\" 'twice' \\n <b>&amp;</b>",
    "naïve ☃ 👩\u200d🚀 e\u0301",
    "a <|im_end|> that is written out, </s> too",
    "x",
]


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


def words_of(document: dict[str, Any], name: str = "tokens") -> str:
    """What stands in the text where tokens are that no template wrote; several may share a character."""
    places = [range(token["start"], token["end"]) for token in document[name] if not token["special"]]
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
            messages = [{"role": role, "content": said} for role, said in turns]
            found = ours.tokenize(Conversation.of(messages))
            assert found.text == tokenizer.apply_chat_template(messages, tokenize=False)
            assert found.tokens.ids == tokenizer.apply_chat_template(messages)["input_ids"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_writes_is_special_and_what_the_messages_say_is_not(model: Path, name: str) -> None:
    write_template(model, TEMPLATES[name])
    ours = open_tokenizer(model=str(model), chat=True)
    for content in CONTENTS:
        found = ours.tokenize(content)
        assert found.notes == ()
        written = json.dumps(content, ensure_ascii=False)[1:-1] if name == "json" else content
        # A piece may hold a blank of the template's and the first letters of a content.
        assert words_of({"text": found.text, "tokens": map(Token.as_dict, found.tokens)}).strip() == written.strip()
    turns = [("user", "time flies"), ("assistant", "like an arrow"), ("user", "and fruit")]
    found = ours.tokenize(Conversation.of([{"role": role, "content": content} for role, content in turns]))
    words = words_of({"text": found.text, "tokens": map(Token.as_dict, found.tokens)})
    assert words.replace(" ", "") == "timeflieslikeanarrowandfruit"


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
        assert words_of(ran.json, "key_tokens") == f"be brief{TEXT}"
        found = torch.tensor([head["weights"] for head in ran.json["layers"][0]["heads"]])
        assert (found - weights).abs().max() < 1e-6
    assert documents[0]["key_tokens"] == documents[1]["key_tokens"]
    assert documents[0]["text"] == documents[1]["text"] == tokenizer.apply_chat_template(messages, tokenize=False)
    assert documents[0]["source"]["engine"] == "native"


def test_what_is_generated_follows_the_beginning_of_an_answer(attn: Run, model: Path) -> None:
    write_template(model, TEMPLATES["chatml"])
    messages = [{"role": "user", "content": TEXT}]
    expected = AutoTokenizer.from_pretrained(model).apply_chat_template(messages, add_generation_prompt=True)
    ran = attn("inspect", TEXT, "--chat", "--generate", "2", "-m", model, "-F", "json")
    ids = [token["id"] for token in ran.json["key_tokens"]]
    assert ids[:-2] == expected["input_ids"]
    assert words_of(attn("tokens", TEXT, "--chat", "-m", model, "-F", "json").json) == TEXT


def test_every_command_that_takes_a_sentence_takes_a_chat(attn: Run, model: Path) -> None:
    write_template(model, TEMPLATES["llama 3"])
    messages = [{"role": "user", "content": TEXT}]
    ids = AutoTokenizer.from_pretrained(model).apply_chat_template(messages)["input_ids"]
    masks = attn("mask", "model", model, TEXT, "--chat", "-F", "json").json
    assert [token["id"] for token in masks[0]["key_tokens"]] == ids
    checked = attn("check", TEXT, "--chat", "-m", model)
    assert checked.code == 0, checked.out
    assert attn("check", TEXT, "--chat", "--target", "x", "-m", model).code == USAGE
    different = attn("diff", TEXT, "fruit flies like a banana", "--chat", "-m", model, "-F", "json")
    assert different.code == 0, different.err


def test_files_hold_messages_and_lines_are_turns(attn: Run, model: Path, tmp_path: Path) -> None:
    write_template(model, TEMPLATES["chatml"])
    run = ("--chat", "-m", model, "-F", "jsonl")
    lines = [json.dumps([{"role": "user", "content": each}]) for each in ("time flies", "fruit\nflies")]
    several = tmp_path / "chats.jsonl"
    several.write_text("\n".join([*lines, '{"role": "user"}', "", lines[0]]))
    ran = attn("tokens", "-f", several, *run)
    assert ran.code == INPUT
    assert [words_of(json.loads(line)) for line in ran.out.splitlines()] == ["time flies", "fruit\nflies", "time flies"]
    assert "sentence 3: the conversation is a dict; expected a list of messages" in ran.err
    several.write_text("\n".join(lines))
    assert attn("diff", "-f", several, "--chat", "-m", model).code == 0
    text = tmp_path / "prompts.txt"
    text.write_text('time flies\n[{"role": "user"}]\n')
    found = [words_of(json.loads(line)) for line in attn("tokens", "-f", text, *run).out.splitlines()]
    assert found == ["time flies", '[{"role": "user"}]']
    assert words_of(attn("tokens", "-f", text, "--whole", *run).json) == text.read_text()
    assert words_of(attn("tokens", "-", *run, stdin="time flies").json) == "time flies"


def test_of_tokens_without_places_the_control_tokens_are_special(attn: Run, tmp_path: Path) -> None:
    custom(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES["chatml"])
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())
    controls = {
        str(id_): {"content": text, "special": True} for id_, text in enumerate(("<|im_start|>", "<|im_end|>"), 300)
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said | {"added_tokens_decoder": controls}))
    ran = attn("tokens", "hi", "--chat", "-m", tmp_path, "--trust-remote-code", "-F", "json")
    special = [token["id"] for token in ran.json["tokens"] if token["special"]]
    assert special == [300, 301] * 2
    assert "does not say where tokens stand in the text, so that of the template's tokens the control tokens" in ran.err
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    messages = [{"role": "user", "content": "hi"}]
    assert [token["id"] for token in ran.json["tokens"]] == tokenizer.apply_chat_template(messages)["input_ids"]


def test_a_template_that_takes_contents_in_parts_is_refused(attn: Run, model: Path) -> None:
    write_template(model, IN_PARTS)
    ran = attn("tokens", TEXT, "--chat", "-m", model)
    assert (ran.code, ran.out, ran.err.count("\n")) == (INPUT, "", 1)
    assert "writes nothing of what the messages say" in ran.err


def test_where_a_template_rewrites_what_it_is_given_control_tokens_alone_are_special(
    attn: Run, model: Path, tmp_path: Path
) -> None:
    write_template(model, REWRITES)
    turns = [("user", "why"), ("assistant", "<think>so</think>\nit does")]
    ran = attn("tokens", "-f", saved(tmp_path, *turns), "--chat", "-m", model, "-F", "json")
    assert ran.json["text"].endswith("assistant\nit does<|im_end|>\n")
    assert "changes what the messages say" in ran.err
    controls = [token["text"] for token in ran.json["tokens"] if token["special"]]
    assert controls == ["<|im_start|>", "<|im_end|>"] * 2
    ran = attn("tokens", "why not", "--chat", "-m", model, "-F", "json")
    assert (words_of(ran.json), ran.err) == ("why not", "")


# --- what is refused ---------------------------------------------------------------------------------------


def test_options_that_do_not_go_with_a_chat_are_usage_errors(attn: Run, model: Path, tmp_path: Path) -> None:
    write_template(model, TEMPLATES["chatml"])
    trace = tmp_path / "trace.safetensors"
    assert attn("inspect", "time", "--save", trace).code == 0
    messages = saved(tmp_path, ("user", "time"))
    of_model = ("-m", model)
    for arguments in (
        ("inspect", TEXT, "--chat"),
        ("inspect", TEXT, "--chat", "--pair", "x", *of_model),
        ("inspect", TEXT, "--chat", "--no-special", *of_model),
        ("inspect", "-f", messages, "--whole", "--chat", *of_model),
        ("inspect", "--from", trace, "--chat"),
        ("mask", "model", model, TEXT, "--chat", "--pair", "x"),
    ):
        ran = attn(*arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (USAGE, "", 1), (arguments, ran.err)
    with pytest.raises(UsageError, match="chat=True"):
        attncli.inspect([{"role": "user", "content": TEXT}], model=str(model))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is an empty list; expected a list of messages"),
        ("[3]", "message 1 of the conversation is 3; expected a list of messages"),
        ('[{"role": "user"}]', "message 1 of the conversation is {'role': 'user'}"),
        ('[{"role": "user", "content": null}]', "'content': None}"),
        ('[{"role": "user", "content": "a", "tools": 1}]', "'tools': 1}"),
    ],
)
def test_what_is_no_list_of_messages_is_one_sentence(
    attn: Run, model: Path, tmp_path: Path, content: str, said: str
) -> None:
    write_template(model, TEMPLATES["chatml"])
    path = tmp_path / "bad.json"
    path.write_text(content)
    ran = attn("inspect", "-f", path, "--chat", "-m", model)
    assert (ran.code, ran.out, ran.err.count("\n")) == (INPUT, "", 1), ran.err
    assert said in ran.err


def test_a_checkpoint_without_a_template_or_with_a_bad_one_is_refused(attn: Run, model: Path) -> None:
    run = ("inspect", TEXT, "--chat", "-m", model)
    for template, code, said in (
        (None, NOT_EXPOSED, "has no chat template"),
        ("{% if %}", LOAD, "cannot be read"),
        ("{{ raise_exception('no\x1b[31m chat') }}", INPUT, "does not take these messages: no\\x1b[31m chat"),
        ("{{ messages[0].nothing.more }}", INPUT, "does not take these messages"),
        ("{{ messages.__class__.__mro__ }}", INPUT, "does not take these messages"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", INPUT, "does not take these messages"),
        (" ", INPUT, "writes nothing of what the messages say"),
    ):
        write_template(model, template)
        ran = attn(*run)
        assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1), (template, ran.err)
        assert said in ran.err
    named = json.loads((model / "tokenizer_config.json").read_text())
    named["chat_template"] = [{"name": "tool_use", "template": "a"}, {"name": ["rag"], "template": "b"}, "c"]
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps(named))
    ran = attn(*run)
    assert (ran.code, "or none that is the default" in ran.err) == (NOT_EXPOSED, True), ran.err


def test_a_template_in_a_folder_of_its_own_is_one_of_several(attn: Run, model: Path) -> None:
    write_template(model, TEMPLATES["chatml"])
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("nothing")
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert isinstance(tokenizer.chat_template, dict)
    ran = attn("tokens", TEXT, "--chat", "-m", model, "-F", "json")
    assert ran.json["text"] == tokenizer.apply_chat_template([{"role": "user", "content": TEXT}], tokenize=False)


def test_what_the_toolbox_of_a_template_may_not_do_is_refused_as_by_transformers(attn: Run, model: Path) -> None:
    for template in (
        "{% set ns = namespace(_a=1) %}{{ ns._a }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}x",
        "{{ messages.append(1) }}",
        "{{ ''.__class__ }}{{ ''.__class__.mro() }}",
    ):
        write_template(model, template)
        tokenizer = AutoTokenizer.from_pretrained(model)
        with pytest.raises(Exception):  # noqa: B017, PT011  jinja2's own, of several kinds
            tokenizer.apply_chat_template([{"role": "user", "content": TEXT}], tokenize=False)
        ran = attn("tokens", TEXT, "--chat", "-m", model)
        assert (ran.code, ran.out, ran.err.count("\n")) == (INPUT, "", 1), (template, ran.err)


ENDLESS = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a long step": "{{ 9 ** (9**9) }}",
    "a text many times": "{{ 'x' * 10**10 }}",
    "a text that is doubled": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}{{ ns.x | length }}",
    "a list of itself": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_computes_without_end_is_ended(name: str) -> None:
    process = TemplateProcess(ENDLESS[name])
    with pytest.raises(TemplateError, match=r"it computes (without end, or )?something far too large"):
        process.render(messages=[])
    with pytest.raises(TemplateError):  # again: it is started anew where it was ended
        process.render(messages=None, special=3, else_=4)


def test_a_text_that_is_too_long_is_refused(attn: Run, model: Path) -> None:
    write_template(model, "{% for i in range(9999) %}{{ messages[0].content * 99 }}{% endfor %}")
    ran = attn("tokens", TEXT, "--chat", "-m", model)
    assert (ran.code, ran.out, ran.err.count("\n")) == (INPUT, "", 1)
    assert "it writes 23,757,624 characters; at most" in ran.err


@pytest.mark.parametrize(
    "template",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
        "{% for i in [1] %}" * 120 + "x" + "{% endfor %}" * 120,
        "{{ 1" + " | string" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "x" * 300_000,
    ],
    ids=lambda template: template[:12],
)
def test_a_template_that_nests_too_deeply_or_is_too_long_cannot_be_read(attn: Run, model: Path, template: str) -> None:
    write_template(model, template)
    ran = attn("tokens", TEXT, "--chat", "-m", model)
    assert (ran.code, ran.out, ran.err.count("\n")) == (LOAD, "", 1), ran.err
    assert "the chat template of" in ran.err
    assert "cannot be read" in ran.err


def test_a_long_conversation_is_not_refused(model: Path) -> None:
    """Also where a template looks at all messages for each, as some do to find the last of the user's."""
    template = (
        "{% for message in messages %}{% set mine = messages | selectattr('role', 'equalto', 'user') | list %}"
        "{{ message.role }}{{ message.content | trim }}{% if message == mine[-1] and loop.last %}!{% endif %}"
        "{% endfor %}"
    )
    write_template(model, template)
    messages = [{"role": "user", "content": "hi"}] * 400
    whole = AutoTokenizer.from_pretrained(model).apply_chat_template(messages, tokenize=False)
    assert TemplateProcess(template).render(messages=messages) == whole


@pytest.mark.parametrize(
    "written",
    [
        "raise_exception",
        "messages | map('upper')",
        "[dict] | string",
    ],
)
def test_no_text_tells_where_in_memory_something_is(attn: Run, model: Path, written: str) -> None:
    write_template(model, "{{ " + written + " }}")
    ran = attn("tokens", TEXT, "--chat", "-m", model)
    assert (ran.code, ran.out, ran.err.count("\n")) == (INPUT, "", 1), ran.err
    assert "it writes a function or another object that is no text" in ran.err
    write_template(model, "{{ raise_exception(messages | map('upper')) }}")
    said = attn("tokens", TEXT, "--chat", "-m", model)
    assert (said.code, " at 0x" in said.err) == (INPUT, False), said.err
    write_template(model, TEMPLATES["chatml"])
    own = "<function f at 0x7f0123456789>"  # which somebody asks about
    assert words_of(attn("tokens", own, "--chat", "-m", model, "-F", "json").json) == own
