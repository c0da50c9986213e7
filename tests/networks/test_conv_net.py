import pytest
import torch

from lightning_recipes.networks.conv_net import ConvNet


@pytest.mark.parametrize(("in_channels", "height", "width"), [(1, 8, 8), (1, 28, 28), (3, 9, 16)])
def test_images_of_every_size_become_logits(in_channels: int, height: int, width: int) -> None:
    net = ConvNet(num_classes=10, in_channels=in_channels, width=4)
    images = torch.randn(5, in_channels, height, width)
    logits = net(images)
    assert logits.shape == (5, 10)
    logits.logsumexp(dim=1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_an_image_is_classified_the_same_in_any_company() -> None:
    net = ConvNet(num_classes=3, width=4).eval()
    images = torch.randn(4, 1, 8, 8)
    torch.testing.assert_close(net(images)[2:3], net(images[2:3]))


def test_where_something_is_matters() -> None:
    torch.manual_seed(0)
    net = ConvNet(num_classes=3, width=4).eval()
    images = torch.zeros(1, 1, 8, 8)
    images[..., 1, 1] = 9.0
    assert not torch.allclose(net(images), net(images.flip(-1)), atol=1e-4)
