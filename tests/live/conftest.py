"""The programs that tests of this folder run, as their module names them in `PROGRAMS`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from watched_programs import Run, programs_of


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> Iterator[dict[str, Run]]:
    yield from programs_of(Path(__file__).parent / "programs", *request.module.PROGRAMS)
