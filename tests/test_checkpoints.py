import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Trainer
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from lightning_recipes import BrokenCheckpoint, intact_checkpoints, newest_intact, verify
from tests.checkpoint_files import (
    Model,
    Payload,
    contents,
    plant_in_metadata,
    save,
    save_shards,
    train,
)

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return save(tmp_path / "good.ckpt")


def reason(path: Path, **options: Any) -> str:
    with pytest.raises(BrokenCheckpoint) as caught:
        verify(path, **options)
    assert str(path) in str(caught.value)
    return caught.value.reason


def same(one: Any, other: Any) -> bool:
    """Compare what two files hold, bit for bit."""
    saved = [io.BytesIO(), io.BytesIO()]
    for value, file in zip((one, other), saved, strict=True):
        torch.save(value, file)
    members = [zipfile.ZipFile(file) for file in saved]
    names = [n for n in members[0].namelist() if "data" in n and "serialization" not in n]
    return all(members[0].read(n) == members[1].read(n) for n in names)


def test_what_lightning_writes_is_intact_and_the_newest_is_found(tmp_path: Path) -> None:
    train(tmp_path)
    judged = intact_checkpoints(tmp_path, finite=True)
    names = [f"step={step:09d}.ckpt" for step in (3, 2, 1)]
    assert judged == dict.fromkeys((tmp_path / name for name in names), None)
    assert newest_intact(tmp_path) == tmp_path / names[0]


def test_a_file_of_weights_only_is_complete_but_nothing_to_resume_from(tmp_path: Path) -> None:
    trainer = train(tmp_path / "resume", num_steps=1)
    path = tmp_path / "weights.ckpt"
    trainer.save_checkpoint(path, weights_only=True)
    verify(path, resumable=False)
    assert reason(path) == "weights only: it lacks 'optimizer_states', 'lr_schedulers'"
    with pytest.raises(KeyError):
        Trainer(accelerator="cpu", logger=False, max_steps=2, enable_checkpointing=False).fit(
            Model(), ckpt_path=path
        )


def test_a_file_cut_anywhere_is_refused_and_the_one_before_is_used(tmp_path: Path) -> None:
    older, path = save(tmp_path / "step=1.ckpt", 1), save(tmp_path / "step=2.ckpt", 2)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 64), len(whole) - 1]:
        path.write_bytes(whole[:length])
        expected = f"ends at byte {length:,}" if length > 3 else "the file is empty"
        assert expected in reason(path)
        assert newest_intact(tmp_path) == older
    path.write_bytes(whole)
    assert newest_intact(tmp_path) == path


def test_a_flipped_byte_is_refused_or_changes_nothing(good: Path) -> None:
    whole, expected = good.read_bytes(), torch.load(good, weights_only=True)
    num_refused = 0
    positions = range(0, len(whole), 5)
    for position in positions:
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        good.write_bytes(damaged)
        try:
            verify(good)
        except BrokenCheckpoint:
            num_refused += 1
        else:  # padding, dates and names of a zip file
            assert same(torch.load(good, weights_only=True), expected), position
    assert num_refused > len(positions) / 3


def test_every_byte_of_the_content_counts(good: Path) -> None:
    whole = good.read_bytes()
    for member in zipfile.ZipFile(good).infolist():
        content = zipfile.ZipFile(good).read(member)
        start = whole.index(content, member.header_offset)
        for position in range(start, start + len(content), 7):
            damaged = bytearray(whole)
            damaged[position] ^= 1
            good.write_bytes(damaged)
            assert f"member {member.filename} at byte" in reason(good)
    good.write_bytes(whole)


def test_the_end_of_a_large_member_counts(tmp_path: Path) -> None:
    path = save(tmp_path / "x.ckpt", state_dict={"w": torch.full((600_000,), 1.5)})
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rindex(torch.tensor(1.5).numpy().tobytes())] ^= 1
    path.write_bytes(damaged)
    assert "Bad CRC-32" in reason(path)


def test_a_member_that_torch_would_not_read_is_refused(good: Path) -> None:
    # torch's reader takes it for a folder, and returns memory that nobody has written to.
    with zipfile.ZipFile(good) as archive:
        directory = archive.start_dir
    damaged = bytearray(good.read_bytes())
    damaged[damaged.index(b"good/data/0", directory) - 8] ^= 0x10
    good.write_bytes(damaged)
    assert reason(good) == "the zip directory is damaged at good/data/0"


def other_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def compressed(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def script(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", b"")
        archive.writestr("net/constants.pkl", b"")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def without_checksums(path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save(path)
    finally:
        torch.serialization.set_crc32_options(True)


OTHERS: dict[str, Callable[[Path], Any]] = {
    "the file is empty": lambda path: path.write_bytes(b""),
    "not a zip file, which torch.save writes: it begins with b'hell'": lambda path: path.write_text(
        "hello"
    ),
    "it has no data.pkl": other_archive,
    "is compressed": compressed,
    "TorchScript": script,
    "a folder without .metadata": folder,
    "not a file": pipe,
    "no checksums": without_checksums,
    "not a zip file": lambda path: torch.save({}, path, _use_new_zipfile_serialization=False),
    "it holds a list, no dict": lambda path: torch.save([1], path),
    "lacks 'state_dict' and holds 'model', 'optimizer'": lambda path: torch.save(
        {"model": {}, "optimizer": {}}, path
    ),
    "lacks 'state_dict' and holds nothing": lambda path: torch.save({}, path),
    "lacks 'loops'": lambda path: save(path, loops=None),
    "lacks 'epoch'": lambda path: save(path, epoch=None),
    "lacks 'global_step'": lambda path: torch.save(
        {k: v for k, v in contents().items() if k != "global_step"}, path
    ),
    "lacks 'pytorch-lightning_version'": lambda path: torch.save(
        {k: v for k, v in contents().items() if "version" not in k}, path
    ),
    "it lacks 'optimizer_states'": lambda path: save(path, optimizer_states=None),
    "it lacks 'lr_schedulers'": lambda path: save(path, lr_schedulers=None),
    "'state_dict' is a list": lambda path: save(path, state_dict=[]),
    "more than plain types and tensors: pathlib.": lambda path: save(path, where=Path("x")),
}


@pytest.mark.parametrize("expected", OTHERS)
def test_another_kind_of_file_is_refused_and_the_one_before_is_used(
    expected: str, tmp_path: Path
) -> None:
    older, path = save(tmp_path / "step=1.ckpt", 1), save(tmp_path / "step=2.ckpt", 2)
    OTHERS[expected](path)
    assert expected in reason(path)
    assert newest_intact(tmp_path) == older
    found = intact_checkpoints(tmp_path)
    assert list(found) == [path, older]
    assert found[older] is None
    assert expected in str(found[path])


@settings(max_examples=60)
@given(st.binary(max_size=300), st.sampled_from([b"", b"PK\x03\x04"]))
def test_bytes_are_refused_and_nothing_else_is_raised(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, beginning: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.ckpt"
    path.write_bytes(beginning + content)
    assert reason(path)


@settings(max_examples=100)
@given(data=st.data())
def test_any_pickle_in_a_right_zip_is_refused_and_nothing_else_is_raised(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    opcodes = [b"\x80\x02", b"}", b"]", b"(", b"K\x01", b"X\x01\0\0\0a", b"s", b"u", b"R", b"b"]
    opcodes += [b"cbuiltins\nset\n", b"ctorch\nSize\n", b"ctorch\nTensor\n", b"Q", b"\x81", b"\x85"]
    opcodes += [b"ctorch._utils\n_rebuild_tensor_v2\n", b"e", b"a", b"h\0", b"q\0", b"0", b"\xff"]
    content = b"".join(data.draw(st.lists(st.sampled_from(opcodes), max_size=12))) + b"."
    path = tmp_path_factory.getbasetemp() / "pickle.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", content)
        archive.writestr("a/version", "3\n")
    assert reason(path)


@settings(max_examples=60)
@given(data=st.data())
def test_any_metadata_is_refused_and_nothing_else_is_raised(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    opcodes = [b"}", b"]", b"(", b"K\x01", b"\x8c\x01a", b"s", b"u", b"R", b"b", b"\x94", b"h\0"]
    opcodes += [b"\x8c\x05torch\x8c\x04Size\x93", b"\x8c\x05torch\x8c\x07float32\x93", b")", b"t"]
    opcodes += [b"\x81", b"N", b"\x85", b"r\xff\xff\xff\xff", b"\x96\xff\xff\xff\xff\xff\0\0\0"]
    content = data.draw(st.lists(st.sampled_from(opcodes), max_size=12) | st.binary(max_size=40))
    path = tmp_path_factory.getbasetemp() / "shards"
    path.mkdir(exist_ok=True)
    blob = content if isinstance(content, bytes) else b"\x80\x04" + b"".join(content) + b"."
    (path / ".metadata").write_bytes(blob)
    assert reason(path).startswith(".metadata: ")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"a": torch.ones(2), "layer.weight": torch.tensor([0.5, NAN])}, "NaN in layer.weight"),
        ({"w": torch.tensor([0.5, INF])}, "an infinity in w"),
        ({"w": torch.tensor([0.5, -INF], dtype=torch.float16)}, "an infinity in w"),
        ({"w": torch.tensor([0.5, NAN], dtype=torch.bfloat16)}, "NaN in w"),
        ({"w": torch.tensor([0.5, NAN]).to(torch.float8_e5m2)}, "NaN in w"),
        ({"w": torch.tensor([complex(0, NAN)])}, "NaN in w"),
        ({"w": torch.tensor([[0.0, NAN]]).to_sparse()}, "NaN in w"),
        ({"mask": torch.tensor([0.0, NAN])}, "NaN in mask"),
        ({"mask": torch.tensor([0.0, -INF]), "low": torch.tensor(INF)}, None),
        ({"n": torch.tensor([1]), "empty": torch.empty(0), "extra": {"x": NAN}}, None),
    ],
)
def test_weights_that_are_not_finite(state: Any, expected: str | None, tmp_path: Path) -> None:
    path = save(tmp_path / "x.ckpt", state_dict=state)
    verify(path)
    if expected is None:
        verify(path, finite=True)
    else:
        assert reason(path, finite=True) == expected


def test_nothing_there_is_not_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "none.ckpt")
    assert newest_intact(tmp_path / "none") is None
    assert intact_checkpoints(tmp_path) == {}


def test_the_newest_has_the_highest_step_then_the_latest_time(tmp_path: Path) -> None:
    order = [
        "step=000000100.ckpt",
        "last.ckpt",  # of step 99
        "epoch=3-step=9-v1.ckpt",
        "epoch=7-step=9.ckpt",
        "train_step=200.ckpt",  # a metric; of step 4
        "shards.ckpt",  # of step 3
    ]
    steps = [1, 99, 9, 9, 4]
    for age, (name, step) in enumerate(zip(order, steps, strict=False)):
        path = save(tmp_path / name, step)
        os.utime(path, (1_000 - age, 1_000 - age))
    save_shards(tmp_path / order[-1], step=3)
    for name in (".step=999.ckpt", "step=999.ckpt.tmp", "step=999.part", "below/step=999.ckpt"):
        save(tmp_path / name, 999)
    assert list(intact_checkpoints(tmp_path)) == [tmp_path / name for name in order]


def test_a_link_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "x.ckpt", 5)
    (tmp_path / "last.ckpt").symlink_to("elsewhere/x.ckpt")
    (tmp_path / "lost.ckpt").symlink_to("gone.ckpt")
    found = intact_checkpoints(tmp_path)
    assert list(found.values()) == [None, "a link to gone.ckpt, where nothing is"]
    assert newest_intact(tmp_path) == tmp_path / "last.ckpt"


def test_older_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path / f"step={step}.ckpt", step)
    (tmp_path / "step=4.ckpt").write_bytes(b"PK")
    opened = []
    original = Path.open

    def spy(self: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(self.name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", spy)
    assert newest_intact(tmp_path) == tmp_path / "step=3.ckpt"
    assert opened == ["step=4.ckpt", "step=3.ckpt"]


def test_a_payload_is_named_and_not_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    torch.load(save(tmp_path / "x.ckpt", hyper_parameters=Payload(target)), weights_only=False)
    target.rmdir()  # so it would have been
    for payload in (Payload(target), {"activation": torch.nn.functional.relu}, {"net": Model}):
        path = save(tmp_path / "x.ckpt", hyper_parameters=payload)
        assert "more than plain types and tensors: " in reason(path, finite=True)
    assert newest_intact(tmp_path) is None
    (tmp_path / "x.ckpt").write_bytes(pickle.dumps(Payload(target)))
    assert "not a zip file" in reason(tmp_path / "x.ckpt")
    assert not target.exists()


def test_shards_as_torch_writes_them_are_intact(tmp_path: Path) -> None:
    verify(save_shards(tmp_path / "shards"), finite=True)


def test_members_of_an_enum_may_be_written_as_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python 3.11.0 to 3.11.3 does it: with ``getattr``, which is stood in for."""

    def reduce(member: Any) -> Any:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, _: reduce(self))
    folder = save_shards(tmp_path / "shards")
    assert b"getattr" in (folder / ".metadata").read_bytes()
    verify(folder, finite=True)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


SHARDS: dict[str, Callable[[Path], Any]] = {
    "shard __0_0.distcp is missing": lambda path: (path / "__0_0.distcp").unlink(),
    "shard __0_0.distcp is truncated: ": lambda path: cut(path / "__0_0.distcp"),
    "without .metadata": lambda path: (path / ".metadata").unlink(),
    ".metadata: truncated or damaged": lambda path: cut(path / ".metadata"),
    "not Lightning's meta.pt": lambda path: (path / "meta.pt").unlink(),
    "meta.pt: truncated or damaged": lambda path: cut(path / "meta.pt"),
    "meta.pt holds a list": lambda path: torch.save([], path / "meta.pt"),
    "lacks 'loops'": lambda path: torch.save({}, path / "meta.pt"),
}


@pytest.mark.parametrize("expected", SHARDS)
def test_damaged_shards_are_refused(expected: str, tmp_path: Path) -> None:
    older, path = save(tmp_path / "step=1.ckpt", 1), save_shards(tmp_path / "step=2.ckpt")
    SHARDS[expected](path)
    assert expected in reason(path)
    assert newest_intact(tmp_path) == older


def test_instructions_that_could_ask_for_much_memory_are_refused(tmp_path: Path) -> None:
    path = save_shards(tmp_path / "shards")
    put_far_away = b"\x80\x04Nr\xff\xff\xff\x0f."
    (path / ".metadata").write_bytes(put_far_away)
    assert "instruction LONG_BINPUT at byte 3" in reason(path)


def change_metadata(path: Path, change: Callable[[Any], Any]) -> None:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def test_a_value_that_lies_nowhere_or_outside_is_refused(tmp_path: Path) -> None:
    path = save_shards(tmp_path / "shards")
    kept = (path / ".metadata").read_bytes()

    def lose(metadata: Any) -> None:
        stored = metadata.storage_data
        metadata.storage_data = {k: v for k, v in stored.items() if k.fqn != "state_dict.bias"}

    change_metadata(path, lose)
    assert reason(path) == "no shard holds state_dict.bias"
    for outside in ("../__0_0.distcp", "/etc/hostname", ".."):
        (path / ".metadata").write_bytes(kept)
        for_all = {"relative_path": outside}
        change_metadata(
            path,
            lambda m: [vars(info).update(for_all) for info in m.storage_data.values()],  # noqa: B023
        )
        assert "which cannot be" in reason(path)


def test_shards_are_read_only_when_asked(tmp_path: Path) -> None:
    path = save_shards(tmp_path / "nan", weight=torch.full((4, 3), NAN))
    verify(path)
    assert reason(path, finite=True) == "NaN in weight"
    path = save_shards(tmp_path / "flipped", weight=torch.full((4, 3), 1.5))
    shard = path / "__0_0.distcp"
    content = shard.read_bytes()
    position = content.index(torch.full((4, 3), 1.5).numpy().tobytes())
    shard.write_bytes(content[:position] + b"\1" + content[position + 1 :])
    verify(path)
    assert "state_dict.weight in __0_0.distcp: member " in reason(path, finite=True)


def test_a_payload_in_shards_is_named_and_not_run(tmp_path: Path) -> None:
    path, target = save_shards(tmp_path / "shards"), tmp_path / "made"
    plant_in_metadata(path, target)
    FileSystemReader(path).read_metadata()
    target.rmdir()  # so torch would have
    assert f"it names {os.name}.mkdir" in reason(path, finite=True)
    for protocol in range(6):
        (path / ".metadata").write_bytes(pickle.dumps(Payload(target), protocol=protocol))
        assert reason(path).startswith(".metadata: ")
    shutil.rmtree(path)
    path = save_shards(tmp_path / "shards")
    torch.save(contents(hyper_parameters=Payload(target)), path / "meta.pt")
    assert "meta.pt: it holds more than plain types and tensors" in reason(path)
    assert not target.exists()
