import pickle

from lightning_recipes import Finding, NonFiniteError, Origin

BATCH = Finding(kind="batch", name="field ['x']", detail="1 nan of 4")
LOSS = Finding(kind="loss", name="", detail="1 nan of 1", before="output of 2 (Linear) in [0, 1]")
ORIGINS = [
    Origin(rank=1, batch_idx=9, micro_batch=1, num_micro_batches=4, findings=[BATCH, LOSS]),
    Origin(rank=3, findings=[LOSS], capsule="/there/it.pt"),
]


def test_goes_through_pickle_whole() -> None:
    error = NonFiniteError("It is so.", step=7, epoch=2, origins=ORIGINS)
    error.add_note("Seen on a Monday.")
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is NonFiniteError
    assert (str(other), other.step, other.epoch, other.origins) == ("It is so.", 7, 2, ORIGINS)


def test_names_the_ranks_and_the_earliest() -> None:
    error = NonFiniteError("It is so.", step=7, epoch=2, origins=ORIGINS)
    assert error.ranks == [1, 3]
    assert error.first == BATCH
    nothing = NonFiniteError("It is so.", step=7, epoch=2)
    assert (nothing.origins, nothing.ranks, nothing.first) == ([], [], None)


def test_an_origin_reads_as_a_paragraph() -> None:
    assert str(ORIGINS[0]).splitlines() == [
        "rank 1, batch 9 (micro-batch 2 of 4): began with batch field ['x']: 1 nan of 4",
        "  then loss: 1 nan of 1; just before: output of 2 (Linear) in [0, 1]",
    ]
    assert str(ORIGINS[1]).splitlines()[-1] == (
        "  look at it: lightning_recipes.replay('/there/it.pt', module)"
    )
