import pytest

from deadpool.supervisor.classify import ErrorMark, FailureClass, classify_exit, error_mark

_ERROR = error_mark(rank=3, step=7, exit_code=1, error="Traceback\n  ...\nValueError: x\n", log_tail="")


def _classify(
    *, mark: ErrorMark = _ERROR, signal: int = 0, committed: bool = True, seen: tuple[ErrorMark, ...] = (), before: int = 0
) -> FailureClass:
    found, why = classify_exit(
        mark=mark, signal=signal, committed=committed, seen=seen, transients_before=before, max_transient=3
    )
    assert why
    return found


@pytest.mark.parametrize("committed", [True, False])
def test_a_signal_is_transient_until_it_comes_too_often(committed: bool) -> None:
    assert _classify(signal=9, committed=committed, before=2) is FailureClass.TRANSIENT
    assert _classify(signal=9, committed=committed, before=3) is FailureClass.PERMANENT


def test_an_error_before_any_commit_is_fatal() -> None:
    assert _classify(committed=False) is FailureClass.FATAL


def test_an_error_is_given_a_second_chance_and_no_third() -> None:
    assert _classify() is FailureClass.TRANSIENT
    assert _classify(seen=(_ERROR,)) is FailureClass.FATAL


@pytest.mark.parametrize(
    "other",
    [
        error_mark(rank=2, step=7, exit_code=1, error="ValueError: x", log_tail=""),
        error_mark(rank=3, step=8, exit_code=1, error="ValueError: x", log_tail=""),
        error_mark(rank=3, step=7, exit_code=2, error="ValueError: x", log_tail=""),
        error_mark(rank=3, step=7, exit_code=1, error="ValueError: y", log_tail=""),
    ],
)
def test_another_rank_step_code_or_message_is_another_error(other: ErrorMark) -> None:
    assert _classify(seen=(other,)) is FailureClass.TRANSIENT


def test_the_log_tells_what_the_traceback_does_not() -> None:
    assert error_mark(rank=3, step=7, exit_code=1, error="", log_tail="...\nValueError: x") == _ERROR
    assert error_mark(rank=3, step=7, exit_code=1, error="", log_tail="").last_line == ""
