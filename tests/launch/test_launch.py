import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightning_recipes.cli import RecipesCLI
from tests.commands import ROOT
from tests.launch.job import NUM_STEPS, main
from tests.launch.launchers import LAUNCHERS, RUN, end, launch, start

JOB = str(ROOT / "tests/launch/job.py")
STRANGERS = str(ROOT / "tests/launch/strangers.py")

pytestmark = pytest.mark.timeout(400)


def ended(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(root / "end.pt", weights_only=True)
    return found


def assert_same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def assert_same_but_for_rounding(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert sorted(one["steps"]) == sorted(two["steps"]) == list(range(1, NUM_STEPS + 1))
    for step, ours in one["steps"].items():
        theirs = two["steps"][step]
        assert_same(ours["samples"], theirs["samples"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    torch.testing.assert_close(one["weights"], two["weights"], rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return main(tmp_path_factory.mktemp("alone"), accelerator="cpu", precision="32-true")


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("torchrun")
    code, output = launch(*LAUNCHERS["torchrun"], JOB, str(root), cwd=root)
    assert code == 0, output
    return ended(root)


def test_two_ranks_train_as_one(alone: dict[str, Any], by_torchrun: dict[str, Any]) -> None:
    assert (alone["world_size"], by_torchrun["world_size"]) == (1, 2)
    assert_same_but_for_rounding(alone, by_torchrun)


def test_a_killed_rank_costs_nothing(tmp_path: Path, by_torchrun: dict[str, Any]) -> None:
    # this is also the test that run trains as torchrun does
    restarts = ("--max-restarts", "1")
    code, output = launch(*LAUNCHERS["run"], *restarts, JOB, str(tmp_path), "kill:8", cwd=tmp_path)
    assert code == 0, output
    assert "Rank 1 ended first, by SIGKILL: all start again" in output
    found = ended(tmp_path)
    assert found["world_size"] == 2
    # saved at step 6; a step's record is of the start that took it
    assert sorted(found["steps"]) == list(range(7, NUM_STEPS + 1))
    assert_same(found["steps"], {s: by_torchrun["steps"][s] for s in found["steps"]})
    assert_same(found["weights"], by_torchrun["weights"])


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    code, output = launch(*LAUNCHERS["run"], STRANGERS, cwd=tmp_path)
    assert code == 3, output
    assert "CONFLICT Trainer(devices=4) under --devices 2: " in output
    assert "ALONE The launcher started 2 processes, and this trainer has 1" in output
    assert "Rank " in output
    assert "with exit code 3" in output
    assert not list(tmp_path.glob("resume/*"))


def test_a_preempted_job_ends_with_75(tmp_path: Path, alone: dict[str, Any]) -> None:
    # restarts are for accidents, and this is none
    command = (*RUN, "--devices", "1", "--max-restarts", "2", "--precision", "32", JOB)
    code, output = launch(*command, str(tmp_path), "stop:5", cwd=tmp_path)
    assert code == 75, output
    assert "Preempted by SIGTERM: resume from" in output
    assert "start again" not in output
    assert not (tmp_path / "end.pt").exists()
    end = main(tmp_path, accelerator="cpu")
    assert_same(end["weights"], alone["weights"])


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A shortened configs/names.yaml of one process, and its weights."""
    root = tmp_path_factory.mktemp("names")
    config = yaml.safe_load((ROOT / "configs/names.yaml").read_text())
    # what rounding is not to grow in, and no draw of a rank's own
    network = config["model"]["init_args"]["network"]["init_args"]
    network.update(dropout=0.0, ngram_dropout=0.0)
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    config["model"]["init_args"]["optimizer"] = optimizer
    config["trainer"].update(max_epochs=1, limit_train_batches=20, limit_val_batches=1)
    config["trainer"].update(enable_progress_bar=False, default_root_dir=str(root / "alone"))
    (root / "names.yaml").write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["lightning-recipes"])
        RecipesCLI(["fit", "--config", str(root / "names.yaml"), "--trainer.accelerator", "cpu"])
    return root, weights_of(root / "alone", 20)


def weights_of(root: Path, step: int) -> Any:
    path = root / "resume" / f"step={step:09d}.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_configuration_trains_as_one(launcher: str, names: tuple[Path, Any]) -> None:
    root, alone = names
    folder = root / launcher.replace(" ", "-")
    given = ["fit", "--config", str(root / "names.yaml"), "--data.batch_size", "32"]
    given += ["--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(folder)]
    dashes = ["--"] if launcher == "run" else [str(ROOT / "lightning_recipes/__main__.py")]
    code, output = launch(*LAUNCHERS[launcher], *dashes, *given, cwd=root)
    assert code == 0, output
    torch.testing.assert_close(weights_of(folder, 20), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fabric_run_is_understood(tmp_path: Path, by_torchrun: dict[str, Any]) -> None:
    given = ("--precision", "32-true", "--strategy", "ddp")
    code, output = launch(*LAUNCHERS["fabric run"], *given, JOB, str(tmp_path), cwd=tmp_path)
    assert code == 0, output
    assert_same(ended(tmp_path)["weights"], by_torchrun["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("accident", ["none:0", "kill:8"])
def test_two_nodes_meet(accident: str, tmp_path: Path, by_torchrun: dict[str, Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = ["--devices", "1", "--num-nodes", "2", "--main-port", str(port)]
    if accident != "none:0":
        common += ["--max-restarts", "1"]
    nodes = [
        start(*RUN, *common, "--node-rank", rank, JOB, str(tmp_path), accident, cwd=tmp_path)
        for rank in ("1", "0")
    ]
    outputs = [end(node) for node in nodes]
    assert [code for code, _ in outputs] == [0, 0], outputs
    found = ended(tmp_path)
    assert (found["world_size"], found["num_nodes"]) == (2, 2)
    assert_same(found["weights"], by_torchrun["weights"])


@pytest.mark.slow
def test_a_second_signal_ends_it(tmp_path: Path) -> None:
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: print('HEARD', flush=True))\n"
        "print('READY', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    process = start(*RUN, "--devices", "1", str(script), cwd=tmp_path)
    assert process.stdout is not None
    for expected in ("READY", "HEARD"):
        while expected not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    code, _ = end(process)
    assert code == 128 + signal.SIGTERM
