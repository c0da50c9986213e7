from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lightning_recipes.networks import TransformerNet, transformer_net
from lightning_recipes.networks.rotary import rotate
from tests.networks.words import WORDS, pad


def test_without_positions_it_is_the_encoder_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_net, "rotate", lambda features, positions: features)
    torch.manual_seed(0)
    net = TransformerNet(num_classes=3, width=8, num_heads=2, dropout=0.0).double()
    layers: list[Any] = []
    for block in net.blocks:
        ours: Any = block
        layer: Any = nn.TransformerEncoderLayer(
            8, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ).double()
        layer.self_attn.in_proj_weight = ours.qkv.weight
        layer.self_attn.in_proj_bias = nn.Parameter(torch.randn(24).double())
        ours.qkv.bias = layer.self_attn.in_proj_bias
        layer.self_attn.out_proj = ours.out
        layer.norm1, layer.norm2 = ours.attention_norm, ours.mlp[0]
        layer.linear1, layer.linear2 = ours.mlp[1], ours.mlp[3]
        layers.append(layer)

    values, mask = pad(WORDS)
    features = net.embedding(values)
    for layer in layers:
        features = layer(features, src_key_padding_mask=~mask)
    features = net.norm(features) * mask[:, :, None]
    expected = net.head(features.sum(dim=1) / mask.sum(dim=1, keepdim=True))
    torch.testing.assert_close(net(values, mask), expected, rtol=1e-12, atol=1e-12)


def test_no_softmax_is_over_nothing_and_no_step_attends_to_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks: list[Tensor] = []
    attend: Any = F.scaled_dot_product_attention

    def spy(*args: Any, attn_mask: Tensor, **kwargs: Any) -> Any:
        masks.append(attn_mask)
        return attend(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    values, mask = pad(WORDS)
    mask[2] = False
    TransformerNet(num_classes=3, num_layers=3)(values, mask)
    assert len(masks) == 3
    for seen in masks:
        assert seen[2].all()
        assert torch.equal(seen[[0, 1, 3], 0, 0], mask[[0, 1, 3]])


def test_positions_matter_by_their_distance_only(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = TransformerNet(num_classes=3).double().eval()
    expected = net(*pad(WORDS))
    monkeypatch.setattr(
        transformer_net, "rotate", lambda features, positions: rotate(features, positions + 7)
    )
    torch.testing.assert_close(net(*pad(WORDS)), expected, rtol=1e-10, atol=1e-10)


def test_the_distance_of_symbols_matters() -> None:
    torch.manual_seed(0)
    net = TransformerNet(num_classes=3).double().eval()
    near, far = net(*pad([[1, 2, 3, 3, 3], [1, 3, 3, 3, 2]]))
    assert (near - far).abs().max() > 1e-4


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_attention_drops_in_training_only(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    attend: Any = F.scaled_dot_product_attention

    def spy(*args: Any, dropout_p: float, **kwargs: Any) -> Any:
        rates.append(dropout_p)
        return attend(*args, dropout_p=dropout_p, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    net = TransformerNet(num_classes=3, num_layers=1, dropout=rate)
    net(*pad(WORDS))
    net.eval()(*pad(WORDS))
    assert rates == [rate, 0.0]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_symbols": 0}, "num_symbols must be >= 1, got 0"),
        ({"num_layers": 0}, "num_layers must be >= 1, got 0"),
        ({"num_heads": 0}, "num_heads must be >= 1, got 0"),
        ({"width": 10, "num_heads": 2}, r"a multiple of 2 \* num_heads, .* got 10 for 2 heads"),
        ({"width": 0}, "got 0 for 4 heads"),
    ],
)
def test_a_size_out_of_range_is_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerNet(num_classes=3, **sizes)
