import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_recipes import Finding, Padded, capture_rng_state
from lightning_recipes.nonfinite import capsule as capsule_room
from lightning_recipes.nonfinite.capsule import Capsule

FINDING = Finding(kind="loss", name="", detail="1 nan of 1")


def make(**kwargs: Any) -> Capsule:
    defaults: dict[str, Any] = {
        "step": 3,
        "epoch": 1,
        "batch_idx": 2,
        "rank": 0,
        "batch": {"text": Padded(torch.rand(2, 3), torch.tensor([3, 1])), "ids": ["a", "b"]},
        "rng": capture_rng_state(),
        "autocast": "bfloat16",
        "loss_scale": 1024.0,
        "weights": {"weight": torch.rand(4)},
        "findings": [FINDING],
    }
    return Capsule(**{**defaults, **kwargs})


def test_comes_back_whole(tmp_path: Path) -> None:
    path, kept = tmp_path / "it.pt", make()
    kept.write(path)
    other = Capsule.read(path)
    for name in ("step", "epoch", "batch_idx", "rank", "autocast", "loss_scale", "findings"):
        assert getattr(other, name) == getattr(kept, name), name
    assert other.weights is not None
    assert torch.equal(other.weights["weight"], kept.weights["weight"])  # type: ignore[index]
    assert torch.equal(other.rng["torch"], kept.rng["torch"])
    assert type(other.batch["text"]) is Padded
    assert torch.equal(other.batch["text"].values, kept.batch["text"].values)
    assert other.batch["ids"] == ["a", "b"]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "it.pt"
    path.write_text("in the way")
    path.chmod(0o666)
    make().write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Capsule.read(path).step == 3


def test_is_plain_enough_for_anyone(tmp_path: Path) -> None:
    make().write(tmp_path / "it.pt")
    content = torch.load(tmp_path / "it.pt", weights_only=True)
    assert content["findings"][0]["kind"] == "loss"
    assert content["version"] == 1


def test_weights_that_do_not_fit_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the batch: 6 floats and 2 lengths of 8 bytes
    path = tmp_path / "it.pt"
    for limit, has_weights in [(40 + 16, True), (40 + 15, False)]:
        monkeypatch.setattr(capsule_room, "_MAX_BYTES", limit)
        make().write(path)
        assert (Capsule.read(path).weights is not None) == has_weights
    monkeypatch.setattr(capsule_room, "_MAX_BYTES", 39)
    path.unlink()
    with pytest.raises(ValueError, match="the batch has 40 bytes, more than 39"):
        make().write(path)
    assert not path.exists()


def test_a_batch_that_is_not_plain_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="set is no plain type"):
        make(batch={"ids": {1, 2}}).write(tmp_path / "it.pt")
    assert list(tmp_path.iterdir()) == []


def write(path: Path, content: Any) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"some text",
        pickle.dumps({"version": 1}),
        {"state_dict": {}},
        {"version": 2},
        {"version": torch.ones(1)},
        [1, 2],
        torch.ones(1),
        torch.nn.Linear(1, 1),
    ],
    ids=str,
)
def test_another_file_is_no_capsule(content: Any, tmp_path: Path) -> None:
    write(tmp_path / "it.pt", content)
    with pytest.raises(ValueError, match=r"it\.pt is no capsule"):
        Capsule.read(tmp_path / "it.pt")


def test_a_file_that_is_not_there_is_no_other_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Capsule.read(tmp_path / "it.pt")
