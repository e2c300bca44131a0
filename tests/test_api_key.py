"""Keys of servers: where they come from, and that no text repeats them."""

from __future__ import annotations

import html
import json
from urllib.parse import quote

import pytest

from mmrl.api_key import ApiKey
from mmrl.http_retries import is_transient, retry_after_s

KEY = 'sk-a"b/c&d-1234'


def test_a_key_is_masked_in_every_spelling_and_where_a_text_ends_in_it():
    key = ApiKey(KEY)
    quoted = json.dumps(KEY)[1:-1]
    for spelling in (KEY, quoted, quoted.replace("/", "\\/"), html.escape(KEY), quote(KEY, safe="")):
        assert key.mask(f"Bearer {spelling}, {spelling}") == "Bearer ***, ***"
        assert key.mask(f"Bearer {spelling[:-1]}") == "Bearer ***"
    assert key.mask("nothing here") == "nothing here"
    assert KEY not in repr(key)
    assert ApiKey("abc").mask("abc 1") == "abc 1"  # a placeholder


def test_keys_come_from_a_variable(monkeypatch):
    monkeypatch.setenv("SOME_KEY", f" {KEY}\n")
    assert ApiKey.read("SOME_KEY") == ApiKey(KEY)
    assert ApiKey.read("") == ApiKey()
    for value, message in (("two words", "SOME_KEY holds a space"), ("", "environment variable SOME_KEY is not set")):
        monkeypatch.setenv("SOME_KEY", value)
        with pytest.raises(ValueError, match=message) as caught:
            ApiKey.read("SOME_KEY")
        assert "two words" not in str(caught.value)


def test_transient_statuses_and_their_pause():
    assert [status for status in (400, 401, 404, 408, 409, 422, 425, 429, 500, 503) if is_transient(status)] == [
        *(408, 409, 425, 429, 500, 503),
    ]
    texts = (" 7 ", "Wed, 21 Oct 2026 07:28:00 GMT", "", None, "-1", "1234567")
    assert [retry_after_s(text) for text in texts] == [7.0, None, None, None, None, None]
