"""Pictures of a run, the same for W&B and the report; drawn with Pillow alone."""

from gradwatch.pictures.gallery import gallery
from gradwatch.pictures.graph import graph_chain
from gradwatch.pictures.heatmap import heatmap
from gradwatch.pictures.memory import memory
from gradwatch.pictures.picture import Picture
from gradwatch.pictures.profile import profile
from gradwatch.pictures.rates import learning_rate
from gradwatch.pictures.ratios import update_ratio
from gradwatch.pictures.roofline import roofline
from gradwatch.pictures.scaler import loss_scale
from gradwatch.pictures.theme import DARK, LIGHT, Theme
from gradwatch.pictures.totals import total_norm
from gradwatch.pictures.trials import trials

__all__ = [
    "DARK",
    "LIGHT",
    "Picture",
    "Theme",
    "gallery",
    "graph_chain",
    "heatmap",
    "learning_rate",
    "loss_scale",
    "memory",
    "profile",
    "roofline",
    "total_norm",
    "trials",
    "update_ratio",
]
