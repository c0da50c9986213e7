"""Classifier, SequenceClassifier and Regressor."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lightning_recipes import (
    Classifier,
    PadCollate,
    Padded,
    Regressor,
    ResumableDataLoader,
    SequenceClassifier,
)


class MaskedMean(nn.Module):
    """Classifies the mean of what is real in a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        mean = (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
        logits: Tensor = self.head(mean)
        return logits


def make_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def vectors() -> ResumableDataLoader:
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    return ResumableDataLoader(TensorDataset(inputs, torch.arange(16) % 3), 4)


def sequences() -> ResumableDataLoader:
    samples: Any = [(torch.arange(1.0, 2.0 + i), i % 3) for i in range(8)]
    return ResumableDataLoader(samples, 4, collate_fn=PadCollate())


def numbers() -> ResumableDataLoader:
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    return ResumableDataLoader(TensorDataset(inputs, inputs[:, :3]), 4)


RECIPES: dict[str, Any] = {
    "Classifier": (partial(Classifier, num_classes=3, label_smoothing=0.1), make_network, vectors),
    "SequenceClassifier": (partial(SequenceClassifier, num_classes=3), MaskedMean, sequences),
    "Regressor": (Regressor, make_network, numbers),
}


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> Any:
    return RECIPES[request.param]


def make_trainer(**options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, **options},
    )


def fit(module: LightningModule, loader: ResumableDataLoader, **options: Any) -> Trainer:
    trainer = make_trainer(max_epochs=2, **options)
    trainer.fit(module, loader, loader)
    return trainer


# --- all of them ----------------------------------------------------------------------------------


def test_training_lowers_the_loss_that_was_validated_before(recipe: Any) -> None:
    torch.manual_seed(0)
    make, network, loader = recipe
    module = make(network(), optimizer=partial(torch.optim.AdamW, lr=0.03))
    (before,) = make_trainer().validate(module, loader(), verbose=False)
    after = fit(module, loader()).callback_metrics
    assert after["val/loss"] < before["val/loss"]


def test_a_checkpoint_is_plain_small_and_loads_again(recipe: Any, tmp_path: Path) -> None:
    make, network, loader = recipe
    module = make(network())
    callbacks = [ModelCheckpoint(tmp_path, filename="last")]
    fit(module, loader(), enable_checkpointing=True, callbacks=callbacks)

    path = tmp_path / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    hyper_parameters = checkpoint["hyper_parameters"]
    assert not {"network", "optimizer"} & set(hyper_parameters)
    assert all(isinstance(value, int | float | str) for value in hyper_parameters.values())
    states = [checkpoint["state_dict"], *checkpoint["optimizer_states"][0]["state"].values()]
    tensors = [tensor for state in states for tensor in state.values()]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert path.stat().st_size <= 1.2 * num_bytes + 64 * 1024

    restored = type(module).load_from_checkpoint(path, network=network())
    assert restored.hparams == module.hparams
    for name, weights in module.state_dict().items():
        assert torch.equal(restored.state_dict()[name], weights), name


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_the_loss_is_float32_in_every_precision(recipe: Any, precision: str) -> None:
    make, network, loader = recipe
    dtypes = []

    class Spy(nn.Module):
        """Tells that the network really ran in bfloat16."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, *inputs: Tensor) -> Tensor:
            outputs: Tensor = self.network(*inputs)
            assert outputs.dtype == torch.bfloat16
            return outputs

    class Losses(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            _, _, outputs, *_ = args
            dtypes.append(outputs["loss"].dtype)

    trainer = fit(make(Spy()), loader(), precision=precision, callbacks=[Losses()])
    assert set(dtypes) == {torch.float32}
    assert trainer.callback_metrics["val/loss"].isfinite()


# --- each by itself -------------------------------------------------------------------------------


def test_classifier_averages_the_negative_log_likelihood() -> None:
    """Logits log(p) have the loss -log(p of the target), smoothed towards the mean over classes."""
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
    batch = (probabilities.log(), torch.tensor([0, 1]))
    plain = Classifier(nn.Identity(), num_classes=3).step(batch)
    expected = (math.log(2) + math.log(8)) / 2
    assert plain.loss.item() == pytest.approx(expected)
    assert plain.count == 2
    smooth = Classifier(nn.Identity(), num_classes=3, label_smoothing=0.3).step(batch)
    over_classes = -probabilities.double().log().mean().item()
    assert smooth.loss.item() == pytest.approx(0.7 * expected + 0.3 * over_classes)


def test_classifier_logs_the_share_of_right_answers() -> None:
    logits = F.one_hot(torch.tensor([0, 1, 2, 2, 0]), 3).float()
    dataset = TensorDataset(logits, torch.tensor([0, 1, 1, 2, 1]))
    trainer = make_trainer()
    module = Classifier(nn.Identity(), num_classes=3)
    (logged,) = trainer.test(module, ResumableDataLoader(dataset, 2), verbose=False)
    assert logged["test/accuracy"] == pytest.approx(3 / 5)


def test_padding_has_no_say_in_a_sequence_classifiers_loss() -> None:
    network = MaskedMean()
    module = SequenceClassifier(network, num_classes=3)
    target = torch.tensor([2, 0])
    lengths = torch.tensor([1, 3])
    values = torch.tensor([[5.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    padded = F.pad(values.clone(), (0, 4), value=9.0)
    padded[0, 1:] = 9.0
    step = module.step((Padded(values, lengths), target))
    assert step.count == 2
    assert module.step((Padded(padded, lengths), target)).loss.item() == step.loss.item()
    expected = F.cross_entropy(network.head(torch.tensor([[5.0], [2.0]])), target)
    torch.testing.assert_close(step.loss, expected)


def test_regressor_logs_the_mean_squared_and_the_mean_absolute_error() -> None:
    dataset = TensorDataset(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1, 2, -3]))
    trainer = make_trainer()
    module = Regressor(nn.Identity())
    (logged,) = trainer.validate(module, ResumableDataLoader(dataset, 2), verbose=False)
    assert logged == {"val/loss": pytest.approx(14 / 3), "val/mae": 2.0}


@pytest.mark.parametrize(("preds", "target"), [((4, 1), (4,)), ((4,), (4, 1)), ((4, 2), (4, 1))])
def test_regressor_refuses_shapes_that_would_broadcast(
    preds: tuple[int, ...], target: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="must have one shape, got") as error:
        Regressor(nn.Identity()).step((torch.zeros(preds), torch.zeros(target)))
    assert str(preds) in str(error.value)
    assert str(target) in str(error.value)
