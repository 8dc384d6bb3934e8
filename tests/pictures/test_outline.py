"""Layers are grouped by the modules they stand in, deep enough and not deeper."""

import pytest

from gradwatch.pictures.outline import outline
from tests.pictures.kit import make_blocks


def labels(layers: list[str], most: int = 24) -> list[str]:
    return [group.label for group in outline(tuple(layers), most)]


@pytest.mark.parametrize("count", [0, 1, 2, 5, 77, 1000])
def test_groups_hold_every_layer_once(count: int) -> None:
    names = tuple(make_blocks(40, 25)[:count])
    inside = [index for group in outline(names) for index in range(group.first, group.stop)]
    assert inside == list(range(count))


def test_blocks_of_a_good_size_are_groups() -> None:
    found = labels(make_blocks(24, 16))
    assert [label for label in found if "blocks" in label] == [
        f"model.blocks.{block}" for block in range(24)
    ]


def test_many_small_blocks_are_joined_to_ranges() -> None:
    found = labels(make_blocks(120, 16))
    assert len(found) < 48
    assert any("–" in label for label in found)


def test_two_towers_are_told_apart() -> None:
    names = [f"{tower}.layer.{i}" for tower in ("encoder", "decoder") for i in range(300)]
    found = labels(names, most=4)
    assert found[0].startswith("encoder")
    assert found[-1].startswith("decoder")


def test_a_flat_model_is_named_by_ranges() -> None:
    assert labels([str(i) for i in range(8)], most=2) == ["0–1", "2–3", "4–5", "6–7"]


def test_names_that_come_back_later_are_groups_of_their_own() -> None:
    names = ["a.x", "a.y", "b.x", "b.y", "a.z", "a.w"]
    assert labels(names, most=3) == ["a", "b", "a"]
