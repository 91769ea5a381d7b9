"""Views of the explorer: each key makes another one, within the limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import tokens_of

from attncli.engines.interactive import Query
from attncli.explore.view_state import Limits, ViewState
from attncli.trace.tokens import Token, Tokens

WORDS = ("[CLS]", "time", "fl", "##ies", "like", "an", "arrow", "[SEP]")
TEXT = "time flies like an arrow"
PLACES = ((None, None), (0, 4), (5, 7), (7, 10), (11, 15), (16, 18), (19, 24), (None, None))
TOKENS = Tokens(Token(index, index, word, *PLACES[index]) for index, word in enumerate(WORDS))
ROOM = Limits((0, 1, 4), ("self",), (0, 1, 2, 3), TOKENS, TOKENS)
LOOK = ViewState(Query(TEXT))

sizes = st.integers(1, 40)
rooms = st.builds(
    lambda layers, kinds, heads, queries, keys: Limits(
        tuple(sorted(layers)), kinds, tuple(heads), tokens_of(*"q" * queries), tokens_of(*"k" * keys)
    ),
    st.sets(st.integers(0, 30), min_size=1, max_size=5),
    st.sampled_from([("self",), ("encoder", "decoder", "cross"), ("cross",)]),
    st.sampled_from([range(1), range(12), (3, 5)]),
    sizes,
    sizes,
)
steps = st.integers(-50, 50)
keys_pressed = st.one_of(
    st.tuples(st.just("moved"), steps, steps),
    st.tuples(st.just("next_layer"), steps),
    st.tuples(st.just("next_head"), steps),
    st.tuples(st.just("next_kind")),
    st.tuples(st.just("finding"), st.sampled_from(["q", "k", "Q", "7", "zz", ""])),
)


def is_within(look: ViewState, room: Limits) -> bool:
    return (
        look.layer in room.layers
        and look.head in room.heads
        and look.kind in (None, *room.kinds)
        and 0 <= look.query < len(room.queries)
        and 0 <= look.key < len(room.keys)
    )


@given(st.lists(st.tuples(rooms, st.lists(keys_pressed, max_size=8)), max_size=4))
def test_every_key_leads_to_a_view_within_the_limits(sessions: list) -> None:
    look, before = LOOK, Limits()
    for room, keys in sessions:
        look = look.carried(before, room)
        assert is_within(look, room)
        for name, *arguments in keys:
            look = getattr(look, name)(room, *arguments) or look
            assert is_within(look, room)
        before = room


# --- where one looks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        ("[CLS] time flies [SEP]", "[CLS] time flies fast [SEP]", {0: 0, 1: 1, 2: 2, 3: 4}),
        ("[CLS] time flies [SEP]", "[CLS] flies [SEP]", {0: 0, 1: 1, 2: 1, 3: 2}),
        ("[CLS] a b c [SEP]", "[CLS] x [SEP]", {0: 0, 1: 1, 2: 1, 3: 1, 4: 2}),
        ("a a", "a a a", {0: 0, 1: 1}),
        ("a b", "", {0: 0, 1: 1}),
    ],
)
def test_the_cursor_follows_its_token(before: str, after: str, places: dict[int, int]) -> None:
    old, new = (Limits(queries=tokens_of(*text.split()), keys=tokens_of(*text.split())) for text in (before, after))
    for place, wanted in places.items():
        assert LOOK.on(old, key=place).carried(old, new).key == wanted
        if place < len(old.queries) - 1:
            assert LOOK.on(old, query=place).carried(old, new).query == wanted


@pytest.mark.parametrize(
    ("wanted", "start", "found"),
    [
        ("arrow", 0, 6),
        ("flies", 0, 2),  # which stands in the text, in two tokens
        ("li", 3, 4),
        ("LIKE", 0, None),
        ("CLS", 5, 0),
        ("a", 5, 6),
        ("a", 6, 5),
        ("3", 0, 3),
        ("99", 0, None),
        ("9" * 5000, 0, None),
        ("", 0, None),
    ],
)
def test_a_token_is_found_by_its_letters(wanted: str, start: int, found: int | None) -> None:
    look = LOOK.on(ROOM, query=start).finding(ROOM, wanted)
    assert (look and look.query) == found
