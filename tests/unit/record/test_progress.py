import pytest

from lockstep.record.progress import Progress


def test_counters_say_how_far_a_run_is():
    progress = Progress(100)
    assert (progress.finished, progress.fraction) == (False, 0.0)
    progress.env_steps = 99
    assert (progress.finished, progress.fraction) == (False, 0.99)
    progress.env_steps = 128
    assert (progress.finished, progress.fraction) == (True, 1.0)
    assert Progress(**progress.state()) == progress


@pytest.mark.parametrize(
    ("every", "advanced", "due"),
    [
        (100, 64, [128, 256, 320, 448, 512, 640]),
        (64, 64, [64, 128, 192, 256, 320, 384, 448, 512, 576, 640]),
        (10, 64, [64, 128, 192, 256, 320, 384, 448, 512, 576, 640]),
        (1000, 64, []),
        (None, 64, []),
    ],
)
def test_a_period_is_due_once_when_it_ended(every, advanced, due):
    progress, found = Progress(640), []
    while not progress.finished:
        progress.env_steps += advanced
        if progress.due(every, advanced):
            found.append(progress.env_steps)
    assert found == due
