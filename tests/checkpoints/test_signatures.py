"""What the Python functions say of their options: one list, with types and defaults, that editors and `help` read."""

from inspect import Parameter, signature
from typing import Any, get_args

import pytest

import attncli
from attncli.checkpoints import options
from attncli.checkpoints.options import (
    PROJECTS,
    EngineOptions,
    LoadOptions,
    OptionValues,
    TokenizerOptions,
    ToyOptions,
    VocabularyOptions,
)
from attncli.engines.toy_init import INITS, RNGS


def names(*reference: type[OptionValues]) -> set[str]:
    return {name for each in reference for name in each.names()}


def test_the_choices_are_those_that_are_taken() -> None:
    assert set(get_args(options.Init)) == INITS.keys()
    assert set(get_args(options.Rng)) == RNGS.keys()
    assert set(get_args(options.Project)) == PROJECTS.keys()


MAKING = names(ToyOptions, EngineOptions)
SOURCE = {*MAKING, "model", "layer", "head", "kind", "mask", "special", "generate"}


@pytest.mark.parametrize(("function", "listed"), [
    (attncli.open_source, SOURCE), (attncli.inspect, {*SOURCE, "text", "pair", "target"}),
    (attncli.heads, {*SOURCE, "texts", "pair", "target", "queries"}),
    (attncli.why, {*SOURCE, "text", "pair", "target", "query", "key"}),
    (attncli.check, {*names(LoadOptions), "model", "texts", "target", "layer", "special"}),
    (attncli.tokenize, {*names(VocabularyOptions, TokenizerOptions), "text", "pair", "model", "special"}),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_a_function_lists_all_that_it_takes(function: Any, listed: set[str]) -> None:
    parameters = signature(function).parameters
    # A function may have gained arguments of its own; what the sources take is there in full.
    assert parameters.keys() >= listed
    for parameter in parameters.values():
        assert parameter.kind is not Parameter.VAR_KEYWORD, "no **options that say nothing"
        assert parameter.annotation is not Parameter.empty


def test_the_defaults_are_those_of_the_options() -> None:
    parameters = signature(attncli.inspect).parameters
    for one in (ToyOptions(), EngineOptions()):
        assert all(parameters[name].default == getattr(one, name) for name in one.names())
    assert parameters["layer"].default == 0
    assert signature(attncli.heads).parameters["layer"].default == "all"
