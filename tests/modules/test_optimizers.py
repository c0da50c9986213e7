from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from lightning_recipes.modules.optimizers import lr_scale, parameter_groups
from tests.ranks import run_ranks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.gru = nn.GRU(4, 4)
        self.batch_norm = nn.BatchNorm1d(4)
        self.layer_norm = nn.LayerNorm((2, 3))
        self.rms_norm = nn.RMSNorm((2, 3))
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.output = nn.Linear(4, 5)
        self.output.weight = self.embedding.weight


def test_weights_decay_and_biases_and_norms_do_not() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(parameter_groups(net), weight_decay=0.1)
    names = {parameter: name for name, parameter in net.named_parameters()}
    decay = {
        group["weight_decay"]: sorted(names[parameter] for parameter in group["params"])
        for group in optimizer.param_groups
    }
    assert decay == {
        0.1: ["embedding.weight", "gru.weight_hh_l0", "gru.weight_ih_l0"],
        0.0: [
            "batch_norm.bias",
            "batch_norm.weight",
            "gru.bias_hh_l0",
            "gru.bias_ih_l0",
            "layer_norm.bias",
            "layer_norm.weight",
            "output.bias",
            "rms_norm.weight",
            "scale",
        ],
    }


@pytest.mark.parametrize(
    ("module", "options"),
    [(nn.Linear(2, 2, bias=False), {"params"}), (nn.GroupNorm(1, 2), {"params", "weight_decay"})],
)
def test_an_empty_group_is_left_out(module: nn.Module, options: set[str]) -> None:
    (group,) = parameter_groups(module)
    assert set(group) == options
    assert group["params"] == list(module.parameters())


def test_a_module_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no parameter that requires a gradient"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False))


def test_the_learning_rate_scales_by_rule() -> None:
    assert lr_scale("none", 9) == 1
    assert lr_scale("sqrt", 9) == 3
    assert lr_scale("linear", 9) == 9
    assert {lr_scale(rule, 1) for rule in ("none", "sqrt", "linear")} == {1.0}


def test_an_unknown_scaling_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="'cubic'"):
        lr_scale("cubic", 2)  # type: ignore[arg-type]


def _groups_in_shards() -> tuple[dict[float, list[str]], str]:
    def wrapped(*, use_orig_params: bool) -> Any:
        net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        cpu = torch.device("cpu")
        return FullyShardedDataParallel(net, use_orig_params=use_orig_params, device_id=cpu)

    net = wrapped(use_orig_params=True)
    names = {id(p): n.removeprefix("_fsdp_wrapped_module.") for n, p in net.named_parameters()}
    optimizer = torch.optim.AdamW(parameter_groups(net), weight_decay=0.1)
    groups = {
        g["weight_decay"]: [names[id(p)] for p in g["params"]] for g in optimizer.param_groups
    }
    with pytest.raises(ValueError, match="use_orig_params=True") as refused:
        parameter_groups(wrapped(use_orig_params=False))
    return groups, str(refused.value)


@pytest.mark.filterwarnings("ignore")
def test_flat_pieces_decay_as_the_weights_they_are_of() -> None:
    for groups, _ in run_ranks(_groups_in_shards):
        assert groups == {
            0.1: ["0.weight", "2.weight"],
            0.0: ["0.bias", "1.weight", "1.bias", "2.bias"],
        }
