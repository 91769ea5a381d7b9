"""`attn check`: healthy models have no finding, and every planted mistake has its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from architectures import tiny_model
from conformance import save, tokenizer_in
from planted import BUGS, Bug

import attncli
from attncli.findings import Report
from attncli.sources.pretrained import loading

TEXTS = ["w7 w8 w9 w10 w11", "w21 w22 w23 w24 w25 w26 w27 w28 w29", "w40 w41 w42"]

Checked = Callable[..., Report]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Checked:
    """Check a tiny model, with something planted in it or nothing."""

    def check(name: str, plant: Any = None, **options: Any) -> Report:
        save(tiny_model(name), tmp_path)
        monkeypatch.setattr(loading, "load_tokenizer", tokenizer_in)
        load = loading.load_model

        def planted(*arguments: Any) -> Any:
            model = load(*arguments)
            if plant is not None:
                plant(model, monkeypatch)
            return model

        monkeypatch.setattr(loading, "load_model", planted)
        return attncli.check(str(tmp_path), TEXTS, special=False, **options)

    return check


def errors(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == "error"}


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.architecture}: {bug.name}" for bug in BUGS])
def test_every_planted_mistake_has_its_own_finding(bug: Bug, checked: Checked) -> None:
    report = checked(bug.architecture, bug.plant, documents=bug.documents)
    assert bug.codes <= errors(report), report.findings
    messages = [finding.message for finding in report.findings if finding.code in bug.codes]
    assert any(bug.says in message for message in messages)
