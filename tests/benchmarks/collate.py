"""What padding a batch costs: ``python -m tests.benchmarks.collate``.

64 sequences of integers of log-normal lengths around 100, as lists and as tensors, on one thread.
All are given the same samples, ``{"input_ids": sequence}``. Ours and transformers' collator make of
any samples what they find in them; what is written by hand knows its one field.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_recipes import PadCollate
from tests.benchmarks.report import Table, compare, main

BATCH_SIZE, MEDIAN_LENGTH, SIGMA = 64, 100, 0.5

Samples = list[dict[str, Any]]
Collate = Callable[[Samples], Any]


def lists_by_hand(samples: Samples) -> tuple[Tensor, Tensor]:
    """Do what everyone writes."""
    tensors = [torch.tensor(sample["input_ids"]) for sample in samples]
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    return pad_sequence(tensors, batch_first=True), lengths


def tensors_by_hand(samples: Samples) -> tuple[Tensor, Tensor]:
    """Do the same where sequences are tensors already."""
    tensors = [sample["input_ids"] for sample in samples]
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    return pad_sequence(tensors, batch_first=True), lengths


def hugging_face() -> Collate | None:
    """Return transformers' collator, or None where that is not installed."""
    try:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast
    except ModuleNotFoundError:
        return None
    words = Tokenizer(WordLevel({"[PAD]": 0}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    collate: Collate = DataCollatorWithPadding(tokenizer)
    return collate


def sequences() -> list[list[int]]:
    """Return a batch of lists."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(MEDIAN_LENGTH), SIGMA, BATCH_SIZE).astype(int) + 1
    return [rng.integers(1, 30_000, length).tolist() for length in lengths]


def microseconds(collate: Collate, samples: Samples, num_calls: int) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    for _ in range(num_calls):
        collate(samples)
    return (time.perf_counter() - start) / num_calls * 1e6


def tables(quick: bool) -> Iterator[Table]:
    """Take the figures."""
    torch.set_num_threads(1)
    num_calls, num_rounds = (20, 5) if quick else (100, 15)
    lists = sequences()
    theirs = hugging_face()
    kinds: Mapping[str, tuple[list[Any], Collate]] = {
        "lists of int": (lists, lists_by_hand),
        "tensors": ([torch.tensor(tokens) for tokens in lists], tensors_by_hand),
    }
    for kind, (fields, by_hand) in kinds.items():
        samples = [{"input_ids": field} for field in fields]
        ways: dict[str, Collate | None] = {
            "PadCollate": PadCollate(),
            "pad_sequence by hand": by_hand,
            "transformers' DataCollatorWithPadding": theirs,
        }
        yield compare(
            f"padding {BATCH_SIZE} sequences, {kind}",
            "us a batch",
            {
                name: way and partial(microseconds, way, samples, num_calls)
                for name, way in ways.items()
            },
            num_rounds=num_rounds,
        )


if __name__ == "__main__":
    main(tables, __doc__)
