# ruff: noqa: NPY002 - the global generators are the subject
import contextlib
import copy
import io
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_recipes.rng import (
    _MULTIPLIER,
    capture_rng_state,
    derive_seed,
    preserve_rng,
    restore_rng_state,
    seed_host_generators,
)

LOW_WORD = 0xFFFFFFFF
WORDS = st.integers(0, 2**64 - 1)


@pytest.fixture(autouse=True)
def _leave_no_broken_generator_behind() -> Iterator[None]:
    with preserve_rng():
        yield


@settings(max_examples=10)
@given(seed=WORDS)
def test_every_rank_worker_and_epoch_has_its_own_low_word(seed: int) -> None:
    points = itertools.product(range(8), range(16), range(100))
    assert len({derive_seed(seed, *point) & LOW_WORD for point in points}) == 12_800


@pytest.mark.parametrize("shape", [(60, 60, 60), (1, 1, 200_000)])
def test_low_words_never_collide_where_random_ones_would(shape: tuple[int, ...]) -> None:
    # 200,000 random words of 32 bits would hold about five pairs of equals.
    points = itertools.product(*map(range, shape))
    words = [derive_seed(1, *point) & LOW_WORD for point in points]
    assert len(set(words)) == len(words)


def test_the_multiplier_keeps_low_words_apart_as_far_as_promised() -> None:
    # Low words agree where a * m**2 + b * m + c is 0 modulo 2**32, for the differences a, b, c.
    reach = 1163
    differences = np.arange(-reach, reach + 1).astype(np.uint32)
    a = differences * np.uint32(_MULTIPLIER**2 & LOW_WORD)
    b = differences * np.uint32(_MULTIPLIER & LOW_WORD)
    collide = a[:, None] + b[None, :] + np.uint32(reach) <= 2 * reach
    assert np.argwhere(collide).tolist() == [[reach, reach]]


@given(a=WORDS, b=WORDS, c=WORDS)
def test_order_and_number_of_coordinates_are_part_of_the_point(a: int, b: int, c: int) -> None:
    seeds = [derive_seed(*p) for p in ((a, b, c), (a, b), (b, a), (a,), (0, a), (a, 0))]
    assert len(set(seeds)) == len({(a, b, c), (a, b), (b, a), (a,), (0, a), (a, 0)})


@given(point=st.lists(WORDS, min_size=1, max_size=5))
def test_a_seed_is_a_function_of_its_point_and_fits_63_bits(point: list[int]) -> None:
    seed = derive_seed(*point)
    assert 0 <= seed < 2**63
    numpy_point: Any = np.array(point, dtype=np.uint64)
    assert derive_seed(*numpy_point) == seed


def test_every_bit_of_the_seeds_of_an_epoch_is_balanced() -> None:
    num = 4096
    seeds = np.array([derive_seed(0, 0, i) for i in range(num)])
    ones = np.array([(seeds >> bit & 1).sum() for bit in range(63)])
    standard_deviation = num**0.5 / 2
    assert (abs(ones - num / 2) < 4.5 * standard_deviation).all()


@pytest.mark.parametrize("value", [1.0, True, "1", None, np.float64(1)])
def test_a_coordinate_that_is_no_integer_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        derive_seed(0, value)


@pytest.mark.parametrize("point", [(-1,), (0, 2**64), ()])
def test_a_point_out_of_range_is_refused(point: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="coordinate"):
        derive_seed(*point)


def test_one_seed_gives_one_stream_in_all_three_libraries() -> None:
    streams = []
    for seed in (derive_seed(0), derive_seed(0), derive_seed(1)):
        seed_host_generators(seed)
        streams.append(_draw())
    first, again, other = streams
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_numpy_and_torch_do_not_share_a_stream() -> None:
    np.random.seed(7)
    torch.manual_seed(7)
    assert _numpy_words() == _torch_words()  # as they would, being the same generator

    seed_host_generators(7)
    assert not set(_numpy_words()) & set(_torch_words())


@pytest.mark.parametrize("has_half_a_normal_pair", [False, True])
def test_a_saved_state_continues_every_stream(has_half_a_normal_pair: bool) -> None:
    seed_host_generators(1)
    if has_half_a_normal_pair:
        _draw_normals()
    state = capture_rng_state()
    expected = _draw()

    seed_host_generators(2)
    file = io.BytesIO()
    torch.save(state, file)
    assert file.tell() < 20 * 1024
    file.seek(0)
    restore_rng_state(torch.load(file, weights_only=True))
    assert _draw() == expected


def test_the_state_of_a_device_that_is_not_here_is_left_out() -> None:
    state = capture_rng_state()
    expected = _draw()
    restore_rng_state({**state, "device": {"type": "ipu", "state": torch.zeros(3).byte()}})
    assert _draw() == expected


def _edit(**parts: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def edit(state: dict[str, Any]) -> None:
        for part, entries in parts.items():
            state[part].update(entries)

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda state: state.update(version=2), id="version"),
        pytest.param(lambda state: state.pop("version"), id="no version"),
        pytest.param(_edit(python={"words": torch.zeros(625)}), id="python dtype"),
        pytest.param(_edit(python={"words": torch.zeros(624).int()}), id="python length"),
        pytest.param(_edit(numpy={"words": torch.zeros(624).long()}), id="numpy dtype"),
        pytest.param(_edit(numpy={"words": torch.zeros(625).int()}), id="numpy length"),
        pytest.param(lambda state: state.update(torch=torch.zeros(5056)), id="torch dtype"),
        pytest.param(lambda state: state.update(torch=torch.zeros(16).byte()), id="torch length"),
        pytest.param(lambda state: state.update(torch=[1, 2]), id="torch no tensor"),
    ],
)
def test_a_damaged_state_is_refused_before_any_generator_is_touched(
    damage: Callable[[dict[str, Any]], None],
) -> None:
    seed_host_generators(1)
    state = copy.deepcopy(capture_rng_state())
    damage(state)
    seed_host_generators(2)
    before = _host_states()
    with pytest.raises(ValueError, match="RNG state"):
        restore_rng_state(state)
    assert _host_states() == before


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda state: state["torch"].zero_(), id="torch bytes"),
        pytest.param(_edit(numpy={"position": 9999}), id="numpy position"),
        pytest.param(lambda state: state["numpy"].pop("gauss"), id="numpy entry"),
        pytest.param(lambda state: state.pop("torch"), id="torch"),
    ],
)
def test_a_state_damaged_inside_is_refused_before_any_generator_is_touched(
    damage: Callable[[dict[str, Any]], None],
) -> None:
    test_a_damaged_state_is_refused_before_any_generator_is_touched(damage)


def test_a_state_that_is_no_dict_is_refused() -> None:
    with pytest.raises(ValueError, match="'list'"):
        restore_rng_state([1])  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [True, False])
def test_preserve_rng_leaves_the_generators_as_it_found_them(device: bool) -> None:
    seed_host_generators(1)
    _draw_normals()
    before = _host_states()
    with preserve_rng(device=device):
        _draw()
        assert _host_states() != before
    assert _host_states() == before


def test_preserve_rng_does_so_after_an_exception_too() -> None:
    before = _host_states()
    with contextlib.suppress(KeyError), preserve_rng():
        seed_host_generators(3)
        raise KeyError
    assert _host_states() == before


@pytest.mark.gpu
def test_the_cuda_generator_goes_along() -> None:
    torch.cuda.manual_seed(1)
    torch.rand(3, device="cuda")
    state = capture_rng_state()
    with preserve_rng():
        expected = torch.rand(3, device="cuda")
    assert torch.equal(torch.rand(3, device="cuda"), expected)

    torch.cuda.manual_seed(2)
    restore_rng_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def _draw_normals() -> list[float]:
    return [random.gauss(0, 1), float(np.random.normal()), torch.randn(()).item()]


def _draw() -> list[float]:
    return [*_draw_normals(), random.random(), float(np.random.rand()), torch.rand(()).item()]


def _numpy_words() -> list[int]:
    words: list[int] = (np.random.randint(0, 2**32, 64, dtype=np.uint32) & 0xFFFFF).tolist()
    return words


def _torch_words() -> list[int]:
    words: list[int] = torch.randint(0, 2**20, (64,)).tolist()
    return words


def _host_states() -> tuple[Any, ...]:
    numpy_state: Any = np.random.get_state()
    name, key, *rest = numpy_state
    return random.getstate(), (name, key.tolist(), *rest), torch.get_rng_state().tolist()
