"""What other homeservers ask of us, beside our keys: requests checked, bounded and answered."""

from federation.inbound.authentication import RequestAuthenticator
from federation.inbound.endpoints import InboundHandler, MissingEventsQuery, inbound_routes
from federation.inbound.errors import RequestRefused, unable_due_to_partial_state
from federation.inbound.server_acl import is_allowed_by_acl
from federation.inbound.transactions import Transaction, parse_transaction

__all__ = [
    "InboundHandler",
    "MissingEventsQuery",
    "RequestAuthenticator",
    "RequestRefused",
    "Transaction",
    "inbound_routes",
    "is_allowed_by_acl",
    "parse_transaction",
    "unable_due_to_partial_state",
]
