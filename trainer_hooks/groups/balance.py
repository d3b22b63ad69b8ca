"""Whether a group stays open through a recovery: what each member says of it, and what follows from that. Pure.

A group of which every member's process lives may stay open through a recovery. It must not, if a call of the broken step is left
in it: half of a collective, or a message that nobody has received, would meet the step that is made again. No member can know
that of the others, so each says how it stands, and all decide alike by what all have said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What one member says of a group that is open, in which no call of its own is under way or has failed.

    `opened`: when and as what the group was opened: the same text for the same connections, and for no others. `collectives`:
    calls that all members make; `sequence`: torch's own count of them. `sent`, `received`: messages, by the other's place.
    """

    opened: str
    collectives: int
    sequence: int
    sent: Mapping[int, int]
    received: Mapping[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Returns what JSON can say; it makes texts of the places."""
        return asdict(self)

    @classmethod
    def from_dict(cls, said: dict[str, Any] | None) -> "Balance | None":
        """Returns what a member has said, None where that was nothing."""
        if said is None:
            return None
        sent, received = ({int(place): count for place, count in said[name].items()} for name in ("sent", "received"))
        return cls(**(said | {"sent": sent, "received": received}))


def stays_open(balances: Sequence[Balance | None]) -> bool:
    """Returns whether a group stays open, of whose members these are the balances, by their places. None: not with this one.

    A call that its member has been through with may be unfinished elsewhere: the root of a broadcast, and who sends, wait for
    nobody. So what was done must be the same everywhere, and what each has sent to another must have been received there.
    """
    said = [balance for balance in balances if balance is not None]
    if len(said) < len(balances):
        return False
    if len({(balance.opened, balance.collectives, balance.sequence) for balance in said}) > 1:
        return False
    return all(
        sender.sent.get(there, 0) == receiver.received.get(here, 0)
        for here, sender in enumerate(said)
        for there, receiver in enumerate(said)
    )
