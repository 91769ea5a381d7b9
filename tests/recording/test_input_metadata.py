"""What the inputs of modules say of a batch: which keys are padding, and where documents begin."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from attncli.analysis.calls import watch
from attncli.analysis.calls.steps import ThreadState
from attncli.recording.input_hint import InputHint
from attncli.recording.watch import watching

IDS = torch.tensor([[5, 3, 7, 2, 9, 4], [5, 3, 0, 7, 0, 0], [5, 3, 0, 0, 0, 0]])


def hints_of(module: nn.Module, *args: Tensor, **kwargs: Tensor) -> list[InputHint]:
    state = ThreadState()
    with watching(lambda _: None, hints=lambda: state):
        module(*args, **kwargs)
    return [one.hint for one in state.pending]


def test_an_embedding_says_which_words_are_padding_at_the_ends() -> None:
    (hint,) = hints_of(nn.Embedding(10, 4, padding_idx=0), IDS)
    assert hint.kind == "tokens"
    expected = [[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4]  # the 0 between two words is a word
    assert hint.values.tolist() == expected
    (hint,) = hints_of(nn.Embedding(10, 4, padding_idx=0), IDS.flip(1))
    assert hint.values.tolist() == [row[::-1] for row in expected]


POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])


@pytest.mark.parametrize(("name", "is_known"), [("wpe", True), ("pos_embedding", True), ("hours", False)])
def test_an_embedding_of_positions_is_known_by_its_name(name: str, is_known: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({name: nn.Embedding(8, 4)})

        def forward(self, numbers: Tensor) -> Tensor:
            x = self.parts[name](numbers)[:, None]
            return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    with watch() as calls:
        Model()(POSITIONS)
        Model()(torch.arange(7)[None])
    assert [one.code for one in calls.findings] == ["document"] * is_known
