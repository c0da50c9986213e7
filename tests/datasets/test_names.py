import sys
from collections import Counter

import pytest
import torch
from babel import Locale

from lightning_recipes import NamesDataModule, Padded
from lightning_recipes.datasets.names import LANGUAGES, load_names


@pytest.fixture(scope="module")
def names() -> tuple[list[str], list[int]]:
    return load_names()


@pytest.fixture(scope="module")
def data() -> NamesDataModule:
    module = NamesDataModule(batch_size=64)
    module.setup("fit")
    return module


def test_there_are_about_19_700_names_of_2_to_over_60_bytes(
    names: tuple[list[str], list[int]],
) -> None:
    lengths = [len(name.encode()) for name in names[0]]
    assert len(lengths) == pytest.approx(19_700, rel=0.03)  # Babel's next CLDR has a few others
    assert min(lengths) == 2
    assert max(lengths) > 60
    assert set(names[1]) == set(range(len(LANGUAGES)))


def test_a_name_occurs_in_its_language_and_in_no_other(names: tuple[list[str], list[int]]) -> None:
    by_language = []
    for language in LANGUAGES:
        locale = Locale(language)
        kinds = (locale.languages, locale.territories, locale.scripts, locale.currencies)
        by_language.append({name for kind in kinds for name in kind.values()})
    num_languages = Counter(name for found in by_language for name in found)
    assert all(num_languages[name] == 1 for name in names[0])
    assert all(name in by_language[language] for name, language in zip(*names, strict=True))
    assert len(set(names[0])) == len(names[0]) == list(num_languages.values()).count(1)


def test_split_is_80_10_10_disjoint_and_the_same_for_every_seed_and_stage(
    data: NamesDataModule,
) -> None:
    other = NamesDataModule(seed=5)
    other.setup("test")
    parts, others = (
        [list(part.indices) for part in (d.train_set, d.val_set, d.test_set)]  # type: ignore[union-attr]
        for d in (data, other)
    )
    assert parts == others
    total = sum(map(len, parts))
    assert sorted(index for part in parts for index in part) == list(range(total))
    assert [len(part) / total for part in parts] == pytest.approx([0.8, 0.1, 0.1], abs=1e-3)


def test_ids_are_bytes_plus_1_and_0_is_padding(
    data: NamesDataModule, names: tuple[list[str], list[int]]
) -> None:
    texts, languages = [], []
    for sequences, target in data.val_dataloader():
        assert isinstance(sequences, Padded)
        assert (sequences.values.dtype, target.dtype) == (torch.int64, torch.int64)
        for ids, length in zip(sequences.values.tolist(), sequences.lengths.tolist(), strict=True):
            texts.append(bytes(i - 1 for i in ids[:length]).decode())
            assert not any(ids[length:])
        languages += target.tolist()
    indices = data.val_set.indices  # type: ignore[union-attr]
    assert texts == [names[0][index] for index in indices]
    assert languages == [names[1][index] for index in indices]


def test_without_babel_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "lightning-recipes\[examples\]"'):
        NamesDataModule().setup("fit")
