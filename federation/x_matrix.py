"""The `Authorization: X-Matrix` header that signs every federation request.

Source: server-server API, "Request Authentication".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from federation.errors import InvalidIdentifier, InvalidSignature
from federation.identifiers import check_server_name
from federation.signing import SigningKey, sign_json, verify_signed_json

_MAX_HEADER_CHARS: Final = 4096
# Colons are not allowed in unquoted values, but older servers send them.
_PARAMETER = re.compile(
    r"""
    [ \t]* (?P<name> [!#$%&'*+.^_`|~0-9A-Za-z-]+ ) =
    (?: " (?P<quoted> (?: [^"\\] | \\. )*+ ) " | (?P<token> [!#$%&'*+.^_`|~0-9A-Za-z:/=\[\]-]* ) )
    [ \t]* (?: , | \Z )
    """,
    re.VERBOSE,
)


class XMatrix(NamedTuple):
    """The parameters of an X-Matrix header.

    Attributes:
        origin: the server that signed the request.
        destination: the server it is meant for; None where an old server leaves it out.
        key_id: id of the signing key.
        signature: unpadded Base64.
    """

    origin: str
    destination: str | None
    key_id: str
    signature: str


def authorization_header(
    origin: str,
    key: SigningKey,
    destination: str,
    method: str,
    target: str,
    content: Mapping[str, Any] | None = None,
) -> str:
    """The value of the `Authorization` header for one request.

    Args:
        origin: our server name.
        key: our signing key.
        destination: the server's name, as it was before delegation.
        method: HTTP method in capitals.
        target: path and query exactly as they are sent.
        content: the JSON body, None where there is none.

    Raises:
        InvalidJson: the content has no canonical JSON.
    """
    signed = sign_json(_signed_object(origin, destination, method, target, content), origin, key)
    signature = signed["signatures"][origin][key.key_id]
    return (
        f'X-Matrix origin="{origin}",destination="{destination}",'
        f'key="{key.key_id}",sig="{signature}"'
    )


def parse_authorization(header: str) -> XMatrix:
    """The parameters of an X-Matrix header that came with a request.

    Raises:
        InvalidSignature: it is no X-Matrix header, or a parameter is missing or comes twice.
    """
    scheme, _, rest = header.partition(" ")
    if scheme.lower() != "x-matrix" or len(header) > _MAX_HEADER_CHARS:
        raise InvalidSignature("the Authorization header is not an X-Matrix header")
    parameters: dict[str, str] = {}
    position = 0
    while position < len(rest):
        match = _PARAMETER.match(rest, position)
        if match is None:
            raise InvalidSignature("the X-Matrix header is malformed")
        name = match["name"].lower()
        if name in parameters:
            raise InvalidSignature(f"the X-Matrix header has {name!r} twice")
        quoted = match["quoted"]
        parameters[name] = (
            match["token"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        )
        position = match.end()
    try:
        check_server_name(parameters["origin"])
        return XMatrix(
            parameters["origin"],
            parameters.get("destination"),
            parameters["key"],
            parameters["sig"],
        )
    except KeyError as error:
        raise InvalidSignature(f"the X-Matrix header has no {error.args[0]!r}") from None
    except InvalidIdentifier as error:
        raise InvalidSignature(f"the X-Matrix header's origin: {error}") from None


def verify_request(
    header: XMatrix,
    verify_key: bytes,
    our_server_name: str,
    method: str,
    target: str,
    content: Mapping[str, Any] | None = None,
) -> None:
    """Check that the request was signed by the server its header names, and for us.

    Args:
        header: as `parse_authorization` gave it.
        verify_key: the 32 bytes of the key that `header` names.
        our_server_name: who we are; a header meant for another server is refused.
        method, target, content: see `authorization_header`.

    Raises:
        InvalidSignature: the signature is wrong or the request is for another server.
    """
    if header.destination is not None and header.destination != our_server_name:
        raise InvalidSignature(f"the request is meant for {header.destination!a}, not for us")
    signed = _signed_object(header.origin, our_server_name, method, target, content)
    signed["signatures"] = {header.origin: {header.key_id: header.signature}}
    verify_signed_json(signed, header.origin, verify_key, header.key_id)


def _signed_object(
    origin: str, destination: str, method: str, target: str, content: Mapping[str, Any] | None
) -> dict[str, Any]:
    signed: dict[str, Any] = {
        "method": method,
        "uri": target,
        "origin": origin,
        "destination": destination,
    }
    if content is not None:
        signed["content"] = content
    return signed
