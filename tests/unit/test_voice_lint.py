"""The lint of words: what it finds, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import voice_lint


def words(text: str, **options: bool) -> list[str]:
    return [finding.word for finding in voice_lint.check_text(text, Path("page.md"), **options)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The error is told once.", ["told"]),
        ("A file is read Anew.", ["Anew"]),
        ("def mend_it():", ["mend"]),
        ("jobs who wait, for whom", ["jobs who", "whom"]),
        ("It stands in the table.", ["stands"]),
        ("This is no error.", ["is no"]),
        ("beside so many others", ["so many"]),
        ("behind the training's back", ["behind the training's back"]),
    ],
)
def test_a_retired_word_is_found_in_text_and_in_names(text, found):
    assert words(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "There is no file, and there are no rows.",
        "It is no longer needed, and is no larger than 8.",
        "position = stream.tell()",
        "recommended, amendment, standard, standstill, stand-in, notebook, classroom",
        "NaN stands for an unknown time.",
        "The operator who drained the machine",
        "SELECT told FROM old_journal  # voice: ok (a stored column)",
    ],
)
def test_plain_english_code_and_allowed_lines_pass(text):
    assert words(text) == []


def test_of_a_test_file_only_the_names_are_checked():
    text = 'def test_it_is_told_once():\n    assert "told" in message\n'
    assert words(text, names_only=True) == ["told"]


def test_a_finding_names_the_place_the_word_and_what_to_use(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("fine\nmend it\n")
    (finding,) = voice_lint.check_file(page, Path("docs/page.md"))
    assert str(finding) == 'docs/page.md:2: "mend": use fix'


def test_the_exit_code_says_whether_something_was_found(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(voice_lint, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("All good.\n")
    assert voice_lint.main([]) == 0
    (tmp_path / "README.md").write_text("Nobody knows.\n")
    assert voice_lint.main([]) == 1
    assert "README.md:1:" in capsys.readouterr().out
