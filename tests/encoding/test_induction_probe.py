"""Random tokens twice: which ones, and what stands around them, for either engine."""

from pathlib import Path

import pytest
from small_checkpoints import save_tiny_llama

import attncli
from attncli.encoding.induction_probe import HALF, RepeatedTokens
from attncli.errors import UsageError
from attncli.trace.trace import Trace


def traced(model: str, **options: object) -> Trace:
    return attncli.open_source(model=model, **options).trace(RepeatedTokens(0))


def test_a_seed_draws_its_tokens_once_each_and_then_again() -> None:
    ids = RepeatedTokens(3).draw(range(100, 1000), 10_000)
    assert len(ids) == 2 * HALF
    assert ids[:HALF] == ids[HALF:]
    assert len(set(ids)) == HALF
    assert set(ids) <= set(range(100, 1000))
    assert ids == RepeatedTokens(3).draw(range(100, 1000), 10_000)
    assert ids != RepeatedTokens(4).draw(range(100, 1000), 10_000)


def test_both_engines_read_the_same(minilm: str, tiny_llama: str) -> None:
    for model in (minilm, tiny_llama):
        assert traced(model, engine="native").query_tokens == traced(model, engine="transformers").query_tokens


def test_where_the_tokenizer_puts_nothing_before_a_text_its_own_beginning_stands_there(tiny_llama: str) -> None:
    assert [token.text for token in attncli.inspect("time flies", model=tiny_llama).query_tokens] == ["time", "flies"]
    tokens = traced(tiny_llama).query_tokens
    assert (tokens[0].text, tokens[0].special) == ("<s>", True)
    assert (
        tokens.ids[1:10] == tokens.ids[10:] == RepeatedTokens(0).draw(range(2, 11), 31)[:9]
    )  # <unk> and <s> are special
    assert len(traced(tiny_llama, special=False).query_tokens) == 18


def test_a_chat_does_not_apply(tmp_path: Path) -> None:
    save_tiny_llama(str(tmp_path))
    (tmp_path / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    with pytest.raises(UsageError, match="--chat does not apply to --induction"):
        traced(str(tmp_path), chat=True)
