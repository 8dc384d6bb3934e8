"""Pictures of a run, the same for W&B and the report; drawn with Pillow alone."""

from gradwatch.pictures.gallery import gallery
from gradwatch.pictures.heatmap import heatmap
from gradwatch.pictures.picture import Picture
from gradwatch.pictures.theme import DARK, LIGHT, Theme

__all__ = ["DARK", "LIGHT", "Picture", "Theme", "gallery", "heatmap"]
