"""`attn why` as a user runs it: one cell, one row, several heads, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

import attncli

SENTENCE = "time flies like an arrow"
CELL = ("why", "-m", "toy", SENTENCE, "-q", "arrow", "-k", "flies")
Run = Callable[..., Any]


def test_one_cell_is_taken_apart_and_its_document_adds_up(attn: Run) -> None:
    shown, ran = attn(*CELL, "-H", "3"), attn(*CELL, "-H", "3", "-F", "json")
    assert (shown.code, shown.err, ran.code, ran.err) == (0, "", 0, "")
    document = ran.json
    promised = "query key dimensions dot_product scale bias softcap score allowed weight value_norm contribution_norm"
    assert document["schema"] == "attncli.why/1"
    assert set(promised.split()) <= document.keys()
    assert (document["query"], document["key"], document["layer"], document["head"]) == (4, 1, 0, 3)
    assert (document["query_token"]["text"], document["key_token"]["text"]) == ("arrow", "flies")
    assert set(document["dimensions"][0]) == {"dim", "q", "k", "product"}
    assert {entry["dim"] for entry in document["dimensions"]} == set(range(8))
    assert sum(entry["product"] for entry in document["dimensions"]) == pytest.approx(document["dot_product"], abs=1e-6)
    assert document["dot_product"] * document["scale"] == pytest.approx(document["score"], abs=1e-6)
    assert document["exponential"] / document["total"] == pytest.approx(document["weight"], abs=1e-6)
    assert document["weight"] * document["value_norm"] == pytest.approx(document["contribution_norm"], abs=1e-6)
    for name in ("dot_product", "score", "weight", "value_norm", "contribution_norm", "output_share"):
        assert f"{document[name]:.4f}" in shown.out
    # The same cell as inspect's, and as that of the library.
    head = attn("inspect", SENTENCE, "-H", "3", "-F", "json").json["layers"][0]["heads"][0]
    assert head["weights"][4][1] == pytest.approx(document["weight"], abs=1e-6)
    (cell,) = attncli.why(SENTENCE, query="arrow", key="flies", head=3)
    assert float(cell.weight) == pytest.approx(document["weight"], rel=1e-6)


def test_a_query_alone_ranks_its_keys(attn: Run) -> None:
    document = attn("why", "-m", "toy", SENTENCE, "-q", "like", "-H", "1", "-F", "json").json
    assert document["key"] is None
    weights = [entry["weight"] for entry in document["keys"]]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1, abs=1e-6)
    assert sum(entry["output_share"] for entry in document["keys"]) == pytest.approx(1, abs=1e-6)
    assert [entry["allowed"] for entry in document["keys"]] == [True, True, True, False, False]
    shown = attn("why", "-m", "toy", SENTENCE, "-q", "like", "-H", "1").out
    assert [line.split()[0] for line in shown.splitlines()[6:9]] == [
        str(entry["key"]) for entry in document["keys"][:3]
    ]
    assert "2 masked" in shown
    several = attn("why", "-m", "toy", SENTENCE, "-q", "like")
    assert several.code == 0
    assert len(several.out.splitlines()) == 10


def test_a_word_of_several_pieces_is_its_last_and_that_is_said(attn: Run) -> None:
    ran = attn("why", "-m", "demo", SENTENCE, "-q", "arrow", "-k", "flies", "-H", "L1H2")
    assert "query 7 ##ow → key 3 ##ies · layer 1 · head 2 of 4" in ran.out
    notes = ran.err.splitlines()
    assert notes == [
        "attn: 'arrow' is pieces 6–7; this is its last, 7 ##ow",
        "attn: 'flies' is pieces 2–3; this is its last, 3 ##ies",
    ]
    shown = attn("inspect", "-m", "demo", SENTENCE, "-q", "arrow", "-H", "1.2", "-F", "json")
    assert "'arrow' is pieces 6–7; this is its last, 7 ##ow" in shown.err
