"""The interactive page as a file: what is in it, what is not, and how large it is; a browser opens it elsewhere."""

import base64
import hashlib
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pages import (
    QK,
    Elements,
    document_of,
    odd_trace,
    page_of,
    pictured_trace,
    random_trace,
    to_three_decimals,
    unpacked,
    weights_in,
    written,
)
from traces import layer_of, tokens_of, trace_of

from attncli.formats.page import write_page
from attncli.formats.page.packing import counts_of
from attncli.trace.trace import Provenance
from attncli.trace.view import View

Run = Callable[..., Any]
SENTENCE = "time flies like an arrow"


# --- the numbers -------------------------------------------------------------------------------------------


def test_every_weight_is_the_documents_rounded_to_three_decimals(attn: Run, tmp_path: Path, minilm: str) -> None:
    arguments = (SENTENCE, "-m", minilm, "--layer", "0,5", "--pair", "fruit flies")
    rounded = attn("inspect", *arguments, "-F", "json", "--precision", "3").json
    whole = attn("inspect", *arguments, "-F", "json").json
    found = weights_in(page_of(attn, tmp_path / "page.html", *arguments))
    assert len(found) == 24
    for of_rounded, of_whole in zip(rounded["layers"], whole["layers"], strict=True):
        for head, digits in zip(of_rounded["heads"], of_whole["heads"], strict=True):
            read = found[of_rounded["layer"], head["head"]]
            assert read == head["weights"]
            assert read == [[to_three_decimals(float(np.float32(w))) for w in row] for row in digits["weights"]]


@given(st.floats(-32.75, 32.75) | st.floats(-0.25, 1.25))
def test_a_weight_is_rounded_once_and_correctly(value: float) -> None:
    single = np.float32(value)
    assert counts_of(single[None, None], 3)[0, 0] / 1000 == to_three_decimals(float(single))


def test_what_is_no_number_or_masked_has_a_code_of_its_own(tmp_path: Path) -> None:
    page = written(odd_trace(), tmp_path / "odd.html").read_text()
    blocks = Elements(page).by_id()
    assert weights_in(page)[0, 0][1:3] == [[None, None, None, 0.0], [None, None, 0.0, 0.0]]
    raw = unpacked(blocks["weights-0-0"][1])
    codes = {raw[start] | raw[start + 4] << 8 for start in (8, 9, 10, 16, 17)}
    assert len(codes) == 5
    assert weights_in(page)[0, 0][3] == [0.5, 0.062, 0.002, 0.125]  # a masked cell keeps its weight
    assert [f"{byte:08b}"[:4] for byte in unpacked(blocks["mask-0"][1])] == ["1110", "1110", "1110", "0000"]


def test_q_and_k_are_in_the_page_only_when_asked_for(attn: Run, tmp_path: Path, tiny_llama: str) -> None:
    arguments = (SENTENCE, "-m", tiny_llama)
    assert not re.search(r'id="(query|key)-\d', page_of(attn, tmp_path / "page.html", *arguments))
    blocks = Elements(page_of(attn, tmp_path / "page.html", *arguments, "--show", "q,k")).by_id()
    (layer,) = attn("inspect", *arguments, "-F", "json", "--show", "q,k").json["layers"]
    assert sum(name.startswith("key-") for name in blocks) == 2  # six heads read two
    for head in layer["heads"]:
        key = str(blocks[f"weights-0-{head['head']}"][0]["data-key"])
        for name, block in (("q", f"query-0-{head['head']}"), ("k", key)):
            read = np.frombuffer(unpacked(blocks[block][1]), "<f2").reshape(np.shape(head[name]))
            np.testing.assert_array_equal(read, np.array(head[name], np.float16))


# --- pictures ----------------------------------------------------------------------------------------------


def pixels_in(page: str, number: int) -> list[list[list[int]]]:
    """The colours of a picture, row by row, read by a plain loop."""
    width, height = document_of(page)["pictures"][number]["pixels"]
    read = list(unpacked(Elements(page).by_id()[f"picture-{number}"][1]))
    for place in range(3 * width, len(read)):
        read[place] = (read[place] + read[place - 3 * width]) % 256
    assert len(read) == 3 * width * height
    colors = [read[place : place + 3] for place in range(0, len(read), 3)]
    return [colors[start : start + width] for start in range(0, len(colors), width)]


def test_a_page_holds_the_picture_the_place_of_each_cell_and_weights_to_four_decimals(tmp_path: Path) -> None:
    trace = pictured_trace()
    page = written(trace, tmp_path / "page.html").read_text()
    assert pixels_in(page, 0) == trace.pictures[0].pixels.tolist()
    document = document_of(page)
    tiles, overview = document["canvases"]
    assert (tiles["size"], tiles["overview"], overview["overview"], tiles["picture"]) == ([60, 40], False, True, 0)
    left, right = tiles["grids"]
    assert (left["positions"], left["box"], left["rows"], left["columns"]) == ([1, 2, 3, 4], [0, 0, 24, 40], 2, 2)
    assert (right["positions"], right["box"]) == ([5, 6, 7, 8], [24, 0, 48, 40])
    assert (overview["grids"][0]["positions"], overview["grids"][0]["box"]) == ([11, 10], [0, 0, 60, 40])
    assert document["facts"] == ["merged"]
    labels = [token["label"] for token in document["sequences"][0]]
    assert labels[:6] == ["<s>", "r0c0", "r0c1", "r1c0", "r1c1", "30,10"]
    assert labels[9:13] == ["[NL]", "overview r0c1", "overview r0c0", "red"]
    for head in range(3):
        weights = trace.layers[0].head(head).weights.tolist()
        expected = [[to_three_decimals(weight, 10_000) for weight in row] for row in weights]
        assert weights_in(page)[0, head] == expected


# --- size, memory, bytes -----------------------------------------------------------------------------------


def test_no_head_but_one_is_ever_expanded() -> None:
    def peak(heads: int) -> int:
        trace = random_trace(1, heads, 600)
        tracemalloc.start()
        for _ in write_page(trace, View(), "viridis"):
            pass
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    assert peak(12) - peak(3) < 9 * 600 * 600 * 4 / 3  # of nine more heads not even their packed form is held


# --- safety ------------------------------------------------------------------------------------------------

HOSTILE = ["</script><img src=x onerror=alert(1)>", "<!--<script>", "&lt;", "\u2028", "\u202e", "]]>", "'\"`"]


def test_nothing_of_the_users_becomes_an_element_or_a_script(tmp_path: Path) -> None:
    words, vectors = tokens_of(*HOSTILE), np.zeros((1, len(HOSTILE), 2), np.float32)
    source = Provenance("pretrained", model="<b onclick=x>", architecture="</title><script>alert(2)</script>")
    texts = {"text": "".join(HOSTILE), "pair": "</script>"}
    trace = trace_of(layer_of(vectors, vectors), queries=words, keys=words, source=source, **texts)
    hostile = written(trace, tmp_path / "hostile.html", QK).read_text(encoding="utf-8")
    harmless = written(random_trace(1, 1, 4), tmp_path / "harmless.html", QK).read_text(encoding="utf-8")
    tags = [[tag for tag, _, _ in Elements(page).found] for page in (hostile, harmless)]
    assert tags[0] == tags[1]
    block = Elements(hostile).by_id()["document"][1]
    assert not set(block) & set("<>&\u2028\u2029\u202e")
    labels = [token["label"] for token in json.loads(block)["sequences"][0]]
    assert labels[0] == HOSTILE[0]
    assert labels[4] == r"\u202e"


def test_the_policy_allows_the_pages_own_script_and_style_and_no_address(attn: Run, tmp_path: Path) -> None:
    page = page_of(attn, tmp_path / "page.html", SENTENCE, "--show", "q,k")
    elements = Elements(page).found
    (policy,) = [a["content"] for _, a, _ in elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    styled = {"script-src": r'<script type="module">(.*?)</script>', "style-src": r"<style>(.*?)</style>"}
    for rule, element in styled.items():
        (text,) = re.findall(element, page, re.DOTALL)
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert not [a for _, a, _ in elements if {"src", "href", "style"} & a.keys() or any(n.startswith("on") for n in a)]
    assert not re.search(r"https?:|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|@import|url\(", page)
