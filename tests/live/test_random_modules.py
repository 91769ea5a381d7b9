"""Proofs of random small modules, right and wrong, agree with brute force."""

import math

import pytest
from random_modules import RandomModule, truth

from attncli.analysis.prove import prove

GROUPS, SEEDS = 20, 10


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_proof_agrees_with_brute_force(group: int) -> None:
    for seed in range(group * SEEDS, (group + 1) * SEEDS):
        is_right = truth(RandomModule(seed))
        module = RandomModule(seed)
        inputs = module.inputs if len(module.inputs) > 1 else module.inputs["ids"]
        proof = prove(module, inputs, module.claim)
        if is_right is not None:  # beyond doubt
            assert proof.is_proved is is_right, f"seed {seed}, {module}: {proof}"
        if proof.is_proved and not module.is_padded:
            most = 2 * math.log2(module.length) + 2 * math.log2(module.rows) + 4
            assert proof.forwards <= most, f"seed {seed}, {module}: {proof}"


def test_half_of_the_modules_are_right() -> None:
    found = [truth(RandomModule(seed)) for seed in range(0, GROUPS * SEEDS, 4)]
    assert found.count(None) <= 2
    assert 0.4 < found.count(True) / len(found) < 0.6
