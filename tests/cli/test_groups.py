"""Groups of options: they are those of the sources, a command has an option for each, and their values are checked."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pytest
import typer

from attncli.checkpoints.options import EngineOptions, LoadOptions, TokenizerOptions, ToyOptions
from attncli.cli import options
from attncli.cli.groups import Options, value_of, with_option_groups


def names(kind: Any) -> set[str]:
    """The names of the options of a group, and of the groups within."""
    kinds = get_type_hints(kind, include_extras=True)
    groups = {name for name, one in kinds.items() if isinstance(one, type) and issubclass(one, Options)}
    own = {field.name for field in fields(kind)} - groups
    return own.union(*(names(kinds[name]) for name in groups))


def test_the_groups_are_the_options_of_the_sources() -> None:
    chat = names(options.ChatOptions)
    assert names(options.Load) | chat == names(LoadOptions)
    assert names(options.Engine) | chat == names(EngineOptions)
    assert names(options.Toy) | {"offline"} == names(ToyOptions)
    assert names(options.Hub) | chat | {"truncate"} == names(TokenizerOptions)


def test_a_command_has_its_own_options_and_all_of_its_groups_and_gets_both() -> None:
    seen: list[Any] = []

    def command(
        selection: options.Selection,
        request: options.Request,
        layer: Annotated[str | None, typer.Option("--layer", help="Mine.")] = None,
    ) -> None:
        """Do it."""
        seen.extend([selection, request, layer])

    app = typer.Typer(add_completion=False)
    app.command()(with_option_groups(command, options.Volume))
    made: Any = typer.main.get_command(app)
    expected = {*names(options.Selection), *names(options.Sentences), *names(options.Engine), *names(options.Toy)}
    expected |= {"mask", "model", "from_", *names(options.Volume)}
    assert {parameter.name for parameter in made.params} == expected
    assert [one.help for one in made.params if one.name == "layer"] == ["Mine."]
    made.callback(**{one.name: one.default for one in made.params} | {"layer": "3", "d_k": 4, "out_proj": False})
    selection, request, layer = seen
    assert (layer, dict(selection.explicit_values())) == ("3", {"layer": "3"})
    assert dict(request.explicit_values()) == {"layer": "3", "d_k": 4, "out_proj": False}
    assert list(request.making()) == ["d_k", "out_proj"]


@pytest.mark.parametrize(
    ("text", "kind", "limits", "said"),
    [
        ("", Path, (), "the file name is empty"),
        ("1.5", int, (), "expected a whole number"),
        ("nan", float, (0, 1), "expected at least 0"),
        ("2", int, (3, None), "expected at least 3"),
        ("4", int, (None, 3), "expected at most 3"),
        ("maybe", bool, (), "expected true or false"),
        ("A", Literal["a", "bee"], (), "'A' is not one of 'a', 'bee'; did you mean 'a'?"),
    ],
)
def test_a_text_that_says_none_is_refused(text: str, kind: Any, limits: Any, said: str) -> None:
    with pytest.raises(typer.BadParameter) as raised:
        value_of(text, kind, *limits)
    assert raised.value.message == said
