"""What is expected of which places: one expression, several with patterns, or a mapping."""

import pytest
from live_calls import LENGTHS, padding, place, sdpa

from attncli.analysis.calls.calls import Calls
from attncli.analysis.calls.expectations import Expectations, UnexpectedError, split_pattern
from attncli.errors import UsageError
from attncli.masks.findings import Finding
from attncli.recording.call import AttentionCall

ENCODER, SELF, CROSS = map(place, range(3), ("encoder.0", "decoder.0.self", "decoder.0.cross"))
BY_PATTERN = {"*": "full", "encoder.*": "pad", "decoder.*self*": "causal & pad"}


def seq2seq() -> list[AttentionCall]:
    return [sdpa(padding(), at=ENCODER), sdpa(padding(), is_causal=True, at=SELF), sdpa(at=CROSS)]


def taken(*calls: AttentionCall, expect: str | list[str] | dict[str, str] | None = None) -> Calls:
    found = Calls(expect)
    for call in calls:
        found.take(call)
    found.finish()
    return found


def errors(calls: Calls) -> list[Finding]:
    return [one for one in calls.findings if one.severity == "error"]


@pytest.mark.parametrize(("text", "pattern", "expression"), [
    ("causal & pad(left=2)", None, "causal & pad(left=2)"),
    ('file("a=b.npy")', None, 'file("a=b.npy")'),
    ("decoder.*self*=causal & pad(left=2)", "decoder.*self*", "causal & pad(left=2)"),
    ("layers.[02].* = ~(causal | pad(right=1))", "layers.[02].*", " ~(causal | pad(right=1))"),
    ("model.py:12=file('a=b.npy')", "model.py:12", "file('a=b.npy')"),
])  # fmt: skip
def test_a_pattern_ends_at_the_first_sign_outside_of_parentheses_and_quotes(
    text: str, pattern: str | None, expression: str
) -> None:
    assert split_pattern(text) == (pattern, expression)


def test_of_several_that_match_a_place_the_last_one_decides() -> None:
    expected = Expectations.parse(["full", "decoder.*=pad", "*.self=causal"])
    decided = [expected.at(one) for one in (ENCODER, SELF, CROSS)]
    assert [one and one.text for one in decided] == ["full", "causal", "pad"]
    assert Expectations.parse("*.self=causal").at(ENCODER) is None
    assert str(Expectations.parse({"*": "full", "model.py": "causal"})) == "full, model.py=causal"


def test_each_place_is_held_against_its_own() -> None:
    right = taken(*seq2seq(), expect=["encoder.*=pad", "decoder.*self*=causal & pad", "*.cross=full"])
    assert errors(right) == []
    assert right.unused == []
    wrong = taken(*seq2seq(), expect=["full", "encoder.*=pad"])
    assert [any(one.severity == "error" for one in row.findings) for row in wrong] == [False, True, False]
    seen = taken(*seq2seq())
    seen.check(BY_PATTERN)
    seen.check(BY_PATTERN, lengths=LENGTHS)
    with pytest.raises(UnexpectedError, match=r"is not full, encoder\.\*=pad\nmodel.py:1 .*decoder\.0\.self"):
        seen.check({"*": "full", "encoder.*": "pad"})


def test_a_place_for_which_there_is_no_expectation_is_not_called_ok() -> None:
    calls = taken(*seq2seq(), expect="encoder.*=pad")
    assert [row.verdict for row in calls] == ["ok", "no expectation", "no expectation"]
    assert [track.expected for track in calls.tracks] == ["pad", "no expectation", "no expectation"]
    assert [line.rpartition("  ")[2] for line in str(calls).splitlines()[3:6]] == ["ok", *["no expectation"] * 2]
    assert [row.verdict for row in taken(*seq2seq())] == ["not checked", "ok", "not checked"]


@pytest.mark.parametrize(("expect", "codes"), [
    ("causal & pad", ["leak", "pad"]),
    ("causal & window(3) & pad", ["leak", "window", "pad"]),
    ("full & pad", ["pad"]),
    ("pad", ["pad"]),
    ("causal | pad", ["pad"]),  # of which lengths may allow all
])  # fmt: skip
def test_lengths_that_are_unknown_hide_no_leak(expect: str, codes: list[str]) -> None:
    (row,) = taken(sdpa(), expect=expect)
    assert [one.code for one in row.findings] == codes
    assert row.findings[-1].message == "cannot check `pad`: sequence lengths unknown"
    assert (row.findings[0].comparison is not None) == (len(codes) > 1)


def test_a_pattern_at_which_nothing_ran_is_no_success() -> None:
    misspelt = {"*": "full", "encodr.*": "pad"}
    calls = taken(*seq2seq(), expect=misspelt)
    assert calls.unused == ["no attention ran at encodr.*. 3 calls ran elsewhere"]
    with pytest.raises(UnexpectedError, match=r"no attention ran at encodr\.\*. 1 call ran elsewhere"):
        taken(sdpa(at=CROSS)).check(misspelt)
    shadowed = ["encoder.*=pad", "full"]
    assert taken(*seq2seq(), expect=shadowed).unused == [
        "encoder.*=pad is not used: a later pattern matches the same places"
    ]
    everywhere = ["pad", "encoder.*=pad", "decoder.*self*=causal & pad", "*.cross=full"]
    assert taken(*seq2seq(), expect=everywhere).unused == []  # a rule for the rest may have no rest


def test_requests_that_say_no_places_or_no_masks() -> None:
    for text, words in {
        "=causal": "'=causal' has no pattern before the '='",
        "encoder.*=casual": "unknown mask 'casual'; did you mean 'causal'",
        "encoder.*=": "expected a mask such as causal",
    }.items():
        with pytest.raises(UsageError, match=words):
            Expectations.parse(text)
    with pytest.raises(UsageError, match="a mapping of several names their places"):
        taken(*seq2seq()).check({"*": "full"}, place="encoder.*")
    with pytest.raises(UsageError, match="lengths need an expression with a bare pad"):
        taken(*seq2seq()).check({"*": "full"}, lengths=LENGTHS)
