"""The native engine: the same numbers as transformers on every family, or none at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_variants import (
    VARIANTS,
    config_of,
    conform,
    one_by_one,
)
from transformers import CONFIG_MAPPING

from attncli.sources.native.blocks import ACTIVATIONS, erf
from attncli.sources.native.families import FAMILIES, recipe_of
from attncli.sources.native.fields import DeclinedError, Fields

Run = Callable[..., Any]

_BESIDE_A_RECIPE = {"rope_scaling", "rope_parameters", "rope_theta"}


# --- configurations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_each_value_of_each_field_gives_what_transformers_computes(family: str, tmp_path: Path) -> None:
    rows = []
    for number, changes in enumerate(one_by_one(family)):
        folder = tmp_path / str(number)
        folder.mkdir()
        rows.append(conform(family, changes, folder))
    assert len(rows) > len(VARIANTS[family])
    assert [row for row in rows if not row.is_exact] == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fields_together_give_it_too_or_the_engine_declines(data: st.DataObject, tmp_path_factory: Any) -> None:
    family = data.draw(st.sampled_from(sorted(VARIANTS)))
    names = data.draw(st.lists(st.sampled_from(sorted(VARIANTS[family])), min_size=2, max_size=5, unique=True))
    changes = {name: data.draw(st.sampled_from(VARIANTS[family][name])) for name in names}
    try:
        row = conform(family, changes, tmp_path_factory.mktemp("together"))
    except DeclinedError:
        return
    except Exception as error:  # what transformers itself refuses, in as many ways as there are fields
        assume(not isinstance(error, AssertionError))
        assume(False)
    assert row.is_exact, row


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_that_a_recipe_reads_is_varied(family: str) -> None:
    fields = Fields({"model_type": family})
    recipe_of(fields)
    assert fields.read - {"model_type"} == set(VARIANTS[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_configuration_does_not_say_is_what_transformers_takes(family: str) -> None:
    said = json.loads(CONFIG_MAPPING[family]().to_json_string(use_diff=False))
    assert repr(recipe_of(Fields({"model_type": family}))) == repr(recipe_of(Fields(said)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a_field_of_tomorrow", 1),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("quantization_config", {"bits": 4}),
        ("use_bidirectional_attention", True),
        ("num_hidden_layers", "six"),
        ("n_layer", -1),
        ("model_type", ["bert"]),
        ("model_type", "bloom"),
    ],
)
def test_a_field_that_is_not_implemented_declines(family: str, name: str, value: Any) -> None:
    config = config_of(family, {})
    recipe_of(Fields(config))
    with pytest.raises(DeclinedError):
        recipe_of(Fields({**config, name: value}))


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "mrope", "proportional"])
def test_a_rotary_embedding_that_is_not_implemented_declines(kind: str) -> None:
    with pytest.raises(DeclinedError, match=kind):
        recipe_of(
            Fields(config_of("llama", {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, "factor": 2}}))
        )


# --- blocks ------------------------------------------------------------------------------------------------


def test_the_error_function_is_within_its_bound() -> None:
    x = np.linspace(-6, 6, 200_001, dtype=np.float32)
    exact = torch.erf(torch.from_numpy(x).double()).numpy()
    assert np.abs(erf(x) - exact).max() < 6e-7


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name: str) -> None:
    from transformers.activations import ACT2FN

    x = np.linspace(-30, 30, 100_001, dtype=np.float32)
    known = ACT2FN[name](torch.from_numpy(x)).numpy()
    assert np.abs(ACTIVATIONS[name](x) - known).max() < 4e-6
