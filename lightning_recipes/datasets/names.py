"""Which language is this name written in? About 19,700 short strings, from Babel."""

from typing import Literal, final

import torch
from torch.utils.data import Subset

from lightning_recipes.data.base import BucketsCallable, RecipeDataModule
from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.sequence_dataset import SequenceDataset
from lightning_recipes.data.split import split_indices
from lightning_recipes.datasets.extra import missing_extra

__all__ = ["LANGUAGES", "NamesDataModule", "load_names"]

LANGUAGES = (
    *("de", "nl", "sv", "da", "nb", "is", "en", "fr", "es", "it", "pt", "ro"),
    *("ca", "pl", "cs", "sk", "hr", "sl", "hu", "fi", "et", "lt", "lv", "tr"),
)
"""The classes, in the order of their indices."""

_SHARES = (0.8, 0.1, 0.1)


@final
class NamesDataModule(RecipeDataModule):
    """Names as batches ``(names, languages)`` of ragged byte sequences; needs Babel.

    CLDR's display names of languages, territories, scripts and currencies in 24 languages written
    with the Latin alphabet; only names that occur in one language. ``names`` is
    :class:`~lightning_recipes.Padded` with the UTF-8 bytes plus 1 (1..256, int64, 0 is padding),
    shape (B, T); ``languages`` are indices into ``LANGUAGES``, int64, shape (B,). The split is 80 %
    training, 10 % validation, 10 % test, always the same.

    Source:
        Unicode Common Locale Data Repository, https://cldr.unicode.org, as shipped in Babel.

    Args:
        batch_size: As in :class:`~lightning_recipes.RecipeDataModule`.
        eval_batch_size: As in :class:`~lightning_recipes.RecipeDataModule`.
        num_workers: As in :class:`~lightning_recipes.RecipeDataModule`.
        seed: As in :class:`~lightning_recipes.RecipeDataModule`.
        buckets: As in :class:`~lightning_recipes.RecipeDataModule`.

    Raises:
        ModuleNotFoundError: Babel is not installed.
    """

    def __init__(
        self,
        *,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        num_workers: int | Literal["auto"] = "auto",
        seed: int = 0,
        buckets: BucketsCallable | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
            collate_fn=PadCollate(),
            buckets=buckets,
        )

    def setup(self, stage: str) -> None:
        """Load and split the names."""
        names, languages = load_names()
        dataset = SequenceDataset.from_sequences(
            (torch.tensor(list(name.encode())) + 1 for name in names),
            labels=torch.tensor(languages),
        )
        train, val, test = split_indices(len(names), _SHARES)
        self.train_set = Subset(dataset, train.tolist())
        self.val_set = Subset(dataset, val.tolist())
        self.test_set = self.predict_set = Subset(dataset, test.tolist())


def load_names() -> tuple[list[str], list[int]]:
    """Return all names, sorted, and the index of the language each is written in."""
    try:
        from babel import Locale
    except ModuleNotFoundError as error:
        raise missing_extra("NamesDataModule", error) from error
    languages: dict[str, set[int]] = {}
    for index, language in enumerate(LANGUAGES):
        locale = Locale(language)
        for names in (locale.languages, locale.territories, locale.scripts, locale.currencies):
            for name in names.values():
                languages.setdefault(name, set()).add(index)
    unique = sorted((name, found.pop()) for name, found in languages.items() if len(found) == 1)
    return [name for name, _ in unique], [language for _, language in unique]
