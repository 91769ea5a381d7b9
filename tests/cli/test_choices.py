"""The choices of an option are written where they cost no import; they are those of what takes them."""

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from attncli.analysis.learn import LESSONS
from attncli.checkpoints.signatures import SourceKeywords
from attncli.cli import options
from attncli.cli.commands.learn import learn
from attncli.cli.groups import choices_of
from attncli.render.palette import COLORMAPS
from attncli.trace.display import Drawable
from attncli.trace.view import Ramp


def texts_of(kind: Any) -> set[str]:
    """Every text that a type allows."""
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    return set().union(*map(texts_of, get_args(kind)))


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (options.Engine, "engine"),
        (options.Engine, "dtype"),
        (options.Toy, "init"),
        (options.Toy, "project"),
        (options.Toy, "positions"),
        (options.Toy, "rng"),
        (options.Selection, "kind"),
    ],
)
def test_the_command_line_and_python_have_the_same_choices(group: Any, name: str) -> None:
    assert set(choices_of(group, name)) == texts_of(get_type_hints(SourceKeywords)[name]) != set()


@pytest.mark.parametrize(("name", "taken"), [("ramp", get_args(Ramp)), ("colormap", COLORMAPS)])
def test_maps_are_drawn_with_the_same_choices_everywhere(name: str, taken: Any) -> None:
    types = get_type_hints(Drawable.plot, localns={"Figure": object, "Iterable": Iterable})
    assert texts_of(types[name]) == set(taken)
    of_command = {"ramp": options.Ramp, "colormap": options.Colormap}.get(name)
    assert set(choices_of(options.ViewOptions, name) if of_command is None else texts_of(of_command)) == set(taken)


def test_every_lesson_can_be_asked_for() -> None:
    assert texts_of(get_type_hints(learn, include_extras=True)["lesson"]) == LESSONS.keys()
