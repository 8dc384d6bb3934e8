"""Markers that differ in shape, for those who cannot go by colour."""

from gradwatch.pictures.canvas import Layer, Point

# Each marker as a polygon on the unit circle's square; a circle is not one.
MARKERS: dict[str, tuple[Point, ...]] = {
    "triangle": ((-1, -0.8), (1, -0.8), (0, 1)),
    "square": ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),
    "diamond": ((0, -1.1), (1.1, 0), (0, 1.1), (-1.1, 0)),
    "cross": (
        (-1, -0.6), (-0.6, -1), (0, -0.4), (0.6, -1), (1, -0.6), (0.4, 0), (1, 0.6), (0.6, 1),
        (0, 0.4), (-0.6, 1), (-1, 0.6), (-0.4, 0),
    ),
    "bar": ((-0.25, -1), (0.25, -1), (0.25, 1), (-0.25, 1)),
}  # fmt: skip


def draw_marker(layer: Layer, at: Point, kind: str, radius: float) -> None:
    """Draw a marker.

    Args:
        layer: Where.
        at: Its middle.
        kind: ``"circle"``, ``"triangle"``, ``"square"``, ``"diamond"``, ``"cross"``, ``"bar"``.
        radius: Half its size, in pixels.
    """
    if kind == "circle":
        layer.circle(at, radius)
    else:
        x, y = at
        layer.polygon([(x + radius * dx, y + radius * dy) for dx, dy in MARKERS[kind]])
