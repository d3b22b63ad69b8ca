"""The call record: what a rank writes, its agent reads, at any moment and after the rank's death."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from deadpool.proto.call_record import MAX_GROUPS, MAX_NUMBER_NAME, MAX_NUMBERS, RECORD_BYTES, CallRecord, Head, record_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return record_path(tmp_path, 3)


def test_a_reader_sees_what_the_writer_wrote(path: Path) -> None:
    writer, reader = CallRecord(path, create=True), CallRecord(path, create=False)
    head = Head(
        pid=7, generation=2, step=5, step_began_ns=11, steps_done=4, commit_step=3, stall_ns=9, typical_step_ns=100, yielded=5,
        until=40, stepped_ns=900, waited_ns=-1, replicated_bytes=1 << 40,
    )  # fmt: skip
    writer.write_head(head)
    assert reader.head() == head
    writer.write_commit(4)
    assert reader.head() == replace(head, commit_step=4)
    writer.end_script()
    writer.write_head(head)
    writer.close()
    assert reader.head() == replace(head, script_ended=True)
    reader.close()


def test_the_agent_holds_a_step_beside_all_that_the_rank_writes(path: Path) -> None:
    writer, reader = CallRecord(path, create=True), CallRecord(path, create=False)
    assert writer.held() is None
    reader.hold(0)
    writer.write_head(Head(pid=7, step=3))
    writer.end_script()
    writer.report("loss", 3.5)
    assert (writer.held(), reader.head().script_ended, reader.numbers()) == (0, True, {"loss": 3.5})
    reader.hold(None)
    assert writer.held() is None
    writer.close()
    reader.close()


def test_numbers_of_the_script_have_a_row_each(path: Path) -> None:
    writer, reader = CallRecord(path, create=True), CallRecord(path, create=False)
    row = writer.add_group("world")
    assert reader.numbers() == {}
    writer.report("loss", 3.5)
    writer.report("a" * MAX_NUMBER_NAME, 1.0)
    writer.report("loss", 2.5)
    writer.entered(row, b"barrier", 1)
    assert reader.numbers() == {"loss": 2.5, "a" * MAX_NUMBER_NAME: 1.0}
    for number in range(MAX_NUMBERS - 2):
        writer.report(f"n{number}", float(number))
    with pytest.raises(ValueError, match="one_more: there are 16 numbers already"):
        writer.report("one_more", 0.0)
    assert len(reader.numbers()) == MAX_NUMBERS
    assert [each.group for each in reader.groups()] == ["world"]
    writer.close()
    reader.close()


def test_calls_are_counted_per_group(path: Path) -> None:
    writer, reader = CallRecord(path, create=True), CallRecord(path, create=False)
    world, dp = writer.add_group("world"), writer.add_group("dp_0")
    writer.entered(dp, b"allreduce", 1)
    writer.completed(dp, 1)
    writer.entered(dp, b"broadcast", 2)
    writer.entered(world, b"barrier", 1)
    groups = {each.group: each for each in reader.groups()}
    assert (groups["dp_0"].operation, groups["dp_0"].entered, groups["dp_0"].completed) == ("broadcast", 2, 1)
    assert (groups["world"].operation, groups["world"].entered, groups["world"].completed) == ("barrier", 1, 0)
    assert groups["dp_0"].entered_ns >= groups["dp_0"].completed_ns > 0
    assert groups["world"].completed_ns == 0
    writer.close()
    reader.close()


def test_a_long_name_keeps_its_end_and_a_cut_character_harms_nothing(path: Path) -> None:
    record = CallRecord(path, create=True)
    record.add_group("x" * 60 + "é" + "y" * 47)
    record.entered(0, b"an_operation_with_a_very_long_name", 1)
    (group,) = record.groups()
    assert group.group.endswith("y" * 47)
    assert group.operation == "an_operation_with_a_very"
    record.close()


def test_more_groups_than_rows_share_the_last_one(path: Path) -> None:
    record = CallRecord(path, create=True)
    rows = [record.add_group(f"g{number}") for number in range(MAX_GROUPS + 2)]
    assert rows[-3:] == [MAX_GROUPS - 1] * 3
    assert [each.group for each in record.groups()][-1] == f"g{MAX_GROUPS + 1}"
    record.close()


def test_the_row_of_a_removed_group_is_used_again(path: Path) -> None:
    record = CallRecord(path, create=True)
    first, second = record.add_group("first"), record.add_group("second")
    record.entered(first, b"allreduce", 7)
    record.remove_group(first)
    record.rename_group(second, "renamed")
    assert [each.group for each in record.groups()] == ["renamed"]
    assert record.add_group("third") == first
    assert [(each.group, each.entered) for each in record.groups()] == [("third", 0), ("renamed", 0)]
    record.close()


def test_a_new_record_is_empty_private_and_replaces_the_old_one(path: Path) -> None:
    first = CallRecord(path, create=True)
    first.write_head(Head(pid=1, generation=9))
    second = CallRecord(path, create=True)
    assert second.head() == Head()  # no step and no commit, in particular not commit 0
    assert second.groups() == []
    assert first.head().generation == 9
    assert (path.stat().st_size, stat.S_IMODE(path.stat().st_mode)) == (RECORD_BYTES, 0o600)
    first.close()
    second.close()
