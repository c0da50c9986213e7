import copy
import math
from typing import Any

import pytest

from lightning_recipes.certify.comparison import (
    Difference,
    common_start,
    compare,
    first,
)

STEPS_PER_EPOCH = 3
Run = list[dict[str, Any]]


def make_run(num_epochs: int = 2) -> Run:
    """A run that logs a row per step, and validates at the end of an epoch."""
    records: Run = []
    moment = 0

    def add(kind: str, step: int, epoch: int, **fields: Any) -> None:
        nonlocal moment
        moment += kind != "row"
        records.append({"kind": kind, "moment": moment, "step": step, "epoch": epoch, **fields})

    def learned(step: int) -> dict[str, Any]:
        return {"weights": {"a": f"a{step}", "b": f"b{step}"}, "optimizer": {"a, exp_avg": step}}

    step = 0
    for epoch in range(num_epochs):
        for k in range(STEPS_PER_EPOCH):
            step += 1
            add("begin", step, epoch)
            rng = {"python": "p", "torch": f"t{step}"}
            batch = {"batch_idx": k, "ids": [[step]], "batch": f"x{step}", "rng": rng}
            add("batch", step, epoch, **batch, learning_rates={"optimizer 0": 1 / step})
            add("step", step, epoch, **learned(step))
            add("row", step, epoch, logged_step=step - 1, values={"loss": 1.0 / step})
        add("validation", step, epoch)
        add("row", step, epoch, logged_step=step - 1, values={"val": math.nan, "epoch": epoch})
        add("epoch_end", step, epoch)
    rates = {"optimizer 0": 0.0}
    add("end", step, num_epochs, global_step=step, learning_rates=rates, **learned(step))
    return records


def find(run: Run, kind: str, step: int) -> dict[str, Any]:
    return next(record for record in run if record["kind"] == kind and record["step"] == step)


def resumed(after_moment: int) -> Run:
    return copy.deepcopy([r for r in make_run() if r["moment"] > after_moment])


def differences(found: Run, after_moment: int = 0) -> dict[str, Difference]:
    result = compare([make_run()], [found], after_moment=after_moment)
    assert tuple(result) == Difference.QUANTITIES
    return {name: difference for name, difference in result.items() if difference is not None}


@pytest.mark.parametrize("after_moment", [0, 3, 9, 11, 12])
def test_the_same_run_has_no_difference(after_moment: int) -> None:
    assert differences(resumed(after_moment), after_moment) == {}


@pytest.mark.parametrize(
    ("kind", "field", "key", "quantity"),
    [
        ("batch", "rng", "torch", "rng"),
        ("batch", "learning_rates", "optimizer 0", "learning rate"),
        ("step", "weights", "b", "weights"),
        ("step", "optimizer", "a, exp_avg", "optimizer"),
        ("row", "values", "loss", "rows"),
    ],
)
def test_names_what_differs_and_both_values(kind: str, field: str, key: str, quantity: str) -> None:
    run = resumed(9)
    expected = find(run, kind, 5)[field][key]
    find(run, kind, 5)[field][key] = find(run, kind, 6)[field][key] = "other"
    (difference,) = differences(run, 9).values()
    assert (difference.quantity, difference.step, difference.epoch) == (quantity, 5, 1)
    assert key in difference.name
    assert (difference.expected, difference.found) == (expected, "other")
    assert "step 5" in str(difference)
    assert "'other'" in str(difference)


def test_a_parameter_that_one_run_lacks_differs() -> None:
    run = make_run()
    del find(run, "step", 2)["weights"]["b"]
    find(run, "step", 2)["weights"]["c"] = "c2"
    assert differences(run)["weights"].name == "b"
    assert differences(run)["weights"].found is None


def test_final_weights_count() -> None:
    run = make_run()
    find(run, "end", 6)["weights"]["a"] = "averaged"
    assert differences(run)["weights"].expected == "a6"


def test_sample_ids_are_named_before_the_digest() -> None:
    run = make_run()
    find(run, "batch", 3)["ids"] = [[9]]
    find(run, "batch", 3)["batch"] = "x9"
    assert differences(run)["batches"].name == "sample ids"
    for record in (find(run, "batch", 3), *(expected := make_run())):
        if record["kind"] == "batch":
            record["ids"] = None
    difference = compare([expected], [run])["batches"]
    assert difference is not None
    assert difference.name == "digest of the batch"


def test_a_missing_and_an_extra_batch() -> None:
    run = make_run()
    shorter = [r for r in run if not (r["kind"] == "batch" and r["step"] == 6)]
    difference = differences(shorter)["batches"]
    assert (difference.name, difference.expected, difference.step) == (
        "missing batch",
        "batch 2",
        6,
    )
    difference = differences([*run, find(run, "batch", 6)])["batches"]
    assert (difference.name, difference.found) == ("extra batch", "batch 2")


@pytest.mark.parametrize("kind", ["row", "validation"])
def test_a_missing_row_is_found_at_its_step(kind: str) -> None:
    run = make_run()
    run.remove(find(run, kind, 4 if kind == "row" else 3))
    difference = differences(run)["rows"]
    assert difference.name.startswith("missing")
    assert difference.step == (4 if kind == "row" else 3)
    assert difference.found is None


def test_an_extra_row_is_found() -> None:
    run = make_run()
    extra = {**find(run, "row", 4), "values": {"surprise": 1}}
    run.insert(run.index(find(run, "row", 4)), extra)
    difference = differences(run)["rows"]
    assert difference.name.startswith("extra")
    assert difference.found == {"surprise": 1}


def test_a_missing_last_row_is_found() -> None:
    run = make_run()
    last = [record for record in run if record["kind"] == "row"][-1]
    run.remove(last)
    assert differences(run)["rows"].name.startswith("missing")


def test_rows_logged_while_the_checkpoint_was_written_count_as_logged() -> None:
    step = find(make_run(), "step", 3)["moment"]
    run = resumed(step)
    assert find(run, "validation", 3)
    assert differences(run, step) == {}
    run = [r for r in run if r["moment"] > step + 1]
    assert "validation" in differences(run, step)["rows"].name


def test_nan_equals_nan_only() -> None:
    run = make_run()
    row = next(r for r in run if r["kind"] == "row" and "val" in r["values"])
    assert math.isnan(row["values"]["val"])
    row["values"]["val"] = 0.0
    assert "val" in differences(run)["rows"].name


def test_another_end_is_found() -> None:
    run = make_run()
    find(run, "end", 6)["epoch"] = 3
    assert differences(run)["end"].name == "epoch"
    assert differences(run[:-1])["end"].found is None


def test_a_rank_is_named() -> None:
    other = make_run()
    find(other, "batch", 2)["rng"]["torch"] = "other"
    difference = compare([make_run()] * 2, [make_run(), other])["rng"]
    assert difference is not None
    assert difference.rank == 1
    with pytest.raises(ValueError, match="2 ranks"):
        compare([make_run()] * 2, [make_run()])


def test_the_cause_comes_first() -> None:
    run = make_run()
    find(run, "batch", 4)["rng"]["torch"] = "other"
    find(run, "step", 4)["weights"]["a"] = "other"
    find(run, "row", 5)["values"]["loss"] = 0.0
    found = differences(run)
    assert set(found) == {"rng", "weights", "rows"}
    assert first([found["rows"], None, found["weights"], found["rng"]]) is found["rng"]
    assert first([None]) is None


def test_a_killed_run_is_compared_as_far_as_it_came() -> None:
    killed = make_run()[:10]
    expected, found = common_start([make_run()], [killed])
    assert set(compare(expected, found).values()) == {None}
    find(killed, "batch", 2)["batch"] = "other"
    assert compare(*common_start([make_run()], [killed]))["batches"] is not None
