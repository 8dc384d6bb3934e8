"""Lines, bands and marks stand where the numbers say, and only what has numbers is drawn."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from gradwatch.history import History
from gradwatch.pictures import (
    DARK,
    LIGHT,
    Picture,
    Theme,
    gallery,
    learning_rate,
    loss_scale,
    memory,
    profile,
    total_norm,
    update_ratio,
)
from gradwatch.pictures.memory import _measure
from gradwatch.pictures.ratios import _outliers
from gradwatch.pictures.theme import Colour
from tests.pictures.kit import count_in_box, make_history, make_record, pixels, share_of

BLUE, ORANGE, GREEN = LIGHT.lines[:3]
CHARTS: tuple[Callable[..., Picture], ...] = (
    profile,
    update_ratio,
    total_norm,
    learning_rate,
    loss_scale,
    memory,
)


def make_scalars(step: int) -> dict[str, float]:
    return {
        "grad/norm": 1.0 + step % 3,
        "grad/norm_clipped": 1.0,
        "grad/clip_rate": 0.5,
        "grad/loss_scale": 2.0 ** (16 - step // 5),
        "grad/skipped": float(step // 5),
        "grad/non_finite": float(step // 5),
        "lr/snr": 10.0,
        "lr/factor": 0.5,
        "lr/effective": 1e-4,
        "mem/process_MiB": 500.0,
        "mem/process_forward_MiB": 30.0,
        "mem/process_backward_MiB": -20.0,
        "mem/process_step_MiB": 5.0,
    }


def make_run(steps: int, layers: int = 3, scalars: tuple[str, ...] | None = None) -> History:
    history, rng = History(), np.random.default_rng(0)
    for step in range(steps):
        chosen = {k: v for k, v in make_scalars(step).items() if scalars is None or k in scalars}
        norms = rng.random(layers)
        history.add(make_record(step, norms, scalars=chosen, ratios=norms / 100))
    return history


def height_of(picture: Picture, colour: Colour, part: slice = slice(None)) -> float:
    """Give how far up the box the colour stands on average, 0 to 1."""
    _, top, _, bottom = picture.box
    rows = np.flatnonzero((pixels(picture)[:, part] == np.asarray(colour)).all(axis=2).any(axis=1))
    inside = rows[(rows >= top * picture.image.height) & (rows < bottom * picture.image.height)]
    middle = float(inside.mean()) / picture.image.height
    return (bottom - middle) / (bottom - top)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
@pytest.mark.parametrize("steps", [0, 1, 2, 900])
@pytest.mark.parametrize("draw", CHARTS, ids=lambda draw: draw.__name__)
def test_every_chart_is_drawn_at_any_length(
    draw: Callable[..., Picture], steps: int, theme: Theme
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = draw(make_run(steps), theme=theme)
    left, top, right, bottom = picture.box
    assert 0 < left < right < 1
    assert 0 < top < bottom < 1
    assert picture.image.width == 960
    assert picture.title
    assert picture.caption.endswith(".")
    assert share_of(picture, theme.ground) > 0.3


@pytest.mark.parametrize("layers", [1, 3, 12, 75, 2000])
def test_the_profile_is_drawn_at_any_depth(layers: int) -> None:
    picture = profile(make_history(3, layers))
    assert 380 < picture.image.height < 600
    assert count_in_box(picture, BLUE) > 10


def test_the_profile_falls_towards_the_layers_whose_gradient_vanishes() -> None:
    history = History()
    for step in range(5):
        history.add(make_record(step, np.logspace(-8, 0, 12)))
    picture = profile(history)
    left, _, right, _ = (round(edge * picture.image.width) for edge in picture.box)
    quarter = (right - left) // 4
    first, last = slice(left, left + quarter), slice(right - quarter, right)
    assert height_of(picture, BLUE, first) < 0.3
    assert height_of(picture, BLUE, last) > 0.7


def test_the_profile_marks_layers_without_a_place_on_the_scale() -> None:
    history = History()
    history.add(make_record(0, [1.0, np.inf, 0.5, 0.0]))
    picture = profile(history)
    assert height_of(picture, LIGHT.non_finite) < 0.05
    assert height_of(picture, LIGHT.zero) < 0.6


def test_a_profile_of_nothing_but_bad_numbers_can_be_drawn() -> None:
    history = History()
    history.add(make_record(0, [np.inf, np.nan, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert count_in_box(profile(history), LIGHT.non_finite) > 20


@pytest.mark.parametrize("name", ["$x_1$", "a\nb", "слой", "", "x" * 500])
def test_odd_names_are_drawn_literally(name: str) -> None:
    history = History()
    ratios = np.array([0.001, 0.5])
    history.add(make_record(0, [1.0, 2.0], [name, "net"], ratios=ratios))
    for picture in gallery(history):
        assert picture.image.width == 960


def test_the_clipped_norm_stands_below_the_one_before() -> None:
    history = History()
    for step in range(20):
        scalars = {"grad/norm": 100.0, "grad/norm_clipped": 1.0, "grad/clip_rate": 1.0}
        history.add(make_record(step, scalars=scalars))
    picture = total_norm(history)
    assert height_of(picture, BLUE) > height_of(picture, ORANGE) + 0.1


def test_a_non_finite_step_is_marked_above_the_total_norm() -> None:
    history = History()
    for step in range(20):
        bad = step == 15
        scalars = {} if bad else {"grad/norm": 1.0}
        history.add(make_record(step, [np.inf if bad else 1.0], scalars=scalars))
    picture = total_norm(history)
    found = (pixels(picture) == np.asarray(LIGHT.non_finite)).all(axis=2)
    top = round(picture.box[1] * picture.image.height)
    across = np.flatnonzero(found[top:].any(axis=0)).mean() / picture.image.width
    place = (across - picture.box[0]) / (picture.box[2] - picture.box[0])
    assert place == pytest.approx(15.5 / 20, abs=0.01)


def test_levels_lead_back_from_the_last_border_to_the_first() -> None:
    numbers = _measure(make_run(1), "process")
    assert numbers.levels[:, 0].tolist() == [485.0, 515.0, 495.0, 500.0]
    assert numbers.changes[:, 0].tolist() == [30.0, -20.0, 5.0]


def test_what_a_phase_adds_stands_above_what_another_gives_back() -> None:
    picture = memory(make_run(30), kind="process")
    shown = pixels(picture)
    lower = shown[shown.shape[0] // 2 :, :]
    # Three quarters of the colour cover the ground.
    rows = [
        np.flatnonzero((np.abs(lower - wanted).max(axis=2) < 8).sum(axis=1) > 500)
        for wanted in (np.asarray(each) * 0.75 + 255 * 0.25 for each in (BLUE, ORANGE, GREEN))
    ]
    forward, backward, step = (each.mean() for each in rows)
    assert step < forward < backward
    assert len(rows[0]) / len(rows[2]) == pytest.approx(30 / 5, rel=0.2)


def test_layers_that_stand_out_are_named_and_others_are_not() -> None:
    logs = np.random.default_rng(0).normal(-3, 0.05, (40, 10))
    logs[7] += 2
    logs[30] -= 1.5
    logs[31] = np.nan
    assert _outliers(logs) == [7, 30]


def test_a_few_layers_are_all_named() -> None:
    assert _outliers(np.full((3, 4), -3.0)) == [0, 1, 2]


def test_each_optimizer_has_a_colour_of_its_own() -> None:
    history = History()
    for step in range(10):
        scalars = {"grad/norm/opt0": 1.0, "grad/norm/opt1": 100.0, "grad/norm_clipped/opt0": 0.5}
        history.add(make_record(step, scalars=scalars))
    picture = total_norm(history)
    assert height_of(picture, ORANGE) > height_of(picture, BLUE) + 0.2


def test_more_groups_than_there_are_colours_are_counted() -> None:
    few, many = History(), History()
    for history, groups in ((few, 6), (many, 20)):
        scalars = {f"lr/snr/group{group}": 10.0 + group for group in range(groups)}
        history.add(make_record(0, scalars=scalars))
    inked = [
        int((pixels(learning_rate(history))[28:44, :200] != 255).any(axis=2).sum())
        for history in (few, many)
    ]
    assert inked[0] == 0
    assert inked[1] > 100


def test_the_gallery_shows_only_what_has_numbers() -> None:
    assert gallery(History()) == []
    assert [each.name for each in gallery(make_run(3))] == [
        "flow/heatmap", "flow/profile", "flow/update_ratio", "flow/total_norm", "lr/signal",
        "grad/loss_scale", "mem/process",
    ]  # fmt: skip
    quiet = History()
    quiet.add(make_record(0, scalars={"grad/skipped": 0.0, "grad/non_finite": 0.0}))
    assert gallery(quiet) == []


def test_columns_are_those_of_the_bins_that_are_drawn() -> None:
    history = make_run(500)
    for picture in gallery(history):
        if picture.name == "flow/heatmap":
            assert picture.columns == len(history.layers().first)
        elif picture.name == "flow/update_ratio":
            assert picture.columns == len(history.layers("update_ratio").first)
        elif picture.name != "flow/profile":
            scalar = history.scalar("grad/norm")
            assert scalar is not None
            assert picture.columns == len(scalar.first)
