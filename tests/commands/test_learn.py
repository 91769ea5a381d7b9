"""`attn learn`: every number on the page is made of numbers above it."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.analysis.learn import D_MODEL, LESSONS, TEXT, Lesson, walk

Run = Callable[..., Any]
NUMBER = re.compile(r"(?<![\d.])-?\d+\.\d{3}(?!\d)")
OF_A_TABLE = re.compile(NUMBER.pattern + r"|-inf|(?<=  )0(?= |$)")  # where no number is the index of a row
LAST_DIGIT = 0.004  # what may add up where rounded numbers are multiplied


def numbers(line: str, which: re.Pattern[str] = NUMBER) -> list[float]:
    return [float(found) for found in which.findall(line)]


def steps_of(page: str) -> dict[str, str]:
    """The steps of a lesson, by what its title says."""
    titles = re.split(r"^[\w -]+ · step \d+ of \d+ · (.*)\n", page, flags=re.MULTILINE)
    return dict(zip(titles[1::2], titles[2::2], strict=True))


def rows(step: str, start: str = r"\d \S") -> list[list[float]]:
    """The numbers of the lines of a step's table, a line for each word."""
    found = (numbers(line, OF_A_TABLE) for line in step.splitlines() if re.match(start, line) and "=" not in line)
    return [line for line in found if line]


def close(found: Any, expected: Any) -> bool:
    return np.shape(found) == np.shape(expected) and np.allclose(found, expected, rtol=0, atol=LAST_DIGIT)


OF_LAYERS = [lesson for lesson in LESSONS.values() if lesson.name != "positions"]


@pytest.mark.parametrize("lesson", OF_LAYERS, ids=str)
def test_the_numbers_of_a_page_are_those_of_the_layer(attn: Run, lesson: Lesson) -> None:
    ran = attn("learn", "--lesson", lesson.name, "--seed", "5", "--width", "100")
    assert (ran.code, ran.err) == (0, "")
    steps, made = steps_of(ran.out), walk(TEXT, lesson, seed=5)
    query, heads = made.query.index, [made.trace.layer(0).head(index) for index in range(lesson.num_heads)]
    of, head = "head 0: " if len(heads) > 1 else "", heads[0]

    def made_of_words(name: str) -> list[list[float]]:
        """What stands on the right of a matrix and the words."""
        lines = [numbers(line) for line in steps[f"{of}{name}"].splitlines() if "=" not in line]
        return [line[-lesson.width :] for line in lines if len(line) > 4]

    assert close(made_of_words("its query, q"), [head.q[query]])
    assert close(made_of_words("a key, k, for each word"), head.k)
    assert close(made_of_words("a value, v, for each word"), head.v)
    assert close([line[:D_MODEL] for line in rows(steps["embeddings"])], made.embedded)
    columns = {
        name: [line[-1] for line in rows(steps[f"{of}{name}"])]
        for name in ("dot products, q·k", "the scale", "the mask", "softmax: the weights")
    }
    allowed = head.mask[query]
    assert close(columns["dot products, q·k"][-len(allowed) :], head.k @ head.q[query])
    assert close(columns["the scale"], head.scores[query])
    assert close(columns["the mask"], np.where(allowed, head.scores[query], -np.inf))
    assert close(columns["softmax: the weights"], head.weights[query])
    assert close(rows(steps[f"{of}the output, weights·V"], " +weights"), [head.output[query]])
    joined = np.concatenate([each.output[query] for each in heads])
    assert close(rows(steps["the heads"])[0][-len(joined) :], joined)
    projected = numbers(
        next(line for line in steps["the output projection, W_o"].splitlines() if len(numbers(line)) > 4)
    )
    assert made.weights.out is not None
    assert close(projected[-D_MODEL:], joined @ made.weights.out.weight)


@pytest.mark.parametrize("lesson", [lesson.name for lesson in OF_LAYERS])
def test_what_is_spelled_out_is_what_it_comes_to(attn: Run, lesson: str) -> None:
    message = attn("learn", "--lesson", lesson).out.replace("\n", " ")
    signs = str.maketrans({"×": "*", "÷": "/", "−": "-"})
    sums = re.findall(r"= ((?:[-(]*\d\S* (?:[×+] )?)+)= (-?\d+\.\d+)", message)
    assert len(sums) >= 7
    for spelled, total in sums:
        assert close(eval(spelled.translate(signs)), float(total)), spelled
    raised = re.findall(r"e\^\((\(?-?\d+\.\d+\)? − \(?-?\d+\.\d+\)?)\) = (\d\.\d+), and (\S+) ÷ (\S+) = (\S+)", message)
    assert len(raised) == 1
    for exponent, power, again, total, weight in raised:
        assert close(math.exp(eval(exponent.translate(signs))), float(power))
        assert power == again
        assert close(float(power) / float(total), float(weight))


def test_positions_are_those_of_the_papers(attn: Run) -> None:
    """Vaswani et al. 2017, section 3.5; Su et al. 2021: complex numbers times e^(i·position)."""
    ran = attn("learn", "--lesson", "positions", "--seed", "5", "--width", "100")
    steps, made = steps_of(ran.out), walk(TEXT, LESSONS["positions"], seed=5)
    head, query, count = made.trace.layer(0).head(0), made.query.index, len(made.embedded)
    positions = np.array([[np.sin(p), np.cos(p), np.sin(p / 10_000 ** (2 / 3))] for p in range(count)])
    shown = np.array(rows(steps["sinusoidal positions"]))
    assert close(shown[:, :3], positions)
    assert close(shown[:, 3:], positions + made.embedded)

    def as_complex(vectors: Any) -> Any:
        return vectors[..., 0] + 1j * vectors[..., 1]

    q, k = as_complex(head.q[query]), as_complex(head.k)
    turned = [q * np.exp(1j * query), *(k * np.exp(1j * np.arange(count)))]
    assert close([line[2:] for line in rows(steps["rotary positions"])], [(z.real, z.imag) for z in turned])
    product = (turned[0] * np.conj(turned[1])).real
    assert [
        float(line.split()[-1]) for line in steps["the distance alone"].splitlines() if re.match(r" +\d+ +\d+ ", line)
    ] == (pytest.approx([product] * 3, abs=LAST_DIGIT))


def test_words_without_quotes_are_one_sentence_and_a_lesson_may_be_a_file(attn: Run, tmp_path: Path) -> None:
    assert attn("learn", "cats", "sleep").out == attn("learn", "cats sleep").out
    assert attn("learn").out == attn("learn", "time flies like an arrow").out
    path = tmp_path / "lesson.md"
    assert attn("learn", "cats sleep", "-o", path).out == ""
    assert "softmax: the weights" in path.read_text()
