"""Through whom an agent speaks."""

from deadpool.agent.supervisor_link.homing import Homing


def test_it_goes_where_it_is_routed() -> None:
    homing = Homing()
    assert homing.door == ""
    assert homing.routed("A:1")
    assert not homing.routed("A:1"), "it is there"
    assert homing.door == "A:1"
    assert homing.routed("")
    assert homing.door == ""


def test_a_relay_that_is_gone_is_left() -> None:
    homing = Homing()
    homing.routed("A:1")
    homing.ended(relay_lives=False, now_s=10.0)
    assert homing.door == ""


def test_one_without_a_supervisor_is_tried_again_for_a_while() -> None:
    homing = Homing()
    homing.routed("A:1")
    for now_s in (10.0, 11.0, 12.9):
        homing.ended(relay_lives=True, now_s=now_s)
        assert homing.door == "A:1"
    homing.welcomed()
    homing.ended(relay_lives=True, now_s=13.5)
    assert homing.door == "A:1", "the patience begins anew after each welcome"
    homing.ended(relay_lives=True, now_s=16.6)
    assert homing.door == ""
