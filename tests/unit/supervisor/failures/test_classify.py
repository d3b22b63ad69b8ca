"""The shipped rules, one fact after the other, and rules of the user's own."""

from typing import Any

import pytest

from deadpool.host.errors import ConfigError
from deadpool.supervisor.failures.classify import Facts, classify, unhealthy
from deadpool.supervisor.failures.rules import parse_rules, rules_of
from deadpool.supervisor.model.failure import ErrorMark, What, error_mark

_ERROR = error_mark(rank=3, step=7, exit_code=1, error="Traceback\n  ...\nValueError: x\n", log_tail="")


def _verdict(rules: str = "", **facts: Any) -> str:
    failure_class, name, why = classify(rules_of(rules), Facts(**facts))
    assert why
    return f"{failure_class} {name}"


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({"what": What.EXIT, "exit_code": 1, "committed": False}, "fatal error-before-any-commit"),
        ({"what": What.EXIT, "exit_code": 1, "again": True}, "fatal same-error-again"),
        ({"what": What.EXIT, "exit_code": 1, "everywhere": True}, "fatal same-error-everywhere"),
        ({"what": What.EXIT, "exit_code": 1, "text": "ValueError: x"}, "transient error"),
        ({"what": What.EXIT, "exit_code": 1, "text": "NCCL error in: x.cpp:12, remote process exited"}, "transient network"),
        ({"what": What.EXIT, "exit_code": 1, "text": "RuntimeError: Connection reset by peer"}, "transient network"),
        (
            {"what": What.EXIT, "exit_code": 1, "text": "torch.OutOfMemoryError: CUDA out of memory."},
            "transient gpu-out-of-memory",
        ),
        ({"what": What.EXIT, "exit_code": 1, "text": "MemoryError"}, "transient host-out-of-memory"),
        ({"what": What.EXIT, "text": "CUDA error: an illegal memory access was encountered"}, "transient gpu-error"),
        ({"what": What.EXIT, "text": "CUDA error: uncorrectable ECC error encountered"}, "permanent gpu-ecc"),
        ({"what": What.EXIT, "text": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus"}, "permanent xid-hardware"),
        ({"what": What.EXIT, "text": "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU fault"}, "transient error"),
        ({"what": What.SIGNAL, "signal": 9, "committed": False}, "transient killed"),
        ({"what": What.SIGNAL, "signal": 11}, "transient signal"),
        ({"what": What.SIGNAL, "signal": 7, "readings": {"gpu_ecc_uncorrected": 1.0}}, "permanent reading-ecc"),
        ({"what": What.SIGNAL, "signal": 7, "readings": {"gpu_ecc_uncorrected": 0.0}}, "transient signal"),
        ({"what": What.SIGNAL, "signal": 9, "earlier": [(What.EXIT, 9.0)] * 2}, "transient killed"),
        ({"what": What.SIGNAL, "signal": 9, "earlier": [(What.EXIT, 9.0)] * 3}, "permanent too-often"),
        ({"what": What.SIGNAL, "signal": 9, "earlier": [(What.EXIT, 4000.0)] * 3}, "transient killed"),
        ({"what": What.HANG}, "transient hang"),
        ({"what": What.HANG, "earlier": [(What.HANG, 60.0)]}, "permanent hangs-again"),
        ({"what": What.HANG, "earlier": [(What.SIGNAL, 60.0)]}, "transient hang"),
        ({"what": What.LATE}, "transient late"),
    ],
)
def test_the_shipped_rules(facts: dict[str, Any], verdict: str) -> None:
    assert _verdict(**facts) == verdict


def test_a_spare_is_unhealthy_by_its_readings_alone() -> None:
    assert unhealthy(rules_of(""), {"gpu_lost": 0.0, "memory_share": 0.99}) is None
    assert unhealthy(rules_of(""), {"gpu_lost": 1.0}) == ("reading-gpu-lost", "event health, gpu_lost is 1")


_OWN = """
[[rule]]
name = "licence"
class = "fatal"
event = "exit"
exit_codes = [3, 4]
text = "no licence"

[[rule]]
name = "hangs-again"
class = "fatal"
event = "hang"
failures_on_node = 2
"""


def test_rules_of_ones_own_come_first_or_stand_in_a_shipped_ones_place() -> None:
    assert _verdict(_OWN, what=What.EXIT, exit_code=4, text="no licence for you") == "fatal licence"
    assert _verdict(_OWN, what=What.EXIT, exit_code=5, text="no licence for you") == "transient error"
    assert _verdict(_OWN, what=What.HANG, earlier=[(What.HANG, 1.0)]) == "transient hang"
    assert _verdict(_OWN, what=What.HANG, earlier=[(What.HANG, 1.0)] * 2) == "fatal hangs-again"
    names = [rule.name for rule in rules_of(_OWN)]
    assert names.index("licence") == 0
    assert names.index("hangs-again") == [rule.name for rule in rules_of("")].index("hangs-again") + 1


_RULE = '[[rule]]\nname = "a"\nclass = "fatal"\nevent = "exit"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rule]\n", "r.toml: not TOML"),
        ("rules = 3\n", "r.toml: unknown rules; each rule is a table [[rule]]"),
        ("rule = 3\n", "each rule is a table [[rule]]"),
        ('[[rule]]\nname = "a"\nevent = "exit"\n', "r.toml: rule 'a': 'class' is missing"),
        ('[[rule]]\nclass = "fatal"\nevent = "exit"\n', "r.toml: rule 1: 'name' is missing"),
        (_RULE.replace("fatal", "bad"), "class = 'bad': expected one of transient, permanent, fatal"),
        (_RULE.replace("exit", "fire"), "event = 'fire': expected one or more of exit, signal"),
        (_RULE + "exitcodes = [1]\n", "unknown key 'exitcodes'; known: name, class"),
        (_RULE + "exit_codes = 1\n", "exit_codes = 1: expected a list of whole numbers"),
        (_RULE + 'text = "("\n', "text = '('"),
        (_RULE + 'again = "yes"\n', "again = 'yes': expected true or false"),
        (_RULE + 'reading = "gpu_xid"\n', "'reading' and 'at_least' go together"),
        (_RULE.replace("exit", "health"), "needs a reading and class 'permanent'"),
        (_RULE + _RULE, "two rules are named 'a'"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rules(text, "r.toml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "other",
    [
        error_mark(rank=3, step=8, exit_code=1, error="ValueError: x", log_tail=""),
        error_mark(rank=3, step=7, exit_code=2, error="ValueError: x", log_tail=""),
        error_mark(rank=3, step=7, exit_code=1, error="ValueError: y", log_tail=""),
    ],
)
def test_another_step_code_or_message_is_another_error(other: ErrorMark) -> None:
    assert not _ERROR.same_elsewhere(other)
    assert _ERROR.same_elsewhere(error_mark(rank=2, step=7, exit_code=1, error="ValueError: x", log_tail=""))


def test_the_log_tells_what_the_traceback_does_not() -> None:
    assert error_mark(rank=3, step=7, exit_code=1, error="", log_tail="...\nValueError: x") == _ERROR
    assert error_mark(rank=3, step=7, exit_code=1, error="", log_tail="").last_line == ""
