"""What a drill's tables lead to in words."""

import pytest

from deadpool.trainer_hooks.drill.tables import Table, differences
from deadpool.trainer_hooks.drill.verdict import AttemptTables, Divergence, beside, findings

ITEMS = {"model/model.a": "float32 1", "buffer/model.bn1.mean": "float32 2", "buffer/model.bn1.var": "float32 3"}
META = {"random.torch": "x", "extra.scheduler.last_epoch": "4"}


def attempt(
    *, before: dict[str, str] | None = None, after: dict[str, str] | None = None, meta: str = "4", loss: str = "0.5",
    loose: dict[str, str] | None = None, meta_after: str = "5",
) -> AttemptTables:  # fmt: skip
    return AttemptTables(
        before=Table(items=ITEMS | (before or {}), meta=META | {"extra.scheduler.last_epoch": meta}, loose=loose or {}),
        after=Table(
            items=ITEMS | (after or {}), meta=META | {"extra.scheduler.last_epoch": meta_after}, value={"returned": loss}
        ),
    )


def cause(first: AttemptTables, again: AttemptTables) -> str:
    (finding,) = findings({0: first}, {0: again})
    assert finding.ranks == (0,)
    return finding.cause


def test_nothing_is_found_where_all_is_the_same_whatever_lies_beside_the_state() -> None:
    assert findings({0: attempt(loose={"variable n": "1"})}, {0: attempt(loose={"variable n": "2"})}) == []


def test_a_state_that_is_restored_otherwise_is_named_first_by_item() -> None:
    again = attempt(before={"model/model.a": "float32 9"}, after={"model/model.a": "float32 8"}, loss="0.6")
    assert cause(attempt(), again) == (
        "the state differs right after the restore: item model/model.a (float32 1 became float32 9)"
    )


def test_buffers_alone_are_named_by_their_module() -> None:
    restored = attempt(before={"buffer/model.bn1.mean": "float32 9", "buffer/model.bn1.var": "float32 8"})
    assert cause(attempt(), restored) == "the state differs right after the restore: only the buffers of model.bn1 differ"
    stepped = attempt(after={"buffer/model.bn1.mean": "float32 9"})
    assert "after it only the buffers of model.bn1 differ" in cause(attempt(), stepped)


def test_metadata_is_named_by_its_path() -> None:
    assert cause(attempt(), attempt(meta="5")) == (
        "metadata differs right after the restore, at extra.scheduler.last_epoch (4 became 5)"
    )
    assert "after it metadata differs at extra.scheduler.last_epoch (5 became 6)" in cause(attempt(), attempt(meta_after="6"))


def test_another_loss_from_the_same_state_is_data_or_random_numbers() -> None:
    again = attempt(loss="0.6", after={"model/model.a": "float32 9"})
    assert cause(attempt(), again).startswith("all state is the same before the step and what it returns differs: data or random")


def test_the_generator_that_had_moved_on_is_the_likely_cause() -> None:
    first = attempt(loose={"random generator source": "1", "attribute steps of optimizer": "1"})
    again = attempt(loose={"random generator source": "2", "attribute steps of optimizer": "2"}, loss="0.6")
    assert "likely random generator source, which is not in the state: pass it in extra=" in cause(first, again)
    assert "steps of optimizer" not in cause(first, again)  # it comes after the loss


def test_an_attribute_of_a_module_is_the_likely_cause_of_another_loss() -> None:
    first = attempt(loose={"attribute calls of module model": "1"})
    again = attempt(loose={"attribute calls of module model": "2"}, loss="0.6")
    assert "likely attribute calls of module model, which is not in the state: register it as a buffer" in cause(first, again)


def test_a_counter_of_the_optimizer_is_the_likely_cause_where_the_loss_is_the_same() -> None:
    first = attempt(loose={"attribute steps of optimizer": "1", "attribute calls of module model": "1"})
    again = attempt(
        loose={"attribute steps of optimizer": "2", "attribute calls of module model": "2"}, after={"model/model.a": "float32 9"}
    )
    said = cause(first, again)
    assert said.startswith("the step returns the same, and the state differs after it (model/model.a)")
    assert "likely attribute steps of optimizer, which is not in the state: it is no tensor of the optimizer's state" in said
    assert "calls of module" not in said


def test_that_a_module_was_left_evaluating_is_no_cause() -> None:
    first = attempt(loose={"attribute training of module model": "True"})
    again = attempt(loose={"attribute training of module model": "False"}, loss="0.6")
    assert "likely" not in cause(first, again)


def test_the_same_cause_is_said_once_for_all_its_ranks() -> None:
    first, again = attempt(), attempt(loss="0.6")
    (finding,) = findings({0: first, 1: first, 2: first}, {0: again, 1: first, 2: again})
    assert finding.ranks == (0, 2)
    assert finding.items == ("returned",)


def test_a_rank_of_which_nothing_is_written_is_named() -> None:
    assert findings({0: attempt(), 1: attempt()}, {0: attempt()}) == [
        Divergence(ranks=(1,), cause="what it held was not written down")
    ]


def test_a_name_that_only_one_side_has_is_a_difference() -> None:
    said = [str(each) for each in differences(Table(items={"a": "1"}), Table(items={"b": "1"}))]
    assert said == ["a is gone", "b is new"]


def test_a_table_can_be_written_and_read() -> None:
    table = attempt(loose={"variable n": "1"}).after
    assert Table.from_json(table.to_json()) == table
    with pytest.raises((ValueError, TypeError)):
        Table.from_json("{")


def suspects(*names: str) -> list[str]:
    """Returns what is suspected where all of these are not what they were and the value differs."""
    first, again = (attempt(loose=dict.fromkeys(names, value), loss=value) for value in ("1", "2"))
    return [said.partition(",")[0] for said in cause(first, again).split("; likely ")[1:]]


def test_of_an_owner_with_many_values_what_they_have_in_common_is_suspected() -> None:
    heap = [f"variable heap[{row}][{part}]" for row in range(2) for part in range(2)]
    parts = [f"variable env.envs[{row}].state" for row in range(4)]
    mine = [f"variable self.buffer[{row}]" for row in range(4)]
    assert suspects(*heap, "variable kl", *parts, *mine, "variable self.kl") == [
        "variable env.envs", "variable heap", "variable kl", "variable self.buffer", "variable self.kl",
    ]  # fmt: skip
    assert suspects("attribute a[0] of module model", "attribute a[1] of module model") == [
        "attribute a[0] of module model", "attribute a[1] of module model",
    ]  # fmt: skip


def test_what_never_answers_alike_is_suspected_where_nothing_else_is() -> None:
    assert suspects("call of time.time()", "hash() of texts", "variable kl") == ["variable kl"]
    assert suspects("call of time.time()", "hash() of texts") == ["call of time.time()"]
    assert suspects("hash() of texts") == ["hash() of texts"]


def test_what_is_suspected_comes_with_what_to_do() -> None:
    for name, advice in (
        ("unprotected optimizer critic.state[0]['step']", "give it to protect()"),
        ("setting torch.get_default_dtype()", "set it before the loop"),
        ("call of noise(), which keeps its answers", "depend on its arguments alone"),
        ("content of db (a sqlite3.Connection)", "it cannot be looked into"),
        ("hash() of texts", "PYTHONHASHSEED=0"),
    ):
        assert advice in cause(attempt(loose={name: "1"}), attempt(loose={name: "2"}, loss="0.6"))


def test_what_did_not_come_back_is_named_though_nothing_that_was_compared_depends_on_it() -> None:
    loose = {"variable best": "0.5", "variable loss": "0.4", "call of time.time()": "1", "hash() of texts": "1"}
    first, again = (
        AttemptTables(before=Table(), after=Table(items=ITEMS, loose=loose | {"variable best": best} | always))
        for best, always in (("0.5", {}), ("inf", {"call of time.time()": "2", "hash() of texts": "2"}))
    )
    assert findings({0: first, 1: first}, {0: again, 1: again}) == []
    assert beside({0: first, 1: first, 2: first}, {0: again, 1: again, 2: first}) == [("variable best", (0, 1))]
