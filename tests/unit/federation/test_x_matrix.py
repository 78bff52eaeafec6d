"""The X-Matrix header: made, parsed, verified."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import InvalidSignature
from federation.signing import SigningKey, generate_signing_key
from federation.x_matrix import XMatrix, authorization_header, parse_authorization, verify_request

KEY = generate_signing_key()


def test_a_header_that_we_make_verifies() -> None:
    header = authorization_header("us.test", KEY, "far.test:1", "PUT", "/x?y=%20", {"é": [1.5]})
    parsed = parse_authorization(header)
    assert parsed[:3] == ("us.test", "far.test:1", KEY.key_id)
    verify_request(parsed, KEY.verify_key, "far.test:1", "PUT", "/x?y=%20", {"é": [1.5]})


@pytest.mark.parametrize(
    ("method", "target", "content", "us"),
    [
        ("GET", "/x", {"a": 1}, "far.test"),
        ("PUT", "/y", {"a": 1}, "far.test"),
        ("PUT", "/x", {"a": 2}, "far.test"),
        ("PUT", "/x", {}, "far.test"),
        ("PUT", "/x", None, "far.test"),
        ("PUT", "/x", {"a": 1}, "other.test"),
    ],
)
def test_any_difference_makes_it_wrong(
    method: str, target: str, content: dict[str, int] | None, us: str
) -> None:
    header = parse_authorization(
        authorization_header("us.test", KEY, "far.test", "PUT", "/x", {"a": 1})
    )
    with pytest.raises(InvalidSignature):
        verify_request(header, KEY.verify_key, us, method, target, content)
    with pytest.raises(InvalidSignature):
        verify_request(header, generate_signing_key().verify_key, "far.test", "PUT", "/x", {"a": 1})


def test_no_body_is_not_an_empty_body() -> None:
    header = parse_authorization(authorization_header("us.test", KEY, "far.test", "GET", "/x"))
    verify_request(header, KEY.verify_key, "far.test", "GET", "/x")
    with pytest.raises(InvalidSignature):
        verify_request(header, KEY.verify_key, "far.test", "GET", "/x", {})


def test_the_signature_is_the_one_of_the_specification() -> None:
    """The object that is signed, in canonical JSON, as the specification lays it out."""
    key = SigningKey(version="1", seed=bytes(32))
    header = authorization_header("us.test", key, "far.test", "PUT", "/x?y", {"b": 1, "a": "é"})
    signed = (
        '{"content":{"a":"é","b":1},"destination":"far.test","method":"PUT",'
        '"origin":"us.test","uri":"/x?y"}'
    )
    import base64

    signature = base64.b64encode(key.sign(signed.encode())).decode().rstrip("=")
    assert header == (
        f'X-Matrix origin="us.test",destination="far.test",key="ed25519:1",sig="{signature}"'
    )


@pytest.mark.parametrize(
    "header",
    [
        'X-Matrix origin="us.test",destination="far.test",key="ed25519:1",sig="abc"',
        'x-matrix   ORIGIN=us.test , key="ed25519:1"\t,  sig="a\\bc",Destination=far.test',
        'X-Matrix origin=us.test,key=ed25519:1,sig=abc,destination=far.test,extra="a,b=c"',
    ],
)
def test_spellings_that_must_be_understood(header: str) -> None:
    assert parse_authorization(header) == XMatrix("us.test", "far.test", "ed25519:1", "abc")


def test_old_servers_leave_the_destination_out() -> None:
    parsed = parse_authorization('X-Matrix origin="us.test",key="ed25519:1",sig="abc"')
    assert parsed.destination is None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer abc",
        "X-Matrix",
        "X-Matrix origin",
        'X-Matrix origin="us.test"',
        'X-Matrix origin="us.test",key="k"',
        'X-Matrix origin="us.test",key="k",sig="a',
        'X-Matrix origin="us.test",key="k",sig="a" x',
        'X-Matrix origin="us.test",origin="b.test",key="k",sig="a"',
        'X-Matrix origin="not a name",key="k",sig="a"',
        'X-Matrix origin="us.test",key="k",sig="' + "a" * 5000 + '"',
    ],
)
def test_what_is_no_header_is_refused(header: str) -> None:
    with pytest.raises(InvalidSignature):
        parse_authorization(header)


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for header in (text, "X-Matrix " + text):
        try:
            parse_authorization(header)
        except InvalidSignature:
            continue
