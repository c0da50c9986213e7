"""What padding a batch costs: ``python -m tests.benchmarks.collate``."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_recipes import PadCollate
from tests.benchmarks.loader import report

BATCH_SIZE, MEDIAN_LENGTH, SIGMA = 64, 100, 0.5
NUM_CALLS = 200


def lists_by_hand(lists: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Do what everyone writes."""
    values = pad_sequence([torch.tensor(tokens) for tokens in lists], batch_first=True)
    return values, torch.tensor([len(tokens) for tokens in lists])


def tensors_by_hand(tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Do the same where tokens are tensors already."""
    lengths = torch.tensor([len(tokens) for tokens in tensors])
    return pad_sequence(tensors, batch_first=True), lengths


def hugging_face() -> Callable[[list[dict[str, Any]]], Any] | None:
    """Return transformers' collator, or None where that is not installed."""
    try:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast
    except ModuleNotFoundError:
        return None
    words = Tokenizer(WordLevel({"[PAD]": 0}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    collate: Callable[[list[dict[str, Any]]], Any] = DataCollatorWithPadding(tokenizer)
    return collate


def main() -> None:
    """Print the questions."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(MEDIAN_LENGTH), SIGMA, BATCH_SIZE).astype(int) + 1
    arrays = [rng.integers(1, 30_000, length) for length in lengths]
    lists = [array.tolist() for array in arrays]
    tensors = [torch.from_numpy(array) for array in arrays]
    collate = PadCollate()

    def times(function: Callable[[Any], Any], samples: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in range(NUM_CALLS):
                function(samples)

        return run

    def compare(title: str, other: Callable[[Any], Any], samples: Any) -> None:
        report(title, times(collate, samples), times(other, samples), per=NUM_CALLS)

    compare("lists of int: ours, pad_sequence by hand", lists_by_hand, lists)
    compare("tensors: ours, pad_sequence by hand", tensors_by_hand, tensors)
    theirs = hugging_face()
    if theirs is None:
        print("transformers is not installed: no comparison with DataCollatorWithPadding")
        return
    for kind, fields in (("lists of int", lists), ("tensors", tensors)):
        samples = [{"input_ids": field} for field in fields]
        compare(f"{kind}: ours, DataCollatorWithPadding", theirs, samples)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
