"""The cluster that a run joins: what is wrong with an address or an installation is one sentence, at once."""

import sys

import pytest

from attncli.corpus.cluster import joined
from attncli.errors import LoadError


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "cannot reach the Ray cluster at 127.0.0.1:1: Connection refused"),
        ("http://127.0.0.1:8265", "expected HOST:PORT"),
        ("head", "expected HOST:PORT"),
        ("127.0.0.1:99999", "cannot reach the Ray cluster at 127.0.0.1:99999"),
    ],
)
def test_a_cluster_that_is_not_there_is_said_at_once(address: str, why: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(LoadError) as refused, joined(address, None):
        pass
    assert why in str(refused.value)


def test_that_ray_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LoadError) as refused, joined(None, None):
        pass
    assert "pip install 'attncli[ray]'" in str(refused.value)
