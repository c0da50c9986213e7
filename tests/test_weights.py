import pickle
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_recipes import BrokenCheckpoint, LoadedWeights, WeightsDoNotFit, load_weights
from tests.checkpoint_files import Model, Payload, save, save_shards, train


class Net(nn.Module):
    """A body with a buffer, and a head."""

    def __init__(self, *, num_classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, num_classes)


class Wrapper(nn.Module):
    """What names its only part "module", as DDP does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def saved(module: nn.Module, path: Path) -> Path:
    torch.save(module.state_dict(), path)
    return path


def copy_of(module: nn.Module) -> dict[str, Any]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def are_equal(module: nn.Module, other: nn.Module | dict[str, Any]) -> bool:
    given = other.state_dict() if isinstance(other, nn.Module) else other
    mine = module.state_dict()
    return list(mine) == list(given) and all(torch.equal(mine[k], given[k]) for k in mine)


def refusal(module: nn.Module, path: Path, **options: Any) -> list[list[str]]:
    """Return the rows of the table, and see that nothing was loaded."""
    before = copy_of(module)
    with pytest.raises(WeightsDoNotFit) as caught:
        load_weights(module, path, **options)
    assert are_equal(module, before)
    header, *rows = str(caught.value).split("\n\n")[1].splitlines()
    assert header.split() == ["entry", "module", "file"]
    starts = [0, *(header.index(title) for title in header.split()), 999]
    cuts = [slice(*pair) for pair in pairwise(starts)]
    return [[row[cut].strip() for cut in cuts] for row in rows]


def test_a_lightning_checkpoint_is_loaded(tmp_path: Path) -> None:
    trained = train(tmp_path, num_steps=2).lightning_module
    module = Model()
    assert not are_equal(module, trained)
    assert load_weights(module, tmp_path / "step=000000002.ckpt") == LoadedWeights(loaded=2)
    assert are_equal(module, trained)
    assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("is_new", [True, False])
def test_a_plain_state_dict_is_loaded(is_new: bool, tmp_path: Path) -> None:
    net, other = Net(), Net()
    path = tmp_path / "net.pt"
    torch.save(other.state_dict(), path, _use_new_zipfile_serialization=is_new)
    assert load_weights(net, path).loaded == len(net.state_dict())
    assert are_equal(net, other)


def test_wrappers_make_no_difference(tmp_path: Path) -> None:
    inner, target = Net(), Net()
    inner.body[0] = Wrapper(torch.compile(inner.body[0], backend="eager"))  # type: ignore[arg-type]
    path = saved(Wrapper(torch.compile(inner, backend="eager")), tmp_path / "wrapped.pt")  # type: ignore[arg-type]
    names = list(torch.load(path))
    assert names[0] == "module._orig_mod.body.0.module._orig_mod.weight"
    load_weights(target, path)
    assert torch.equal(target.head.weight, inner.head.weight)
    back = Wrapper(torch.compile(Net(), backend="eager"))  # type: ignore[arg-type]
    load_weights(back, saved(target, tmp_path / "plain.pt"))
    assert next(iter(back.state_dict().values())).equal(target.body[0].weight)


def test_a_layer_may_be_called_module(tmp_path: Path) -> None:
    one = nn.ModuleDict({"module": nn.Linear(2, 2), "a": nn.Linear(2, 2)})
    other = nn.ModuleDict({"module": nn.Linear(2, 2), "a": nn.Linear(2, 2)})
    for each in (one, other):
        each.register_parameter("weight", nn.Parameter(torch.randn(2, 2)))
    load_weights(other, saved(one, tmp_path / "x.pt"))
    assert are_equal(one, other)


def test_two_names_of_one_entry_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(1, 1), "module.weight": torch.ones(1, 1)}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"two entries that are both 'weight', .*'module.weight'"):
        load_weights(nn.Linear(1, 1, bias=False), tmp_path / "x.pt")


def test_every_difference_is_in_the_table_and_nothing_is_loaded(tmp_path: Path) -> None:
    state = Net(num_classes=5).state_dict()
    state["body.9.weight"] = state.pop("body.0.weight")
    state["body.1.num_batches_tracked"] = torch.tensor(1.0)
    torch.save(state, tmp_path / "x.pt")
    assert refusal(Net(), tmp_path / "x.pt") == [
        ["missing", "body.0.weight", "4x2 float32", ""],
        ["mismatched", "body.1.num_batches_tracked", "scalar int64", "scalar float32"],
        ["mismatched", "head.weight", "3x4 float32", "5x4 float32"],
        ["mismatched", "head.bias", "3 float32", "5 float32"],
        ["unexpected", "body.9.weight", "", "4x2 float32"],
    ]


def test_only_what_is_named_is_tolerated_and_told(tmp_path: Path) -> None:
    source, target = Net(num_classes=5), Net()
    path = saved(source, tmp_path / "x.pt")
    options: dict[str, Any] = {"allow_mismatched": ["head.b*"]}
    assert [row[1] for row in refusal(target, path, **options)] == ["head.weight"]
    head = target.head.weight.clone()
    loaded = load_weights(target, path, allow_mismatched=["nothing", "head.*"])
    assert loaded == LoadedWeights(loaded=7, mismatched=("head.weight", "head.bias"))
    assert torch.equal(target.head.weight, head)
    assert target.state_dict()["body.0.weight"].equal(source.state_dict()["body.0.weight"])
    bodies = [nn.ModuleDict({"body": net.body}) for net in (source, Net())]
    refused = refusal(bodies[1], path)
    assert [row[:2] for row in refused] == [["unexpected", f"head.{n}"] for n in ("weight", "bias")]
    wrong = {"allow_missing": ["*"], "allow_mismatched": ["*"]}
    assert refusal(bodies[1], path, **wrong) == refused
    loaded = load_weights(bodies[1], path, allow_unexpected=["head.*"])
    assert loaded == LoadedWeights(loaded=7, unexpected=("head.weight", "head.bias"))
    path = saved(bodies[0], tmp_path / "body.pt")
    assert [row[0] for row in refusal(Net(), path, allow_unexpected=["*"])] == ["missing"] * 2
    loaded = load_weights(Net(), path, allow_missing=["head.*"])
    assert loaded == LoadedWeights(loaded=7, missing=("head.weight", "head.bias"))


def test_a_part_of_the_file_is_taken_by_its_prefix(tmp_path: Path) -> None:
    whole = nn.ModuleDict({"net": Net(), "teacher": Net()})
    path, net = saved(whole, tmp_path / "x.pt"), Net()
    load_weights(net, path, prefix="net.")
    assert are_equal(net, whole["net"])
    with pytest.raises(ValueError, match=r"begins with prefix='nets\.'"):
        load_weights(net, path, prefix="nets.")


def test_floating_numbers_are_converted_and_others_are_not(tmp_path: Path) -> None:
    source = nn.Linear(2, 2).bfloat16()
    target = nn.Linear(2, 2)
    loaded = load_weights(target, saved(source, tmp_path / "x.pt"))
    assert loaded == LoadedWeights(loaded=2, converted=("weight", "bias"))
    assert torch.equal(target.weight, source.weight.float())
    assert target.weight.dtype == torch.float32
    torch.save(
        {"weight": torch.ones(2, 2, dtype=torch.int64), "bias": torch.ones(2)}, tmp_path / "y.pt"
    )
    assert [row[1:] for row in refusal(target, tmp_path / "y.pt")] == [
        ["weight", "2x2 float32", "2x2 int64"]
    ]


def test_a_lazy_layer_takes_its_shape_from_the_file(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        lazy = nn.LazyLinear(4)
    load_weights(lazy, saved(nn.Linear(3, 4), tmp_path / "x.pt"))
    assert lazy.weight.shape == (4, 3)


@pytest.mark.parametrize(
    "content", [[1], {}, {"model": {"weight": torch.ones(1)}}, {1: torch.ones(1)}]
)
def test_what_is_no_state_dict_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="A Lightning checkpoint or a state dict is needed"):
        load_weights(Net(), tmp_path / "x.pt")


def test_a_pattern_by_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"allow_missing is a list of patterns, got 'h\*'"):
        load_weights(Net(), tmp_path / "x.pt", allow_missing="h*")


def test_a_damaged_file_loads_nothing(tmp_path: Path) -> None:
    path, net = saved(Net(), tmp_path / "x.pt"), Net()
    before, whole = copy_of(net), path.read_bytes()
    position = whole.index(torch.load(path)["head.weight"].numpy().tobytes())
    flipped = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
    for damaged, expected in (
        (flipped, "member x/data/"),
        (whole[:-100], "truncated"),
        (b"", "the file is empty"),
        (b"text", "cannot be loaded as plain types and tensors"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(BrokenCheckpoint) as caught:
            load_weights(net, path)
        assert expected in caught.value.reason
    assert are_equal(net, before)
    with pytest.raises(FileNotFoundError):
        load_weights(net, tmp_path / "none.pt")
    with pytest.raises(ValueError, match="consolidate_checkpoint"):
        load_weights(net, save_shards(tmp_path / "shards"))


def test_a_payload_is_not_run(tmp_path: Path) -> None:
    target, path = tmp_path / "made", tmp_path / "x.ckpt"
    save(path, hyper_parameters=Payload(target))
    with pytest.raises(BrokenCheckpoint, match="mkdir"):
        load_weights(Net(), path)
    path.write_bytes(pickle.dumps(Payload(target)))
    with pytest.raises(BrokenCheckpoint):
        load_weights(Net(), path)
    assert not target.exists()
