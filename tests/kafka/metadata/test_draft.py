"""Drafts and the records in memory, against a plain model. No Kafka."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.metadata.draft import Draft
from penstock.kafka.metadata.layout import MAX_RECORD_BYTES, split_key
from penstock.kafka.metadata.spaces import APPLIED_IN_PLACE, Spaces
from penstock.log.errors import RecordConflict, TooLarge
from penstock.log.feeds import Steps
from penstock.log.records import ABSENT, ANY, PRESENT, Delete, DeleteAll, Edit, Put, RecordChange

NAMES = st.sampled_from(["", "a", "a/", "a/b", "b", "\U0010ffff"])
EXPECTED = st.sampled_from([ANY, ABSENT, PRESENT, 1, 2])
EDITS = st.one_of(
    st.builds(Put, st.just("s"), NAMES, st.binary(max_size=2), EXPECTED),
    st.builds(Delete, st.just("s"), NAMES, EXPECTED),
    st.builds(DeleteAll, st.just("s"), NAMES),
)


def steps_of(draft: Draft) -> Steps:
    steps: Steps = []
    for message in draft.messages:
        space, name = split_key(message.key)
        steps.append((space, RecordChange(name, message.value, message.version)))
    return steps


def model_of(model: dict[str, int], edits: list[Edit], version: int) -> dict[str, int] | None:
    """Versions by name after a change; None where it is refused."""
    after = dict(model)
    for edit in edits:
        if isinstance(edit, DeleteAll):
            after = {name: at for name, at in after.items() if not name.startswith(edit.prefix)}
            continue
        found = after.get(edit.name, ABSENT)
        fits = found != ABSENT if edit.expected == PRESENT else edit.expected in (ANY, found)
        if not fits:
            return None
        if isinstance(edit, Put):
            after[edit.name] = version
        else:
            after.pop(edit.name, None)
    return after


@given(st.lists(st.lists(st.lists(EDITS, max_size=4), max_size=4), max_size=4))
def test_changes_do_what_they_say_however_they_are_grouped(
    groups: list[list[list[Edit]]],
) -> None:
    spaces, last = Spaces(), 0
    model: dict[str, int] = {}
    for group in groups:
        draft = Draft(spaces, last)
        for edits in group:
            expected = model_of(model, edits, draft.last_version + 1)
            if expected is None:
                with pytest.raises(RecordConflict):
                    draft.add(edits)
            else:
                draft.add(edits)
                model = expected
        last = draft.last_version
        spaces.apply(steps_of(draft))
        kept = {record.name: record.version for record in spaces.page("s", "", None, None)}
        assert kept == model and list(kept) == sorted(model)


@given(st.sets(st.text(max_size=3)), st.text(max_size=2), st.none() | st.text(max_size=2))
def test_pages(names: set[str], prefix: str, after: str | None) -> None:
    spaces = Spaces()
    spaces.apply([("s", RecordChange(name, b"", 1)) for name in names])
    wanted = sorted(
        name for name in names if name.startswith(prefix) and (after is None or name > after)
    )
    assert [one.name for one in spaces.page("s", prefix, after, None)] == wanted
    assert [one.name for one in spaces.page("s", prefix, after, 2)] == list(islice(wanted, 2))


def test_very_many_steps_are_applied_to_a_copy() -> None:
    spaces = Spaces()
    names = [f"{number:05}" for number in range(2 * APPLIED_IN_PLACE)]
    spaces.apply([("t", RecordChange("other", b"", 1))])
    spaces.apply([("s", RecordChange(name, b"", 2)) for name in names])
    assert spaces.names("s", "") == names and spaces.names("t", "") == ["other"]
    spaces.apply([("s", RecordChange(name, None, 3)) for name in names[1:]])
    assert spaces.names("s", "") == names[:1]


def test_taking_over_tells_what_differs() -> None:
    old, new = Spaces(), Spaces()
    old.apply([("s", RecordChange(name, b"1", 1)) for name in ("same", "other", "gone")])
    new.apply([("s", RecordChange("same", b"1", 1)), ("s", RecordChange("other", b"2", 2))])
    new.apply([("t", RecordChange("new", b"3", 3))])
    assert old.take_over(new, 9) == [
        ("s", RecordChange("gone", None, 9)),
        ("s", RecordChange("other", b"2", 2)),
        ("t", RecordChange("new", b"3", 3)),
    ]
    assert old.names("s", "") == ["other", "same"] and old.version("t", "new") == 3


def test_a_record_has_a_limit_and_its_change_leaves_nothing() -> None:
    draft = Draft(Spaces(), 0)
    with pytest.raises(TooLarge):
        draft.add([Put("s", "a", b""), Put("s", "b", bytes(MAX_RECORD_BYTES))])
    assert draft.messages == [] and draft.add([Put("s", "a", b"", ABSENT)]) == 1
