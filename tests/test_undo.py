"""Whatever is attached comes off once, last in first out, also where a step of it raises."""

import pytest

from gradwatch.undo import Undo, patch_instance


class Thing:
    size = 1


def test_ways_back_are_walked_last_in_first_out_and_once() -> None:
    walked: list[int] = []
    undo = Undo()
    for number in range(3):
        undo.add(lambda number=number: walked.append(number))  # type: ignore[misc]
    undo()
    undo()
    assert walked == [2, 1, 0]


def test_one_that_raises_does_not_keep_the_others_from_running() -> None:
    walked: list[str] = []
    undo = Undo()
    undo.add(lambda: walked.append("first"))
    undo.add(lambda: 1 / 0)
    undo.add(lambda: walked.append("last"))
    with pytest.raises(ZeroDivisionError):
        undo()
    assert walked == ["last", "first"]
    undo()


def test_it_can_be_used_again_after_it_was_called() -> None:
    walked: list[str] = []
    undo = Undo()
    undo()
    undo.add(lambda: walked.append("later"))
    undo()
    assert walked == ["later"]


def test_a_patched_attribute_of_the_class_leaves_no_trace() -> None:
    thing = Thing()
    undo = patch_instance(thing, "size", 2)
    assert thing.size == 2
    undo()
    undo()
    assert vars(thing) == {}
    assert thing.size == 1


def test_a_patched_attribute_of_the_instance_comes_back() -> None:
    thing = Thing()
    thing.size = 5
    undo = patch_instance(thing, "size", 2)
    undo()
    assert vars(thing) == {"size": 5}
