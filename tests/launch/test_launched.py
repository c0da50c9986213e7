import pytest

from lightning_recipes.launch.launched import launched

# as torchrun's documentation has them, for the second of two machines with four processes each
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "1",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "2",
}
SLURM = {"SLURM_JOB_ID": "9", "SLURM_NTASKS": "6", "SLURM_NNODES": "3"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        ({"WORLD_SIZE": "8", "LT_DEVICES": "4", "LT_CLI_USED": "1"}, {}),
        (TORCHRUN, {"devices": 4, "num_nodes": 2}),
        ({**TORCHRUN, **SLURM}, {"devices": 4, "num_nodes": 2}),
        ({**TORCHRUN, "LT_PRECISION": "16-mixed"}, {"devices": 4, "num_nodes": 2}),
        (
            {**TORCHRUN, "LT_CLI_USED": "1", "LT_DEVICES": "auto", "LT_STRATEGY": "fsdp"},
            {"devices": 4, "num_nodes": 2, "strategy": "fsdp"},
        ),
        (
            {**TORCHRUN, "LT_CLI_USED": "1", "LT_DEVICES": "0,1,2,5"},
            {"devices": "0,1,2,5", "num_nodes": 2},
        ),
        (SLURM, {"devices": 2, "num_nodes": 3}),
        ({**SLURM, "SLURM_NTASKS_PER_NODE": "2"}, {"devices": 2, "num_nodes": 3}),
        ({**SLURM, "SLURM_JOB_NAME": "interactive"}, {}),
    ],
)
def test_reads_what_was_decided(
    environment: dict[str, str], expected: dict[str, int | str]
) -> None:
    assert {name: asked.value for name, asked in launched(environment).items()} == expected


def test_says_where_it_stands() -> None:
    by_run = {**TORCHRUN, "LT_CLI_USED": "1", "LT_PRECISION": "32"}
    assert launched(by_run)["precision"].source == "--precision 32"
    assert launched(by_run)["devices"].source == "--devices 4"
    assert launched(TORCHRUN)["devices"].source == "LOCAL_WORLD_SIZE=4"
    assert launched(SLURM)["devices"].source == "SLURM_NTASKS=6"
