"""A fixture for pytest: the attention that runs in a test, and checks of its masks.

    def test_mask(attention):
        model(tokens)
        attention.check("causal & pad", lengths=[5, 2])

Where attncli is installed, every run of pytest imports this module. So it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attncli.analysis.calls.calls import Calls
    from attncli.analysis.calls.expectations import UnexpectedError
    from attncli.analysis.prove import ModelProof

_ROOM = 76  # cells in a line of a message, to the left of which pytest writes a margin


class Attention:
    """The attention that runs in a test."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @property
    def calls(self) -> Calls:
        """Calls until now: a row for each place in the code, as in `attncli.watch`."""
        self._calls.settle()
        return self._calls

    def check(self, expect: str | Mapping[str, str], lengths: Any = None, place: str | None = None) -> None:
        """Fail the test unless the mask of every call until now is as expected.

        Args:
            expect: the masks: `causal & pad`, or such expressions by patterns of their places:
                `{"encoder.*": "pad", "decoder.*": "causal & pad"}`, where the last pattern that matches decides.
            lengths: how many tokens each batch row has, for `pad`, or an attention mask `[B, K]` with 1 or True for a
                token; None reads them from the masks.
            place: a pattern, as of file names, of the places to check: their file, `file:line`, function or module.

        Raises:
            AssertionError: a mask is another one, which is drawn; or no attention ran there.
            UsageError: `expect` is no expression, has no `pad` for the lengths, or names its places beside `place`.
            InputError: `lengths` are none.
        """
        __tracebackhide__ = True  # so that what pytest shows ends at the line of the test
        from attncli.analysis.calls.expectations import UnexpectedError
        from attncli.errors import AttnError

        try:
            self._calls.check(expect, lengths, place)
        except UnexpectedError as error:
            message = _with_maps(error)
        except AttnError as error:
            raise error.with_traceback(None) from None
        else:
            return
        raise AssertionError(message)

    def prove(self, model: Any, inputs: Any, expression: str, lengths: Any = None) -> ModelProof:
        """Fail the test unless outputs of a model depend on the keys that an expression allows, and on nothing else.

        `check` does not count this run.

        It takes what `attncli.prove` takes.

        Raises:
            AssertionError: an output moves that must not, or the model is not provable; the message says where.
            UsageError: `expression` is none, or leaves out a number that nothing says.
            InputError: the model has no output for each position.
        """
        __tracebackhide__ = True
        from attncli.analysis.prove import prove
        from attncli.errors import AttnError

        try:
            with self._calls.paused():
                proof = prove(model, inputs, expression, lengths)
        except AttnError as error:
            raise error.with_traceback(None) from None
        if not proof.is_proved:
            raise AssertionError(str(proof))
        return proof


@pytest.fixture
def attention() -> Iterator[Attention]:
    """Watch every attention that runs until the test ends; `attention.check("causal & pad")` holds its masks."""
    from attncli.errors import AttnError, require

    missing = None
    try:
        require("the fixture attention", "torch")
    except AttnError as error:
        missing = str(error)
    if missing is not None:  # outside of the handler, so that the sentence stands alone
        pytest.fail(missing, pytrace=False)
    from attncli.analysis.calls import watch
    from attncli.formats import python
    from attncli.trace.display import register

    register(lambda: python)  # so that a test can print its calls
    with watch() as calls:
        yield Attention(calls)


def _with_maps(error: UnexpectedError) -> str:
    """Return the error's message, with the maps of the wrong cells below it, as plain text."""
    import io

    from attncli.cli.environment import Terminal
    from attncli.render.calls import wrong_parts

    terminal = Terminal(drawn := io.StringIO(), color="never", width=_ROOM)
    terminal.show(wrong_parts(error, terminal.palette("gray"), _ROOM))
    lines = [line.rstrip() for line in drawn.getvalue().splitlines()]
    return "\n".join([str(error), *([""] if lines else []), *lines])
