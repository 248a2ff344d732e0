"""`berth token`: giving access to the controller, and taking it back."""

import json
import time

import pytest

from berth.live.api.tokens import Caller, Tokens


@pytest.fixture
def state(tmp_path):
    """A folder where a controller was up."""
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "journal.sqlite").touch()
    return folder


def test_a_token_is_printed_once_and_valid_from_then_on(state, berth):
    code, out, err = berth("token", "add", "alice")
    assert (code, err) == (0, "")
    assert Tokens(state).caller(out.strip()) == Caller("alice", "user")
    reported = json.loads(berth("token", "add", "bob", "--role", "admin", "--json")[1])
    assert (reported["user"], reported["role"]) == ("bob", "admin")
    assert Tokens(state).caller(reported["token"]) == Caller("bob", "admin")
    listed = berth("token", "list")[1]
    assert out.strip() not in listed
    assert reported["token"] not in listed
    assert [line.split() for line in listed.splitlines() if line.strip()][2:] == [
        ["alice", "user", "-", "never"],
        ["bob", "admin", "-", "never"],
    ]
    shown = json.loads(berth("token", "list", "--json")[1])["users"][1]
    assert shown == {"user": "bob", "role": "admin", "label": "", "expires": None}


def test_a_token_has_a_label_and_an_end(state, berth):
    reported = json.loads(berth("token", "add", "ci", "--label", "nightly", "--expires", "30d", "--json")[1])
    assert 29 * 86_400 < reported["expires"] - time.time() < 31 * 86_400
    assert "nightly" in berth("token", "list")[1]
    code, _, err = berth("token", "add", "\u202eevil")
    assert code == 2
    assert "is not a name" in err


def test_remove_ends_all_tokens_of_a_user(state, berth):
    tokens = [berth("token", "add", "alice")[1].strip() for _ in range(2)]
    other = berth("token", "add", "bob")[1].strip()
    assert berth("token", "remove", "alice")[1] == "2 removed\n"
    known = Tokens(state)
    assert [known.caller(token) for token in tokens] == [None, None]
    assert known.caller(other) is not None
    assert json.loads(berth("token", "remove", "bob", "--json")[1]) == {"user": "bob", "removed": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("token remove carol", "no user with a token is called 'carol'\n  known: alice"),
        ("token add alice --role king", "no role is called 'king'\n  known: admin, user"),
    ],
)
def test_an_unknown_user_or_role_is_refused(state, berth, line, said):
    berth("token", "add", "alice")
    code, out, err = berth(*line.split())
    assert (code, out) == (2, "")
    assert said in err


def test_a_blank_user_name_is_refused(state, berth):
    assert "error: the user has no name" in berth("token", "add", " ")[2]
    assert Tokens(state).listed() == []


@pytest.mark.parametrize("verb", ["add alice", "list", "remove alice"])
def test_tokens_of_a_remote_controller_are_not_those_of_this_machine(verb, state, berth, monkeypatch):
    berth("token", "add", "alice")
    monkeypatch.setenv("BERTH_URL", "http://far:7070")
    before = (state / "tokens.json").read_bytes()
    code, out, err = berth("token", *verb.split())
    assert (code, out) == (2, "")
    assert "tokens are kept where the controller runs, and BERTH_URL names http://far:7070\n" in err
    assert (state / "tokens.json").read_bytes() == before
    code, out, _ = berth("token", *verb.split(), "--state", str(state))
    assert code == 0
    assert out
