from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lightning_recipes.networks import GRUNet
from tests.networks.words import WORDS, pad


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_it_is_a_packed_bidirectional_gru(num_layers: int, side: str) -> None:
    torch.manual_seed(0)
    net = GRUNet(num_classes=3, embedding_width=5, width=4, num_layers=num_layers).double().eval()
    packed = nn.GRU(5, 4, num_layers, batch_first=True, bidirectional=True).double()
    for i in range(num_layers):
        for suffix, direction in (("", net.forwards[i]), ("_reverse", net.backwards[i])):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                weight = getattr(packed, f"{kind}_l{i}{suffix}")
                weight.data.copy_(getattr(direction, f"{kind}_l0"))

    values, mask = pad(WORDS)
    lengths = mask.sum(dim=1)
    inputs = pack_padded_sequence(
        net.embedding(values), lengths, batch_first=True, enforce_sorted=False
    )
    features, _ = pad_packed_sequence(packed(inputs)[0], batch_first=True)
    expected = net.head(features.sum(dim=1) / lengths[:, None])
    logits = net(*pad(WORDS, side=side, left=2, right=1))
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [{"num_symbols": 0}, {"num_layers": 0}])
def test_a_size_out_of_range_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(sizes))} must be >= 1, got 0"):
        GRUNet(num_classes=3, **sizes)


def test_the_symbols_are_1_to_num_symbols() -> None:
    net = GRUNet(num_classes=3, num_symbols=4)
    net(*pad([[1, 4]]))
    with pytest.raises(IndexError):
        net(*pad([[5]]))
