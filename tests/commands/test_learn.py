"""`attn learn`: every number on the page is made of numbers above it, and a person can leaf through it."""

import math
import os
import pty
import re
import shlex
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from running import text_shown

from attncli.analysis.learn import LESSONS, MOST_WORDS, walk
from attncli.render.bars import TableFormat
from attncli.render.learn import PRECISION, Steps
from attncli.render.palette import Palette

Run = Callable[..., Any]
NUMBER = re.compile(r"(?<![\d.])-?\d+\.\d{3}(?!\d)")
OF_A_TABLE = re.compile(NUMBER.pattern + r"|-inf|(?<=  )0(?= |$)")  # where no number is the index of a row
LAST_DIGIT = 0.004  # what may add up where rounded numbers are multiplied
MOST = " ".join(f"{letter}{'bcdfghjkl' * 3}" for letter in "abcdefgh")


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


def close(found: float, expected: float) -> bool:
    return found == expected or abs(found - expected) < LAST_DIGIT


def times(vector: list[float], matrix: list[list[float]]) -> list[float]:
    return [sum(a * row[column] for a, row in zip(vector, matrix, strict=True)) for column in range(len(matrix[0]))]


def same(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected)
    assert all(map(close, found, expected)), (found, expected)


def beside(step: str) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """What stands beside each other in a step: a row for each word, what it makes, and before both a matrix."""
    lines = [numbers(line) for line in step.splitlines() if "=" not in line]
    lines = [line for line in lines if line]
    of_words = [line for line in lines if len(line) > 3]
    return [line[-6:-3] for line in of_words], [line[:3] for line in lines[:3]], [line[-3:] for line in of_words]


@pytest.mark.parametrize("lesson", ["one", "causal", "cross"])
@pytest.mark.parametrize("seed", ["0", "5"])
def test_a_reader_can_redo_every_number_with_what_stands_above_it(attn: Run, lesson: str, seed: str) -> None:
    ran = attn("learn", "--lesson", lesson, "--seed", seed, "--width", "80")
    assert (ran.code, ran.err) == (0, "")
    steps = steps_of(ran.out)
    query = 1 if lesson == "cross" else 2
    drawn = [line[:3] for line in rows(steps["embeddings"])]
    asking = [line[-3:] for line in rows(steps["embeddings"])][query]

    (x, *_), w_q, (q, *_) = beside(steps["its query, q"])
    assert x == asking
    same(q, times(x, w_q))
    vectors = []
    for name in ("a key, k, for each word", "a value, v, for each word"):
        given, matrix, made = beside(steps[name])
        assert given == drawn
        for one, vector in zip(given, made, strict=True):
            same(vector, times(one, matrix))
        vectors.append(made)
    keys, values = vectors

    (above, *table) = rows(steps["dot products, q·k"])
    assert above == q
    assert [line[:3] for line in table] == keys
    products = [line[3] for line in table]
    same(products, [sum(a * b for a, b in zip(q, key, strict=True)) for key in keys])
    table = rows(steps["the scale"])
    assert [line[0] for line in table] == products
    scores = [line[1] for line in table]
    same(scores, [product / math.sqrt(3) for product in products])
    table = rows(steps["the mask"])
    assert [line[0] for line in table] == scores
    masked = [line[1] for line in table]
    assert masked == [
        score if lesson != "causal" or place <= query else -math.inf for place, score in enumerate(scores)
    ]
    table = rows(steps["softmax: the weights"])
    assert [line[0] for line in table] == masked
    raised, weights = [line[1] for line in table], [line[2] for line in table]
    same(raised, [math.exp(score - max(masked)) for score in masked])
    total, one = rows(steps["softmax: the weights"], "sum")[0]
    same([total, one], [sum(raised), 1])
    same(weights, [each / total for each in raised])
    table = rows(steps["the output, weights·V"])
    assert [line[0] for line in table] == weights
    assert [line[1:] for line in table] == values
    (output,) = rows(steps["the output, weights·V"], " +weights")
    same(output, times(weights, values))
    assert rows(steps["the heads"]) == [output]
    (joined, *_), w_o, (projected, *_) = beside(steps["the output projection, W_o"])
    assert joined == output
    same(projected, times(joined, w_o))


@pytest.mark.parametrize("lesson", LESSONS)
def test_what_is_spelled_out_is_what_it_comes_to(attn: Run, lesson: str) -> None:
    said = attn("learn", "--lesson", lesson).out.replace("\n", " ")
    signs = str.maketrans({"×": "*", "÷": "/", "−": "-"})
    sums = re.findall(r"= ((?:[-(]*\d\S* (?:[×+] )?)+)= (-?\d+\.\d+)", said)
    assert len(sums) >= 7
    for spelled, total in sums:
        assert close(eval(spelled.translate(signs)), float(total)), spelled
    raised = re.findall(r"e\^\((\(?-?\d+\.\d+\)? − \(?-?\d+\.\d+\)?)\) = (\d\.\d+), and (\S+) ÷ (\S+) = (\S+)", said)
    assert len(raised) == 1
    for exponent, power, again, total, weight in raised:
        assert close(math.exp(eval(exponent.translate(signs))), float(power))
        assert power == again
        assert close(float(power) / float(total), float(weight))


def test_several_heads_are_put_beside_each_other_and_mixed(attn: Run) -> None:
    steps = steps_of(attn("learn", "--lesson", "several", "--width", "100").out)
    outputs = []
    for head in (0, 1):
        weights = [line[0] for line in rows(steps[f"head {head}: the output, weights·V"])]
        made = rows(steps[f"head {head}: softmax: the weights" if head == 0 else "head 1: the weights"])
        assert weights == [line[-1] for line in made]
        outputs += rows(steps[f"head {head}: the output, weights·V"], " +weights")
    for product, score, masked, raised, weight in rows(steps["head 1: the weights"]):
        assert close(product / math.sqrt(2), score)
        assert masked == score
        total, _ = rows(steps["head 1: the weights"], "sum")[0]
        assert close(raised / total, weight)
    ((*both, a, b, c, d),) = rows(steps["the heads"])
    assert both == [a, b, c, d] == outputs[0] + outputs[1]
    lines = [numbers(line) for line in steps["the output projection, W_o"].splitlines() if "=" not in line]
    first, *others = [line for line in lines if line]
    same(first[-3:], times(first[3:7], [first[:3], *others]))


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_commands_of_a_lesson_run_and_the_first_shows_its_numbers(attn: Run, lesson: str) -> None:
    page = attn("learn", "it's the cat and the dog", "--lesson", lesson, "--query", "-1", "--seed", "3").out
    exercise, again = (shlex.split(line)[1:] for line in page.splitlines() if line.startswith("  attn inspect"))
    assert attn(*exercise).code == 0
    shown = attn(*again, "--precision", "3")
    assert shown.code == 0
    steps = steps_of(page)
    of = "head 0: " if lesson == "several" else ""
    (weights,) = [
        numbers(line)
        for line in shown.out.partition("head 0 of")[2].partition("weights")[2].splitlines()
        if re.match(r"\d \S", line)
    ][:1]
    assert [line[-1] for line in rows(steps[f"{of}softmax: the weights"])] == weights[: len(weights)][:8]


@pytest.mark.parametrize("lesson", LESSONS.values(), ids=str)
def test_a_step_fits_a_terminal_of_80_by_24(lesson: Any) -> None:
    from running import printed

    assert len(MOST.split()) == MOST_WORDS
    steps = Steps(walk(MOST, lesson), TableFormat(Palette(), 80, PRECISION)).all()
    for step in steps:
        lines = printed(step.parts, Palette(), 80).splitlines()
        assert all(len(line) <= 80 for line in lines)
        assert len(lines) + (len(step.parts) - 1) + 2 <= 24, step.name  # blank lines between the parts; the prompt


def test_words_without_quotes_are_one_sentence_and_a_lesson_may_be_a_file(attn: Run, tmp_path: Path) -> None:
    assert attn("learn", "cats", "sleep").out == attn("learn", "cats sleep").out
    assert attn("learn").out == attn("learn", "time flies like an arrow").out
    path = tmp_path / "lesson.md"
    assert attn("learn", "cats sleep", "-o", path).out == ""
    assert "softmax: the weights" in path.read_text()


def test_under_a_causal_mask_the_last_word_sees_all_and_the_first_itself(attn: Run) -> None:
    pages = [attn("learn", "cats\tsleep", "--lesson", "causal", "--query", query).out for query in ("sleep", "cats")]
    assert "may see itself and the words before it, which are all there are" in pages[0].replace("\n", " ")
    assert [line[1] for line in rows(steps_of(pages[1])["the mask"])][1:] == [-math.inf]
    assert [line[2] for line in rows(steps_of(pages[1])["softmax: the weights"])] == [1, 0]
    assert all("attn inspect 'cats sleep" in page for page in pages)


def test_a_word_that_stands_there_twice_is_told_from_the_other(attn: Run) -> None:
    assert "'the' (3) looks for" in attn("learn", "the cat saw the dog", "--query", "3").out
    assert "'cat' looks for" in attn("learn", "the cat saw the dog", "--query", "cat").out


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_nothing_of_a_lesson_is_lost_in_another_encoding_and_no_escape_passes(encoding: str) -> None:
    from whole_program import whole_program

    with whole_program() as run:
        ran = run("learn", "caf\u00e9 \x1b[31m \u202e flies", encoding=encoding)
    assert (ran.code, ran.err) == (0, "")
    assert not re.search("[\x1b\u202e]", ran.out)
    assert "step 12 of 12" in ran.out.replace("\xb7", ".")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([f"{MOST} kk"], 5, "a lesson has room for 8 words, and the text has 9; give a shorter one"),
        ([" "], 5, "the sentence is empty"),
        (["time flies", "--query", "fly"], 2, "--query 'fly': no such query token"),
        (["a b a", "--query", "a"], 2, "2 query tokens are called that, at 0, 2"),
        (["--lesson", "causl"], 2, "did you mean 'causal'?"),
        (["--seed", "-1"], 2, "--seed -1: expected 0 to 2^63 - 1"),
        (["-F", "json"], 2, "--format"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_no_lesson_is_refused_in_one_line(attn: Run, arguments: list[str], code: int, said: str) -> None:
    ran = attn("learn", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


# --- a person at a terminal ---

at_a_terminal = pytest.mark.usefixtures("signals_arrive")


class Reader:
    """A run of the program on a terminal of 80 columns and 24 lines."""

    def __init__(self, process: int, terminal: int) -> None:
        self.process, self.terminal = process, terminal
        self.is_over = False

    def until(self, text: str) -> str:
        """Everything that is shown up to a text."""
        shown = ""
        while text not in text_shown(shown):
            try:
                read = os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                read = ""
            assert read, shown
            shown += read
        return shown

    def types(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def code(self) -> int:
        """How it ends."""
        while True:
            try:
                if not os.read(self.terminal, 65536):
                    break
            except OSError:
                break
        self.is_over = True
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def echoes(self) -> bool:
        """Whether what is typed is shown and waits for Enter, as in a shell."""
        flags, both = termios.tcgetattr(self.terminal)[3], termios.ECHO | termios.ICANON
        return flags & both == both


@contextmanager
def reader(*arguments: str, **environment: str) -> Iterator[Reader]:
    command = [sys.executable, "-m", "attncli", "learn", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | environment
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, variables)
    ioctl(terminal, termios.TIOCSWINSZ, pack("HHHH", 24, 80, 0, 0))
    opened = Reader(process, terminal)
    try:
        yield opened
    finally:
        if not opened.is_over:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        os.close(terminal)


@at_a_terminal
def test_a_person_leafs_through_the_steps_forwards_and_back() -> None:
    with reader() as person:
        first = person.until("1 of 12 · Enter goes on, b goes back, q ends")
        assert "step 1 of 12" in first
        assert "step 2 of 12" not in first
        for keys, place in [("\n", 2), (" ", 3), ("\x1b[C", 4), ("b", 3), ("\x1b[D", 2), ("b", 1), ("b", 1), ("n", 2)]:
            person.types(keys)
            shown = person.until(f"{place} of 12 · Enter")
            assert f"step {place} of 12" in shown
            assert "\x1b[H\x1b[J" in shown
        for place in range(3, 13):
            person.types("\n")
            person.until(f"{place} of 12 · Enter")
        person.types("\n")
        assert person.code() == 0


@at_a_terminal
@pytest.mark.parametrize(("key", "code"), [("q", 0), ("\x1b", 0), ("\x04", 0), ("\x03", 130)])
def test_ending_early_leaves_the_terminal_as_it_was(key: str, code: int) -> None:
    with reader("cats sleep") as person:
        person.until("1 of 12 · Enter goes on, b goes back, q ends")
        person.types(key)
        assert person.code() == code
        assert person.echoes()


@at_a_terminal
def test_a_terminal_that_cannot_move_its_cursor_gets_one_text() -> None:
    with reader("cats sleep", TERM="dumb") as person:
        assert "\x1b" not in person.until("The other lessons")
        assert person.code() == 0


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_name_of_a_lesson_is_no_text(lesson: str, attn: Run) -> None:
    ran = attn("learn", lesson)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"attn: '{lesson}' is a lesson, and was taken as a text; give attn learn --lesson {lesson}\n"
    assert attn("learn", lesson, "--lesson", "one").code == 0
