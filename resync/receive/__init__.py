"""Taking in events that other servers send: queued durably, checked, stored with their state."""

from resync.receive.queue import InboundQueue
from resync.receive.receiver import Received, Receiver
from resync.receive.transactions import TransactionReceiver

__all__ = ["InboundQueue", "Received", "Receiver", "TransactionReceiver"]
