"""Small networks that are ready to be named in a config."""

from lightning_recipes.networks.conv_net import ConvNet
from lightning_recipes.networks.ngram_net import NgramNet

__all__ = ["ConvNet", "NgramNet"]
