"""Settings of the whole suite."""

import os
import warnings

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True)
def _settings() -> None:
    torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    warnings.filterwarnings("default", category=ResourceWarning)


@pytest.fixture(autouse=True)
def _skip_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
