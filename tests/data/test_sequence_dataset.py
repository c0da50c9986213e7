import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_recipes import SequenceDataset

VALUES = torch.arange(10, 17)
OFFSETS = torch.tensor([0, 3, 3, 4, 7])
PARTS = [[10, 11, 12], [], [13], [14, 15, 16]]
LABELS = torch.tensor([0.5, 1.5, 2.5, 3.5])

each_kind_of_source = pytest.mark.parametrize("kind", ["tensor", "array", "read-only", "path"])


def make(kind: str, path: Path, *, labels: bool = True) -> SequenceDataset:
    columns: dict[str, Any] = {"values": VALUES, "offsets": OFFSETS, "labels": LABELS}
    if kind == "path":
        SequenceDataset(VALUES, OFFSETS, labels=LABELS).save(path / "saved")
        columns = {name: path / "saved" / f"{name}.npy" for name in columns}
    elif kind != "tensor":
        columns = {name: column.numpy().copy() for name, column in columns.items()}
        for column in columns.values():
            column.flags.writeable = kind == "array"
    if not labels:
        del columns["labels"]
    return SequenceDataset(columns.pop("values"), columns.pop("offsets"), **columns)


def as_lists(dataset: SequenceDataset) -> list[list[float]]:
    return [dataset[i].tolist() for i in range(len(dataset))]


@given(
    parts=st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=6),
    width=st.sampled_from([(), (2,), (2, 1)]),
    dtype=st.sampled_from([torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64]),
)
def test_sequences_come_back_as_they_were(
    parts: list[list[int]], width: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensors = [
        torch.tensor(part).reshape(-1, *[1] * len(width)).expand(-1, *width).to(dtype)
        for part in parts
    ]
    dataset = SequenceDataset.from_sequences(tensors)
    assert len(dataset) == len(parts)
    assert dataset.lengths.dtype == np.int64
    assert dataset.lengths.tolist() == list(map(len, parts))
    for i, tensor in enumerate(tensors):
        assert dataset[i].dtype == dtype
        assert torch.equal(dataset[i], tensor)
        assert torch.equal(dataset[i - len(parts)], tensor)


@each_kind_of_source
def test_every_source_gives_the_same_samples(kind: str, tmp_path: Path) -> None:
    dataset = make(kind, tmp_path, labels=False)
    assert as_lists(dataset) == PARTS
    labelled = make(kind, tmp_path / "more")
    sequences, labels = zip(*(labelled[i] for i in range(4)), strict=True)
    assert [sequence.tolist() for sequence in sequences] == PARTS
    assert torch.equal(torch.stack(labels), LABELS)


@each_kind_of_source
def test_changing_a_sample_in_place_changes_no_data(kind: str, tmp_path: Path) -> None:
    dataset = make(kind, tmp_path)
    for i in range(len(dataset)):
        sequence, label = dataset[i]
        sequence.fill_(-1)
        label.fill_(-1)
    assert [dataset[i][0].tolist() for i in range(4)] == PARTS
    assert [dataset[i][1].item() for i in range(4)] == LABELS.tolist()


@each_kind_of_source
def test_iteration_ends(kind: str, tmp_path: Path) -> None:
    dataset: Any = make(kind, tmp_path, labels=False)
    assert [sequence.tolist() for sequence in dataset] == PARTS
    for index in (4, -5):
        with pytest.raises(IndexError):
            dataset[index]


def test_lengths_are_known_without_the_values(tmp_path: Path) -> None:
    dataset = make("path", tmp_path)
    dataset.values = None  # type: ignore[assignment]
    assert dataset.lengths.tolist() == [3, 0, 1, 3]


def test_changing_the_lengths_changes_no_data() -> None:
    dataset = SequenceDataset(VALUES, OFFSETS)
    dataset.lengths[:] = 0
    assert dataset.lengths.tolist() == [3, 0, 1, 3]


def test_sequences_of_every_kind_are_taken() -> None:
    buffer = np.frombuffer(b"\x01\x02", np.uint8)
    assert as_lists(SequenceDataset.from_sequences([buffer, buffer[::-1]])) == [[1, 2], [2, 1]]
    lists = SequenceDataset.from_sequences([[1], [], [2, 3]], dtype=torch.int32)
    assert as_lists(lists) == [[1], [], [2, 3]]
    assert lists[1].dtype == torch.int32
    generated = SequenceDataset.from_sequences(torch.ones(n) for n in (2, 1))
    assert as_lists(generated) == [[1.0, 1.0], [1.0]]


@pytest.mark.parametrize("labels", [None, LABELS, LABELS[:, None].expand(-1, 2)])
def test_what_was_saved_is_loaded_with_its_dtypes(labels: Any, tmp_path: Path) -> None:
    dataset = SequenceDataset(VALUES.to(torch.int16), OFFSETS, labels=labels)
    dataset.save(tmp_path / "deep" / "saved")
    loaded = SequenceDataset.load(tmp_path / "deep" / "saved")
    for i in range(4):
        torch.testing.assert_close(loaded[i], dataset[i], rtol=0, atol=0)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["saved"]


def test_a_loaded_one_reads_its_files_when_asked(tmp_path: Path) -> None:
    dataset = make("path", tmp_path, labels=False)
    on_disk = np.load(tmp_path / "saved" / "values.npy", mmap_mode="r+")
    on_disk[0] = 99
    on_disk.flush()
    assert dataset[0].tolist() == [99, 11, 12]


def test_saving_over_a_data_set_is_refused(tmp_path: Path) -> None:
    dataset = make("path", tmp_path)
    with pytest.raises(FileExistsError, match="makes a new directory"):
        dataset.save(tmp_path / "saved")


def test_what_a_killed_save_left_is_no_part_of_the_next(tmp_path: Path) -> None:
    partial = tmp_path / ".saved.partial"
    partial.mkdir()
    np.save(partial / "labels.npy", np.zeros(4))
    SequenceDataset(VALUES, OFFSETS).save(tmp_path / "saved")
    assert as_lists(SequenceDataset.load(tmp_path / "saved")) == PARTS


def test_a_data_set_without_a_single_step_can_be_saved(tmp_path: Path) -> None:
    SequenceDataset(VALUES[:0], torch.tensor([0, 0])).save(tmp_path / "saved")
    assert as_lists(SequenceDataset.load(tmp_path / "saved")) == [[]]


def test_a_mapped_one_is_pickled_as_its_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SequenceDataset(torch.zeros(100_000), torch.tensor([0, 5, 100_000])).save(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    dataset = SequenceDataset.load("saved")
    monkeypatch.chdir("/")
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)
    assert torch.equal(again[0], torch.zeros(5))
    assert again.lengths.tolist() == [5, 99_995]


@each_kind_of_source
def test_a_pickled_one_is_the_same(kind: str, tmp_path: Path) -> None:
    dataset = make(kind, tmp_path)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(dataset))))
    for i in range(4):
        torch.testing.assert_close(again[i], dataset[i], rtol=0, atol=0)
    assert dataset.lengths.tolist() == [3, 0, 1, 3]  # the one that was pickled still works


def test_files_that_changed_meanwhile_are_refused(tmp_path: Path) -> None:
    pickled = pickle.dumps(make("path", tmp_path))
    np.save(tmp_path / "saved" / "values.npy", np.arange(5))
    with pytest.raises(ValueError, match="from 0 to the number of values, 5, got 0 to 7"):
        pickle.loads(pickled)


def _first(samples: list[tuple[Tensor, Tensor]]) -> list[float]:
    return [*samples[0][0].tolist(), samples[0][1].item()]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_load_the_same_samples(start: str, tmp_path: Path) -> None:
    loader = DataLoader(
        make("path", tmp_path), num_workers=1, multiprocessing_context=start, collate_fn=_first
    )
    expected = [[*part, label] for part, label in zip(PARTS, (0.5, 1.5, 2.5, 3.5), strict=True)]
    assert list(loader) == expected


@pytest.mark.parametrize(
    ("values", "offsets", "labels", "error", "message"),
    [
        (VALUES, [1, 7], None, ValueError, "from 0 to the number of values, 7, got 1 to 7"),
        (VALUES, [0, 6], None, ValueError, "got 0 to 6"),
        (VALUES, [0, 8], None, ValueError, "got 0 to 8"),
        (VALUES, [3, 4], None, ValueError, "begin with a 0"),
        (VALUES, [0, 5, 4, 7], None, ValueError, "got 5 and then 4, .* sequence 1 a negative"),
        (VALUES, [0, -1, 7], None, ValueError, "got 0 and then -1, .* sequence 0"),
        (VALUES, [[0, 7]], None, ValueError, r"shape \(S \+ 1,\), got \(1, 2\)"),
        (VALUES, np.empty(0, np.int64), None, ValueError, r"got \(0,\)"),
        (VALUES, [0.0, 7.0], None, TypeError, "integers, got float64"),
        (VALUES, [False, True], None, TypeError, "integers, got bool"),
        (VALUES, 7, None, ValueError, "offsets must have a first axis"),
        (torch.tensor(3), [0, 1], None, ValueError, "values must have a first axis"),
        (np.array(["a"]), [0, 1], None, TypeError, "values must have a dtype .*, got <U1"),
        (np.array([None]), [0, 1], None, TypeError, "values must have a dtype .*, got object"),
        (VALUES.to("meta"), [0, 7], None, TypeError, "values must be on the CPU"),
        (VALUES, [0, 3, 7], LABELS[:1], ValueError, "one label per sequence, got 1 for 2"),
        (VALUES, [0, 7], np.array(["a"]), TypeError, "labels must have a dtype"),
    ],
)
def test_what_does_not_fit_is_refused(
    values: Any, offsets: Any, labels: Any, error: type[Exception], message: str
) -> None:
    offsets = np.array(offsets)
    with pytest.raises(error, match=message):
        SequenceDataset(values, offsets, labels=labels)


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "at least one sequence, got none"),
        ([torch.ones(2), torch.ones(2, 3)], r"sequence 1 has \(torch.float32, \(3,\)\)"),
        ([torch.ones(2), torch.ones(2).int()], "sequence 1 has .torch.int32"),
        ([[1], []], "An empty list has no dtype of its own"),
        ([1, 2], "sequence 0 has .* and 0 axes"),
    ],
)
def test_sequences_that_disagree_are_refused(sequences: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceDataset.from_sequences(sequences)
