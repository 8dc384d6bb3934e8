"""The learning rate that follows the gradient's signal: SNR, factor and effective rate."""

from gradwatch.history import History
from gradwatch.pictures.panel import Timeline
from gradwatch.pictures.picture import Picture
from gradwatch.pictures.scale import log_scale
from gradwatch.pictures.series import draw, entries, extremes, find, steps_of, tell_left_out
from gradwatch.pictures.theme import LIGHT, Theme

TITLE = "Learning rate and signal"
CAPTION = (
    "SNR is the norm of the weights over that of the gradient; the factor is what the scheduled"
    " rate was multiplied with, the effective rate what the optimizer stepped with."
)
PANELS = (
    ("lr/snr", "SNR (no unit)", 130),
    ("lr/factor", "factor (×)", 110),
    ("lr/effective", "effective rate", 110),
)
KEYS = tuple(key for key, _, _ in PANELS)
GUIDES = (
    (1.0, "1: the gradient is as large as the weights"),
    (100.0, "100: the gradient is a hundred times smaller"),
)


def learning_rate(history: History, *, theme: Theme = LIGHT) -> Picture:
    """Draw SNR, factor and effective rate of each parameter group under one another.

    Args:
        history: The run so far; may be empty.
        theme: Colours.
    """
    found = {key: find(history, key, theme) for key, _, _ in PANELS}
    drawn = [panel for panel in PANELS if found[panel[0]]] or [PANELS[0]]
    line = Timeline(
        "lr/signal", TITLE, CAPTION, steps=steps_of(*found.values()),
        heights=[height for _, _, height in drawn], theme=theme,
    )  # fmt: skip
    for index, (key, title, _) in enumerate(drawn):
        scale = log_scale(*extremes(found[key]))
        panel = line.panel(scale, title, entries(found[key]) if index == 0 else ())
        draw(panel, found[key])
        for value, label in GUIDES if key == "lr/snr" else ():
            panel.guide(value, label)
    tell_left_out(line.canvas, history, drawn[0][0])
    return line.finish()
