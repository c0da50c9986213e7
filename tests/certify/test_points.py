from lightning_recipes.certify.points import default_points
from tests.certify.test_comparison import find, make_run


def test_default_points_lie_inside_at_the_border_and_in_the_second_epoch() -> None:
    assert default_points(make_run()) == [2, 4, 5]
    assert default_points(make_run(1)) == [2]
    assert default_points([find(make_run(), "batch", 1)]) == [1]
    assert default_points([]) == []
