"""Transaction ids."""

from resync.sending import transaction_id
from storage.outgoing import OutgoingEvent


def test_a_repetition_has_the_same_id_and_nothing_else_has() -> None:
    first, second = OutgoingEvent("$a", "{}"), OutgoingEvent("$b", "{}")
    assert transaction_id([first, second]) == transaction_id([first, second])
    ids = {transaction_id(batch) for batch in ([first], [second], [first, second], [second, first])}
    assert len(ids) == 4
    assert all(len(one) <= 255 and one.isalnum() for one in ids)
