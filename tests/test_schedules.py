import io
import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR, StepLR

from lightning_recipes.schedules import WarmupCosine, simulate, warmup_cosine


@st.composite
def curves(draw: st.DrawFn) -> dict[str, Any]:
    total_steps = draw(st.integers(1, 300))
    return {
        "warmup_steps": draw(st.integers(0, total_steps - 1)),
        "total_steps": total_steps,
        "min_ratio": draw(st.floats(0, 1)),
    }


def _optimizer(*rates: float) -> torch.optim.SGD:
    return torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(()))], "lr": rate} for rate in rates], lr=1.0
    )


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def _play(optimizer: torch.optim.Optimizer, schedule: WarmupCosine, steps: int) -> list[Any]:
    history = []
    for _ in range(steps):
        history.append(_rates(optimizer))
        optimizer.step()
        schedule.step()
    return history


def test_the_curve_of_the_design_is_met() -> None:
    table = [0.25, 0.5, 0.75, 1, 1, 0.933, 0.75, 0.5, 0.25, 0.067, 0, 0, 0]
    rates = simulate(partial(WarmupCosine, warmup_steps=4, total_steps=10), 13)
    assert rates == pytest.approx(table, abs=5e-4)


@pytest.mark.parametrize(
    ("warmup_steps", "total_steps", "table"),
    [
        (0, 1, [1, 0, 0]),
        (0, 4, [1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4, 0]),
        (1, 3, [1, 1, 0.5, 0]),
        (1, 2, [1, 1, 0]),
    ],
)
def test_the_shortest_warmups_start_at_the_peak(
    warmup_steps: int, total_steps: int, table: list[float]
) -> None:
    curve = partial(WarmupCosine, warmup_steps=warmup_steps, total_steps=total_steps)
    assert simulate(curve, len(table)) == pytest.approx(table)


@given(curve=curves())
def test_the_factor_rises_to_the_peak_falls_to_the_floor_and_stays(curve: dict[str, Any]) -> None:
    warmup_steps, total_steps, floor = curve.values()
    factors = [warmup_cosine(k, **curve) for k in range(total_steps + 3)]
    rise, fall = factors[:warmup_steps], factors[warmup_steps : total_steps + 1]
    assert factors[0] > 0
    assert all(a < b for a, b in itertools.pairwise(rise))
    assert max(factors) == fall[0] == 1
    assert not rise or rise[-1] == 1
    assert all(a >= b for a, b in itertools.pairwise(fall))
    assert min(fall) == floor
    assert {*factors[total_steps:], warmup_cosine(10**12, **curve)} == {floor}


@pytest.mark.parametrize(("warmup_steps", "total_steps"), [(0, 9), (1, 9), (5, 30), (29, 30)])
def test_the_curve_is_that_of_transformers_without_its_lost_first_step(
    warmup_steps: int, total_steps: int
) -> None:
    def transformers_cosine(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return max(0.0, 0.5 * (1 + math.cos(math.pi * 0.5 * 2 * progress)))

    oracle = partial(
        LambdaLR, lr_lambda=lambda k: transformers_cosine(k + 1 if k < warmup_steps else k)
    )
    curve = partial(WarmupCosine, warmup_steps=warmup_steps, total_steps=total_steps)
    expected = simulate(oracle, total_steps, base_lr=0.3)
    assert simulate(curve, total_steps, base_lr=0.3) == pytest.approx(expected)


def test_the_floor_is_a_share_of_the_peak() -> None:
    curve = partial(WarmupCosine, warmup_steps=2, total_steps=4, min_ratio=0.2)
    assert simulate(curve, 6, base_lr=10) == pytest.approx([5, 10, 10, 6, 2, 2])


def test_parameter_groups_keep_their_ratio() -> None:
    optimizer = _optimizer(1.0, 0.125)
    schedule = WarmupCosine(optimizer, warmup_steps=3, total_steps=8)
    history = _play(optimizer, schedule, 10)
    assert all(small == big / 8 for big, small in history)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"warmup_steps": -1, "total_steps": 4}, "warmup_steps .* >= 0, got -1"),
        ({"warmup_steps": 4, "total_steps": 4}, "less than total_steps, got 4 and 4"),
        ({"warmup_steps": 0, "total_steps": 0}, "less than total_steps, got 0 and 0"),
        ({"warmup_steps": 0, "total_steps": -1}, "total_steps .* >= 0, got -1"),
        ({"warmup_steps": 1, "total_steps": 4, "min_ratio": 1.5}, "min_ratio .* got 1.5"),
        ({"warmup_steps": 1, "total_steps": 4, "min_ratio": -0.1}, "min_ratio .* got -0.1"),
        ({"warmup_steps": 1, "total_steps": 4, "min_ratio": math.nan}, "min_ratio .* got nan"),
    ],
)
def test_an_argument_out_of_range_is_refused(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        WarmupCosine(_optimizer(1.0), **arguments)


def test_a_share_is_not_taken_for_a_number_of_steps() -> None:
    with pytest.raises((TypeError, ValueError), match="warmup_steps"):
        WarmupCosine(_optimizer(1.0), warmup_steps=0.05, total_steps=100)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", [1, 3, 7, 12])
def test_a_saved_schedule_continues_exactly(stop: int) -> None:
    curve: dict[str, Any] = {"warmup_steps": 3, "total_steps": 10, "min_ratio": 0.1}
    optimizer = _optimizer(0.3, 0.7)
    schedule = WarmupCosine(optimizer, **curve)
    _play(optimizer, schedule, stop)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), schedule.state_dict()], file)
    expected = _play(optimizer, schedule, 14)

    file.seek(0)
    optimizer_state, schedule_state = torch.load(file, weights_only=True)
    optimizer = _optimizer(0.3, 0.7)
    schedule = WarmupCosine(optimizer, **curve)
    optimizer.load_state_dict(optimizer_state)
    schedule.load_state_dict(schedule_state)
    assert _play(optimizer, schedule, 14) == expected


@pytest.mark.parametrize(
    "other",
    [
        {"warmup_steps": 2, "total_steps": 10},
        {"warmup_steps": 3, "total_steps": 11},
        {"warmup_steps": 3, "total_steps": 10, "min_ratio": 0.5},
    ],
)
def test_the_state_of_another_curve_is_refused(other: dict[str, Any]) -> None:
    schedule = WarmupCosine(_optimizer(1.0), warmup_steps=3, total_steps=10)
    state = WarmupCosine(_optimizer(1.0), **other).state_dict()
    with pytest.raises(ValueError, match="saved schedule") as refusal:
        schedule.load_state_dict(state)
    for curve in ({"min_ratio": 0.0, **other}, {"warmup_steps": 3, "total_steps": 10}):
        assert all(f"'{name}': {value}" in str(refusal.value) for name, value in curve.items())


@pytest.mark.parametrize("taken", [1, 4, 9, 20])
def test_a_start_at_last_epoch_equals_one_that_was_stepped_there(taken: int) -> None:
    curve: dict[str, Any] = {"warmup_steps": 4, "total_steps": 10}
    stepped = simulate(partial(WarmupCosine, **curve), taken + 8)

    optimizer = _optimizer(1.0)
    optimizer.param_groups[0]["initial_lr"] = 1.0
    schedule = WarmupCosine(optimizer, **curve, last_epoch=taken - 1)
    assert [rate for (rate,) in _play(optimizer, schedule, 8)] == stepped[taken:]


def test_simulate_plays_a_schedule_of_torch() -> None:
    rates = simulate(partial(StepLR, step_size=3, gamma=0.5), 10, base_lr=0.8)
    assert rates == pytest.approx([0.8 * 0.5 ** (k // 3) for k in range(10)])


def _resumed(curve: dict[str, Any], stop: int, steps: int, **new: Any) -> list[float]:
    """Rates of a run on ``curve`` that goes on with other arguments after ``stop`` steps."""
    optimizer = _optimizer(1.0)
    schedule = WarmupCosine(optimizer, **curve)
    _play(optimizer, schedule, stop)
    state = schedule.state_dict()
    resumed = WarmupCosine(optimizer, **{**curve, **new})
    resumed.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = schedule.get_last_lr()[0]  # as an optimizer's state would
    return [rate for (rate,) in _play(optimizer, resumed, steps)]


@given(curve=curves(), stop=st.integers(0, 400), total_steps=st.integers(301, 600))
def test_a_replanned_run_goes_on_where_it_was_and_never_climbs(
    curve: dict[str, Any], stop: int, total_steps: int
) -> None:
    rates = _resumed(curve, stop, 650, total_steps=total_steps, on_new_horizon="replan")
    assert rates[0] == warmup_cosine(stop, **curve)
    after_warmup = rates[max(0, curve["warmup_steps"] - stop) :]
    assert all(a >= b for a, b in itertools.pairwise(after_warmup))
    assert rates[-1] == curve["min_ratio"]


def test_a_replanned_run_falls_along_a_new_half_cosine() -> None:
    # At the step 7 of a warmup of 4 and 10 steps the rate is half the peak; five more to the end.
    curve = {"warmup_steps": 4, "total_steps": 10}
    rates = _resumed(curve, 7, 7, total_steps=12, on_new_horizon="replan")
    expected = [0.5 * (1 + math.cos(math.pi * k / 5)) / 2 for k in range(6)]
    assert rates == pytest.approx([*expected, 0])


@given(curve=curves(), stop=st.integers(0, 400))
def test_a_kept_curve_is_the_saved_one(curve: dict[str, Any], stop: int) -> None:
    rates = _resumed(curve, stop, 100, total_steps=1000, on_new_horizon="keep")
    assert rates == [warmup_cosine(k, **curve) for k in range(stop, stop + 100)]


@pytest.mark.parametrize("choice", ["keep", "replan"])
def test_a_second_resume_with_the_new_horizon_changes_nothing(choice: Any) -> None:
    new = {"warmup_steps": 5, "total_steps": 20, "on_new_horizon": choice}
    optimizer = _optimizer(1.0)
    first = WarmupCosine(optimizer, warmup_steps=4, total_steps=10)
    _play(optimizer, first, 6)
    second = WarmupCosine(optimizer, **new)
    second.load_state_dict(first.state_dict())
    _play(optimizer, second, 3)
    third = WarmupCosine(_optimizer(1.0), **new)
    third.load_state_dict(second.state_dict())
    for _ in range(12):
        assert third.get_lr() == second.get_lr()
        second.step()
        third.step()
