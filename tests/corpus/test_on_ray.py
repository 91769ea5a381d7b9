"""Ray: the answers of one process, in their order, whatever happens to the processes and machines of a cluster."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attncli.corpus.inspecting import Inspected
from attncli.corpus.local import answered
from attncli.corpus.parts import Each, Merged, Parts, in_parts
from attncli.corpus.reading import Corpus
from attncli.corpus.surveying import Surveying
from attncli.corpus.tracing import Tracing
from attncli.corpus.work import in_windows
from attncli.formats.compact import compact_types
from works import Told

from attncli.analysis.heads import SurveyStates
from attncli.corpus import on_ray
from attncli.errors import AttnError, Failure, LoadError
from attncli.trace.trace import Derivation
from attncli.trace.view import View

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster serves them all
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # that Ray says of itself
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two processors that wait for work; what is printed or reported of them is nobody's."""
    helpers = str(Path(__file__).parents[1] / "helpers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it would keep a token in the home folder
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=2**27,
            log_to_driver=False,
            logging_level="CRITICAL",
            runtime_env={"env_vars": {"PYTHONPATH": helpers}},
        )
        yield
        ray.shutdown()


def corpus(folder: Path, *files: list[str]) -> Corpus:
    """Return a corpus of files with these lines."""
    (folder / "texts").mkdir()
    for index, lines in enumerate(files):
        (folder / "texts" / f"{index}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Corpus.of(str(folder / "texts"))


def told(answers: Any) -> list[tuple[Any, ...]]:
    """Return what is the same of a work of `Told` wherever it is done."""
    return [(number, result if isinstance(result, Failure) else result[0], said) for number, result, said, _ in answers]


def raised(given: Corpus, folder: Path, **options: Any) -> AttnError:
    """Return what ends a run."""
    with pytest.raises(AttnError) as caught:
        list(on_ray.answered(Told(folder), given, in_windows, **options))
    return caught.value


@pytest.mark.system
def test_answers_are_those_of_one_process_though_workers_are_killed(cluster: None, tmp_path: Path) -> None:
    lines = ["x" * (number % 7 + 1) for number in range(4200)]
    given = corpus(tmp_path, [*lines[:50], "kill 2", *lines], ["a", "", "b c", "kill 1"])
    (tmp_path / "here").mkdir()
    here = answered(Told(tmp_path / "here"), in_windows(given.sentences()), 2)
    empty: list[int] = []
    assert told(on_ray.answered(Told(tmp_path), given, in_windows, leave_out=empty.append)) == told(here)
    assert empty == [1]  # of the second file


@pytest.mark.system
def test_states_of_heads_and_parts_of_a_dataset_are_those_of_one_process(cluster: None, tmp_path: Path) -> None:
    given = corpus(tmp_path, ["time flies like an arrow", "the old man the boats"] * 2100, ["a rose is a rose"])
    surveying = Tracing(Surveying(View()), {"model": None, "layers": "all", "num_heads": 2})
    found = [
        [repr(answer.result.surveys()) for answer in answers if isinstance(answer.result, SurveyStates)]
        for answers in (
            on_ray.answered(surveying, given, in_windows),
            answered(surveying, in_windows(given.sentences()), 1),
        )
    ]
    assert len(found[0]) > 20
    assert found[0] == found[1]

    table = partial(Each, compact_types(View()))
    tracing = Tracing(Inspected(Derivation(), View(), "compact"), {"model": None, "layers": "0", "num_heads": 2})
    batched = partial(in_parts, files=[file.name for file in given.files])
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    there = Parts(tracing, str(tmp_path / "there"), table)
    here = Parts(tracing, str(tmp_path / "here"), table)
    assert list(on_ray.answered(there, given, batched)) == list(answered(here, batched(given.sentences()), 1))
    parts = sorted(path.name for path in (tmp_path / "there").iterdir())
    assert parts == ["part-00000-00000.parquet", "part-00000-00001.parquet", "part-00001-00000.parquet"]
    for name in parts:
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()

    of_heads = [Parts(surveying, str(tmp_path / name / "heads"), Merged) for name in ("there", "here")]
    for name in ("there", "here"):
        (tmp_path / name / "heads").mkdir()
    assert list(on_ray.answered(of_heads[0], given, batched)) == list(
        answered(of_heads[1], batched(given.sentences()), 1)
    )
    for name in parts:
        assert (tmp_path / "there/heads" / name).read_bytes() == (tmp_path / "here/heads" / name).read_bytes()


@pytest.mark.system
def test_what_is_raised_where_it_runs_is_raised_here(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = corpus(tmp_path, ["a", "refuse it is bad"])
    assert str(raised(given, tmp_path, jobs=1)) == "sentence 2: it is bad"
    (tmp_path / "texts" / "0.txt").write_bytes(b"PK\x03\x04")  # which is said after what no machine can do
    monkeypatch.setattr(on_ray, "__version__", "9.9")
    assert isinstance(error := raised(given, tmp_path, jobs=1), LoadError)
    assert " 9.9; install the same one on every machine" in str(error)
