"""What every network for ``SequenceClassifier`` promises about its mask."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_recipes.networks import GRUNet, NgramNet, TransformerNet
from tests.networks.words import WORDS, pad

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "GRUNet": partial(GRUNet, num_classes=4, embedding_width=6, width=8),
    "GRUNet, 2 layers": partial(GRUNet, num_classes=4, embedding_width=6, width=8, num_layers=2),
    "NgramNet": partial(NgramNet, num_classes=4, num_buckets=64, width=8),
    "TransformerNet": partial(TransformerNet, num_classes=4, width=16, num_heads=2),
}
SYNC_FREE = [name for name in NETWORKS if name != "NgramNet"]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}

each_network = pytest.mark.parametrize("name", NETWORKS)
words = st.lists(st.lists(st.integers(1, 256), min_size=1, max_size=7), min_size=1, max_size=5)


def make(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name]().to(dtype).eval()


def assert_close(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    tolerance = tolerance or TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@each_network
@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(max_examples=20)
@given(
    words=words,
    left=st.integers(0, 9),
    right=st.integers(0, 9),
    side=st.sampled_from(["left", "right"]),
    fill=st.sampled_from([0, 77, -1, 10**6]),
)
def test_padding_changes_nothing(
    name: str, dtype: torch.dtype, words: list[list[int]], fill: int, **padding: Any
) -> None:
    net = make(name, dtype)
    assert_close(net(*pad(words, fill=fill, **padding)), net(*pad(words, fill=0)))


@each_network
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_sequence_is_classified_the_same_in_any_company(name: str, dtype: torch.dtype) -> None:
    net = make(name, dtype)
    alone = torch.cat([net(*pad([word])) for word in WORDS])
    assert_close(net(*pad(WORDS)), alone)
    assert_close(net(*pad(WORDS[::-1], side="left")), alone.flip(0))


@each_network
def test_loss_and_gradient_are_the_means_of_the_samples_own(name: str) -> None:
    net = make(name)
    target = torch.tensor([0, 3, 1, 1])

    def loss_and_gradients(words: list[list[int]], target: Tensor) -> list[Tensor]:
        loss = F.cross_entropy(net(*pad(words, left=2, right=3)), target)
        return [loss, *torch.autograd.grad(loss, list(net.parameters()))]

    together = loss_and_gradients(WORDS, target)
    alone = [loss_and_gradients([w], t) for w, t in zip(WORDS, target[:, None], strict=True)]
    for batched, single in zip(together, zip(*alone, strict=True), strict=True):
        assert_close(batched, torch.stack(single).mean(dim=0), 1e-10)


@each_network
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("others", [[], WORDS])
def test_a_row_of_padding_has_finite_logits_and_gradients(
    name: str, training: bool, others: list[list[int]]
) -> None:
    net = make(name, torch.float32).train(training)
    values, mask = pad([*others, [1, 2, 3]])
    mask[-1] = False
    logits = net(values, mask)
    assert logits.isfinite().all()
    if not training and others:
        assert_close(logits[:-1], net(*pad(others)))
    # The worst a loss can do to that row.
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", SYNC_FREE)
def test_a_row_of_padding_teaches_the_last_bias_only(name: str) -> None:
    net = make(name)
    values, mask = pad([[1, 2, 3]])
    net(values, torch.zeros_like(mask)).logsumexp(dim=1).sum().backward()
    taught = [key for key, p in net.named_parameters() if p.grad is not None and p.grad.any()]
    assert len(taught) == 1
    assert taught[0].startswith("head")
    assert taught[0].endswith("bias")


@pytest.mark.parametrize("name", SYNC_FREE)
def test_real_steps_apart_are_read_as_if_together(name: str) -> None:
    net = make(name)
    values = torch.tensor([[9, 5, 9, 9, 6, 7, 9, 8]])
    assert_close(net(values, values != 9), net(*pad([[5, 6, 7, 8]])))


@each_network
def test_the_order_of_the_symbols_matters(name: str) -> None:
    logits = make(name)(*pad([[1, 2, 3, 4], [4, 3, 2, 1], [1, 3, 2, 4]]))
    assert torch.pdist(logits).min() > 1e-4


@each_network
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_the_dtype_of_the_symbols_changes_nothing(name: str, dtype: torch.dtype) -> None:
    net = make(name)
    values, mask = pad(WORDS)
    assert torch.equal(net(values.to(dtype), mask), net(values, mask))


@each_network
def test_training_drops_features(name: str) -> None:
    net = make(name).train()
    assert not torch.equal(net(*pad(WORDS)), net(*pad(WORDS)))


@pytest.mark.parametrize("name", SYNC_FREE)
def test_nothing_is_read_back_from_the_device(name: str) -> None:
    # A meta tensor has no numbers: whoever asks for a length, a maximum or an index gets an error.
    values, mask = (tensor.to("meta") for tensor in pad(WORDS))
    logits = make(name).to("meta").train()(values, mask)
    logits.sum().backward()
    assert logits.shape == (4, 4)


@each_network
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 5e-2), (torch.float16, 1e-2)])
def test_half_precision_stays_close_and_finite(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    net = make(name, torch.float32)
    values, mask = pad([*WORDS, [1] * 40])
    mask[1] = False
    with torch.autocast("cpu", dtype=dtype):
        logits = net(values, mask)
    torch.testing.assert_close(logits.float(), net(values, mask), rtol=tolerance, atol=tolerance)
    logits.float().logsumexp(dim=1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@each_network
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_one_is_the_same_for_every_shape(name: str) -> None:
    torch.compiler.reset()
    net = make(name)
    # Dynamo breaks its graph at torch's recurrent layers.
    compiled = torch.compile(net, backend="eager", fullgraph=not name.startswith("GRUNet"))
    for batch in (pad(WORDS), pad(WORDS[:2], right=3), pad(WORDS[1:], side="left")):
        assert_close(compiled(*batch), net(*batch))


@pytest.mark.gpu
@pytest.mark.parametrize("name", SYNC_FREE)
def test_the_host_does_not_wait_for_the_gpu(name: str) -> None:
    net = make(name, torch.float32).cuda().train()
    values, mask = (tensor.cuda() for tensor in pad(WORDS))
    torch.cuda.set_sync_debug_mode("error")
    try:
        net(values, mask).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
