"""A folder of parts that a command writes, and what it says of the options that the numbers depend on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from attncli.cli.environment import Environment
    from attncli.cli.groups import Options
    from attncli.corpus.dataset import Tally
    from attncli.corpus.parts import Parts, Table
    from attncli.corpus.work import Answer, Work

# Those that they do not depend on. The sentences themselves are known by what they are.
_OF_THE_RUN = frozenset({
    "text", "file", "each", "resume", "fail_fast", "keep_errors", "jobs", "on",
    "offline", "trust_remote_code",
    "precision", "ramp", "colormap",
})  # fmt: skip


def made_by(command: str, *groups: Options, **beside: object) -> dict[str, str]:
    """Return what a folder of parts is made by, in words.

    Args:
        command: its name.
        groups: of its options.
        beside: its other options, by name; None and False are not given.
    """
    said = [one for group in groups for one in group.said()]
    said += [(name, value) for name, value in beside.items() if value not in (None, False)]
    options = {name: value for name, value in said if name not in _OF_THE_RUN}
    return {"command": command, **{f"--{name.replace('_', '-')}": _as_text(options[name]) for name in sorted(options)}}


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "given" if value is True else str(value)


class Writing(NamedTuple):
    """A dataset that is written.

    Attributes:
        folder: a path, or a URL.
        table: begins what the results of a part become.
        tally: what is there of it.
    """

    folder: str
    table: Callable[[], Table[Any]]
    tally: Tally

    def parts(self, work: Work[Any]) -> Parts[Any]:
        """Return the work that writes what another one answers."""
        from attncli.corpus.parts import Parts

        return Parts(work, self.folder, self.table)

    def counted(self, answers: Generator[Answer[Any], None, None]) -> Generator[Answer[Any], None, None]:
        """Pass the answers of parts on, and take their receipts."""
        from attncli.corpus.parts import Receipt

        with closing(answers):
            for answer in answers:
                if isinstance(answer.result, Receipt):
                    self.tally.add(answer.result)
                    answer = answer._replace(result=None)
                yield answer


@contextmanager
def writing(
    environment: Environment,
    folder: str,
    table: Callable[[], Table[Any]],
    made: Mapping[str, str],
    files: Sequence[str],
) -> Iterator[Writing]:
    """Hold a folder for a dataset, or what is not there of it; it is whole, and said to be, once the block succeeds.

    Args:
        environment: that of the run.
        folder: a path, or a URL.
        table: begins what the results of a part become.
        made: what the numbers depend on; see `made_by`.
        files: the names of the files of sentences, where there are several.

    Raises:
        AttnError: what `corpus.dataset.dataset` raises.
    """
    from attncli.corpus.dataset import dataset
    from attncli.corpus.folders import folder_at

    name = folder_at(folder).name
    with dataset(folder, made, files) as tally:
        yield Writing(folder, table, tally)
    environment.note(f"{name}: {tally}")
