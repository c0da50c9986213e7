import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_recipes import Preempted
from tests.callbacks.preemptible import Kick, fit, weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return weights(fit(tmp_path_factory.mktemp("whole")))


def assert_same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("moment", "step", "saved"),
    [
        ("setup", 0, 0),
        ("sanity check", 0, 0),
        ("train start", 0, 0),
        ("batch", 0, 1),
        ("batch end", 4, 4),
        ("batch", 8, 9),
        ("validation", 6, 6),
        ("epoch end", 12, 12),
    ],
)
def test_goes_on_as_if_never_stopped(
    moment: str, step: int, saved: int, tmp_path: Path, whole: dict[str, Tensor]
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted) as caught:
        fit(tmp_path, Kick(moment, step))
    path = tmp_path / "resume" / f"step={saved:09d}.ckpt"
    stop = caught.value
    assert (stop.reason, stop.path, stop.code) == ("SIGTERM", str(path), 75)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert_same(weights(fit(tmp_path, ckpt_path=str(path))), whole)
