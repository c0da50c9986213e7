"""Small networks that are ready to be named in a config."""

from lightning_recipes.networks.conv_net import ConvNet
from lightning_recipes.networks.gru_net import GRUNet
from lightning_recipes.networks.ngram_net import NgramNet
from lightning_recipes.networks.pooling import masked_mean
from lightning_recipes.networks.transformer_net import TransformerNet

__all__ = ["ConvNet", "GRUNet", "NgramNet", "TransformerNet", "masked_mean"]
