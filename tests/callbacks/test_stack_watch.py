import subprocess
import sys
import textwrap
import time

from lightning_recipes.callbacks.stack_watch import StackWatch

SCRIPT = """
    import time
    from lightning_recipes.callbacks.stack_watch import StackWatch

    def where_it_hangs():
        time.sleep(0.9)

    watch = StackWatch(0.3, "Rank 1: nothing").start()
    for _ in range(5):
        time.sleep(0.1)
        watch.beat()
    where_it_hangs()
    watch.end()
    time.sleep(0.5)
"""


def test_it_writes_the_stack_once_where_nothing_happens() -> None:
    script = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    run = subprocess.run(script, check=True, capture_output=True, text=True, timeout=120)
    assert run.stderr.count("Rank 1: nothing for 0.3 s. Where it stands:") == 1
    assert run.stderr.count("where_it_hangs") == 1


def test_a_beat_costs_nothing() -> None:
    watch = StackWatch(60.0, "").start()
    start = time.perf_counter()
    for _ in range(10_000):
        watch.beat()
    assert (time.perf_counter() - start) / 10_000 < 20e-6
    watch.end()
