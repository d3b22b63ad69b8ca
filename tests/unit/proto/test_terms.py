"""Terms: each has one supervisor, ever; the journal's folder says what the newest is and where it listens."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deadpool.host.errors import ConfigError
from deadpool.proto.terms import (
    claim_term,
    clear_journal,
    is_superseded,
    newest_endpoint,
    newest_term,
    read_outcome,
    write_endpoint,
    write_outcome,
)


def test_a_term_is_claimed_once(tmp_path: Path) -> None:
    assert newest_term(tmp_path) == 0
    with ThreadPoolExecutor(8) as claimants:
        won = list(claimants.map(lambda _: claim_term(tmp_path, 1), range(8)))
    assert sorted(won) == [False] * 7 + [True]
    assert newest_term(tmp_path) == 1
    assert not is_superseded(tmp_path, 1)
    assert claim_term(tmp_path, 2)
    assert is_superseded(tmp_path, 1)
    assert not is_superseded(tmp_path, 2)


def test_the_newest_endpoint_counts(tmp_path: Path) -> None:
    assert newest_endpoint(tmp_path) == (0, "")
    for term in (1, 10, 9):
        write_endpoint(tmp_path, term, {"job_id": "j", "endpoint": f"h:{term}", "pid": 1})
    assert newest_endpoint(tmp_path) == (10, "h:10")
    assert newest_endpoint(tmp_path / "none") == (0, "")


def test_the_outcome(tmp_path: Path) -> None:
    assert read_outcome(tmp_path) is None
    write_outcome(tmp_path, 143)
    assert read_outcome(tmp_path) == 143


def test_nothing_of_an_earlier_job_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "job"
    clear_journal(folder)
    claim_term(folder, 1)
    write_outcome(folder, 0)
    clear_journal(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("folder", [Path("/proc/deadpool"), Path("/dev/full/journal")])
def test_where_no_journal_can_be_written_no_job_begins(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no journal can be written there"):
        clear_journal(folder)
