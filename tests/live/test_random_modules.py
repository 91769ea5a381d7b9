"""Proofs of random small modules, right and wrong, agree with brute force."""

import math
from functools import cache

import pytest
from random_modules import RandomModule, seeds_of_all, truth

from attncli.analysis.prove import prove

GROUPS = 16


@cache
def is_right(seed: int) -> bool | None:
    return truth(RandomModule(seed))


@pytest.fixture(scope="session")
def seeds() -> list[int]:
    return seeds_of_all(first=64)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_proof_agrees_with_brute_force(group: int, seeds: list[int]) -> None:
    for seed in seeds[group::GROUPS]:
        module = RandomModule(seed)
        inputs = module.inputs if len(module.inputs) > 1 else module.inputs["ids"]
        proof = prove(module, inputs, module.claim)
        if is_right(seed) is not None:  # beyond doubt
            assert proof.is_proved is is_right(seed), f"seed {seed}, {module}: {proof}"
        if proof.is_proved and not module.is_padded:
            most = 2 * math.log2(module.length) + 2 * math.log2(module.rows) + 4
            assert proof.forwards <= most, f"seed {seed}, {module}: {proof}"


def test_half_of_the_modules_are_right(seeds: list[int]) -> None:
    found = [*map(is_right, seeds)]
    assert found.count(None) <= 2
    assert 0.4 < found.count(True) / len(found) < 0.6
