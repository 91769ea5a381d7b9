"""The line of a program that made a mask, beside the line that used it."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from whole_program import forked

import attncli

B, H, T, D = 2, 2, 6, 8


def attend(mask: Tensor) -> Tensor:
    x = torch.randn(B, H, T, D)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class Gpt(nn.Module):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(16, 16), 1).view(1, 1, 16, 16))  # <-

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.mT / x.size(-1) ** 0.5
        length = x.size(2)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        return scores.softmax(-1) @ x


# Programs whose masks are wrong, made at the line with the arrow.
def rows_assigned() -> None:
    seen = torch.zeros(T, T)
    for query in range(T):
        seen[query, :query] = float("-inf")  # <-
    attend(seen)


def buffer() -> None:
    Gpt()(torch.randn(B, H, T, D))


def numbers_of_ones() -> None:
    seen = torch.triu(torch.ones(T, T))  # <-
    mask = (1.0 - seen) * -10000.0
    attend(mask.to(torch.float32))


def arrow(program: Callable[[], None]) -> str:
    lines, first = inspect.getsourcelines(Gpt if program is buffer else program)
    (line,) = [first + index for index, text in enumerate(lines) if "# <-" in text]
    return f"{Path(__file__).relative_to(Path.cwd())}:{line}"


@pytest.mark.parametrize("program", [rows_assigned, buffer, numbers_of_ones], ids=lambda each: each.__name__)
def test_the_line_that_made_a_wrong_mask_is_named(program: Callable[[], None]) -> None:
    with attncli.watch() as calls:
        program()
    assert calls.notes == []
    assert {line for one in calls.findings for line in one.made_at} == {arrow(program)}


def test_no_line_is_named_that_did_not_make_the_mask() -> None:
    future = torch.ones(T, T, dtype=torch.bool).triu(1)  # made before anything is watched
    with attncli.watch() as calls:
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        mask.copy_(future)
        attend(mask)
        x = torch.randn(B, H, T, D)
        F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(T, T, dtype=torch.bool).triu())
    assert {one.code for one in calls.findings} & {"leak", "shape"}
    assert {one.made_at for one in calls.findings} == {()}


def test_every_form_names_the_line(folder: Path) -> None:
    (folder / "masks.py").write_text("import torch\n\n\ndef future(n):\n    return torch.ones(n, n).bool().triu()\n")
    (folder / "train.py").write_text(
        "import torch, torch.nn.functional as F\nfrom masks import future\nx = torch.randn(1, 2, 6, 8)\n"
        "mask = future(6)\nF.scaled_dot_product_attention(x, x, x, mask)\n"
    )
    table = forked("run", "train.py")
    assert "return torch.ones(n, n).bool().triu()  <-- mask made at masks.py:5" in table.stderr
    finished = forked("run", "-F", "json", "-o", "calls.json", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert '"made_at":["masks.py:5"]' in (folder / "calls.json").read_text()
