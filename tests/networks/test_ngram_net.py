import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lightning_recipes.networks.ngram_net import NgramNet

WORDS = [[5, 6, 7, 8], [9], [300, 2, 2], [40, 41, 40, 41, 42, 43]]


@pytest.fixture
def net() -> NgramNet:
    torch.manual_seed(0)
    return NgramNet(num_classes=4, num_buckets=1024, width=16).eval()


def _batch(words: list[list[int]], *, left: int = 0, right: int = 0) -> tuple[Tensor, Tensor]:
    longest = max(map(len, words))
    values, mask = [], []
    for word in words:
        padding = (left, longest - len(word) + right)
        values.append(F.pad(torch.tensor(word, dtype=torch.int64), padding, value=77))
        mask.append(F.pad(torch.ones(len(word), dtype=torch.bool), padding))
    return torch.stack(values), torch.stack(mask)


@pytest.mark.parametrize(("left", "right"), [(0, 1), (0, 9), (1, 0), (9, 0), (3, 4)])
def test_more_padding_changes_nothing(net: NgramNet, left: int, right: int) -> None:
    torch.testing.assert_close(net(*_batch(WORDS, left=left, right=right)), net(*_batch(WORDS)))


def test_a_sequence_is_classified_the_same_in_any_company(net: NgramNet) -> None:
    alone = torch.cat([net(*_batch([word])) for word in WORDS])
    torch.testing.assert_close(net(*_batch(WORDS)), alone)
    torch.testing.assert_close(net(*_batch(WORDS[::-1])), alone.flip(0))


def test_the_order_of_the_symbols_matters(net: NgramNet) -> None:
    logits = net(*_batch([[1, 2, 3, 4], [4, 3, 2, 1], [1, 3, 2, 4]]))
    assert torch.pdist(logits).min() > 1e-2


def test_single_symbols_are_a_bag() -> None:
    net = NgramNet(num_classes=4, max_ngram=1).eval()
    forwards, backwards = net(*_batch([[1, 2, 3, 4], [4, 3, 2, 1]]))
    torch.testing.assert_close(forwards, backwards)


@pytest.mark.parametrize(("max_ngram", "counts"), [(1, [4, 1]), (2, [9, 3]), (5, [18, 4])])
def test_every_ngram_counts_once_with_the_ends_as_symbols(
    max_ngram: int, counts: list[int]
) -> None:
    net = NgramNet(num_classes=1, max_ngram=max_ngram, num_buckets=8, width=1).eval()
    net.head = nn.Sequential()
    nn.init.ones_(net.table)
    # Ones summed over n n-grams and divided by sqrt(n).
    features = net(*_batch([[5, 6, 7, 8], [9]]))
    torch.testing.assert_close(features[:, 0] ** 2, torch.tensor(counts).float())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_the_dtype_of_the_symbols_changes_nothing(net: NgramNet, dtype: torch.dtype) -> None:
    values, mask = _batch([[5, 6, 7, 8], [9]])
    torch.testing.assert_close(net(values.to(dtype), mask), net(values, mask))


def test_training_drops_ngrams_and_has_a_finite_gradient(net: NgramNet) -> None:
    net.train()
    batch = _batch(WORDS)
    assert not torch.equal(net(*batch), net(*batch))
    net(*batch).logsumexp(dim=1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("words", [[[], [5, 6, 7]], [[], []]])
def test_an_empty_sequence_is_that_of_a_bag_without_ngrams(
    net: NgramNet, words: list[list[int]]
) -> None:
    without_ngrams = net.head(torch.zeros(net.table.shape[1]))
    for padding in (0, 2):
        logits = net(*_batch(words, right=padding))
        torch.testing.assert_close(logits[0], without_ngrams)
        torch.testing.assert_close(logits[1:], net(*_batch(words[1:])))


def test_an_empty_sequence_has_a_finite_gradient(net: NgramNet) -> None:
    net.train()
    net(*_batch([[], [5, 6]])).logsumexp(dim=1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
