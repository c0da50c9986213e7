from lightning_recipes.callbacks.agreed_flag import AgreedFlag
from tests.ranks import run_ranks


def test_a_single_process_sees_its_number_at_once() -> None:
    flag = AgreedFlag()
    flag.open()
    assert [flag.exchange(number) for number in (0, 3, 0)] == [0, 3, 0]
    assert flag.close() == 0


def answers(numbers: list[list[int]]) -> list[list[int]]:
    """Several runs of exchanges: what this rank learns in each, and at its close."""
    import torch.distributed as dist

    found = []
    for of_ranks in numbers:
        flag = AgreedFlag()
        flag.open()
        mine = of_ranks[dist.get_rank() :: dist.get_world_size()]
        found.append([*map(flag.exchange, mine), flag.close()])
    return found


def test_all_ranks_learn_the_same_one_exchange_later() -> None:
    # by exchange, what rank 0 and rank 1 give
    numbers = [[0, 0, 2, 0, 0, 0], [0, 1, 0, 0], [0, 0, 3, 5], []]
    expected = [[0, 0, 2, 0], [0, 1, 0], [0, 0, 5], [0]]
    assert run_ranks(answers, numbers) == [expected, expected]
