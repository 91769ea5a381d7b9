"""Small parts of a dataset, and one that nothing disturbed."""

import pytest
from datasets import SMALL, files_of, write


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts small."""
    monkeypatch.setattr("attncli.corpus.dataset.SHARD_SIZE", SMALL)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attncli.corpus.dataset.SHARD_SIZE", SMALL)
        write(folder)
    return files_of(folder)
