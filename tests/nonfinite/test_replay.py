"""What a training wrote down is seen again in a notebook."""

import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_recipes import Finding, NaNDetector, replay
from tests.callbacks.faulty import (
    INF,
    NAN,
    BadBackward,
    Net,
    error_of,
    fit,
    float16,
    make_batches,
    make_net,
    make_trainer,
)


def unlucky(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Tensor:
    """Go wrong for a chance of one in ten, and where dropout left nothing of a sample."""
    return loss * NAN if torch.rand(()) < 0.1 else loss


def too_large(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
    large = 1e5 if batch_idx == 4 else 1.0
    return loss + 0.0 * net.last(torch.full((1, 4), large)).float().sum()


def too_steep(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
    return loss + 100.0 * net.head(net.body(batch["x"])).float().mean()


def wrong_way_back(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
    return BadBackward.apply(loss) if batch_idx == 3 else loss  # type: ignore[no-untyped-call]


def take_apart(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
    return loss + batch.pop("x").mean() * (NAN if batch_idx == 1 else 1)


def half_way(net: Net, batch: Any, batch_idx: int, loss: Tensor) -> Any:
    output = net.last(net.body(batch["x"]))
    return output.mean() * (NAN if batch_idx == 1 else 1)


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "batch": (None, {}, {}),
    "chance": (unlucky, {}, {}),
    "backward": (wrong_way_back, {"accumulate_grad_batches": 2}, {}),
    "a batch that is taken apart": (take_apart, {}, {}),
    "bfloat16 alone": (half_way, {"precision": "bf16-true"}, {}),
    "bfloat16": (unlucky, {"precision": "bf16-mixed"}, {}),
    "forward in float16": (too_large, float16(2.0**8), {}),
    "scale in float16": (too_steep, float16(2.0**16), {"max_overflows": 2}),
}


@pytest.mark.parametrize(("hook", "options", "limits"), CASES.values(), ids=CASES)
def test_finds_the_same_with_another_module(
    hook: Any, options: dict[str, Any], limits: dict[str, Any], tmp_path: Path
) -> None:
    detector = NaNDetector(capsule_dir=str(tmp_path / "kept"), **limits)
    batches = make_batches(40, [] if hook else [2])
    error = error_of(
        make_trainer(tmp_path, detector, **options), make_net(hook, dropout=0.5), batches
    )
    (origin,) = error.origins
    assert origin.capsule is not None
    assert stat.S_IMODE(Path(origin.capsule).stat().st_mode) == 0o600
    assert f"lightning_recipes.replay({origin.capsule!r}, module)" in str(error)
    other = Net(hook, dropout=0.5).eval()
    before = torch.get_rng_state()
    assert replay(origin.capsule, other) == origin.findings != []
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_other_weights_may_find_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = make_net()
    with torch.no_grad():
        net.last.bias.fill_(INF)
    # too little for the weights: the file has the batch alone
    monkeypatch.setattr("lightning_recipes.nonfinite.capsule._MAX_BYTES", 50)
    detector = NaNDetector(capsule_dir=str(tmp_path / "kept"))
    error = error_of(make_trainer(tmp_path, detector), net, make_batches(1))
    capsule = error.origins[0].capsule
    assert capsule is not None
    assert replay(capsule, make_net()) == []
    assert replay(capsule, net)[0].kind == "parameters"


def test_weights_of_another_module_are_refused(tmp_path: Path) -> None:
    detector = NaNDetector(capsule_dir=str(tmp_path / "kept"))
    error = error_of(make_trainer(tmp_path, detector), make_net(), make_batches(1, [0]))
    other = make_net()
    other.last = nn.Linear(7, 1)
    capsule = error.origins[0].capsule
    assert capsule is not None
    with pytest.raises(RuntimeError, match=r"last\.weight"):
        replay(capsule, other)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("NaN again")
    with pytest.raises(ValueError, match=r"notes\.txt is no capsule"):
        replay(tmp_path / "notes.txt", make_net())


def test_an_alarm_comes_without_its_capsule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"

    def run(batches: list[Any]) -> None:
        error = error_of(
            make_trainer(tmp_path, NaNDetector(capsule_dir=str(folder))), make_net(), batches
        )
        assert f"{error.first}".startswith("batch field ['x']")
        assert error.origins[0].capsule is None
        assert list(folder.iterdir()) == []

    with pytest.warns(UserWarning, match="No capsule was written to .*: set is no plain type"):
        run([{**batch, "ids": {1, 2}} for batch in make_batches(2, [1])])
    monkeypatch.setattr("lightning_recipes.nonfinite.capsule._MAX_BYTES", 47)
    with pytest.warns(UserWarning, match="the batch has 48 bytes, more than 47"):
        run(make_batches(2, [1]))


@pytest.mark.filterwarnings("ignore:The loss or the gradients are not finite")
def test_there_are_no_more_than_ten(tmp_path: Path) -> None:
    detector = NaNDetector(policy="skip", capsule_dir=str(tmp_path / "kept"), max_skips=100)
    fit(make_trainer(tmp_path, detector), make_net(), make_batches(13, range(12)))
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        f"step={step:09d}-rank=0.pt" for step in range(10)
    ]


def test_a_folder_that_cannot_be_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("in the way")
    trainer = make_trainer(tmp_path, NaNDetector(capsule_dir=str(tmp_path / "kept")))
    with pytest.raises(ValueError, match="capsule_dir must be a folder that can be written"):
        fit(trainer, make_net(), make_batches(1))
    assert trainer.global_step == 0


def test_a_finding_is_plain() -> None:
    finding = Finding(kind="loss", name="", detail="1 nan of 1")
    assert Finding(**asdict(finding)) == finding
