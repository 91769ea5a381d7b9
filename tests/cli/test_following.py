"""What is said of sentences while they are answered."""

from collections.abc import Generator

import pytest
from click import Command, Context

from attncli.cli.environment import Environment
from attncli.cli.following import followed
from attncli.cli.options import Texts
from attncli.corpus.work import Answer
from attncli.errors import Failure


def test_what_is_to_be_known_of_a_source_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    def answers() -> Generator[Answer[str | None], None, None]:
        yield Answer(1, "one", (), ("its positions are not known",))
        yield Answer(2, Failure("it is odd"))
        yield Answer(3, None)  # as far as a part of a dataset has come
        yield Answer(4, "four", ("a row is empty",), ("its positions are not known",))

    with Context(Command("inspect")) as context:
        found = followed(
            context,  # type: ignore[arg-type]
            Environment(),
            answers(),
            Texts(["-"]),
            is_alone=False,
            stops=False,
            keeps_errors=False,
            output=None,
        )
        assert [number for number, _ in found.good()] == [1, 3, 4]
    assert capsys.readouterr().err.splitlines() == [
        "attn: warning: its positions are not known",
        "attn: sentence 2: it is odd",
        "attn: warning: sentence 4: a row is empty",
    ]
