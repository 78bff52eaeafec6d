import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from resync.admin.token import TokenError, load_or_create_token, token_matches


def test_a_missing_token_is_made_for_its_owner_only(tmp_path):
    path = tmp_path / "admin.token"
    token = load_or_create_token(path)
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_token(path) == token
    assert [file.name for file in tmp_path.iterdir()] == ["admin.token"]


def test_those_who_start_together_get_the_same_token(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(load_or_create_token, [tmp_path / "admin.token"] * 32))
    assert len(tokens) == 1


def test_a_token_of_the_operator_is_kept(tmp_path):
    path = tmp_path / "admin.token"
    path.write_text("  a-token-of-my-own-choice\n")
    assert load_or_create_token(path) == "a-token-of-my-own-choice"


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"\xff" * 40])
def test_files_that_hold_no_token(tmp_path, content):
    path = tmp_path / "admin.token"
    path.write_bytes(content)
    with pytest.raises(TokenError, match=r"the admin token at .*admin\.token"):
        load_or_create_token(path)


def test_a_place_where_none_can_be_made(tmp_path):
    with pytest.raises(TokenError, match="cannot be made"):
        load_or_create_token(tmp_path / "missing" / "admin.token")


def test_comparison():
    assert token_matches("secret", "secret")
    assert not token_matches("secre", "secret")
    assert not token_matches("sécret\udcff", "secret")
