"""Commands of other packages: found by their entry points, and a broken one is a warning."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click
import pytest
from helpers import command, failed

from sterna.cli import COMMANDS, plugins

ENTRIES = """
[sterna.commands]
greet = a_plugin:greet
bench.wind = a_plugin:wind
broken = a_plugin_that_is_not_there:command
wrong = a_plugin:NUMBER
generate = a_plugin:greet
"""
MODULE = """
import click

NUMBER = 5

@click.command()
def greet():
    "Say hello."
    print("hello")

@click.command()
def wind():
    "Measure the wind."
    print("calm")
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "a_plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "a_plugin.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)


def test_commands_are_run_and_listed() -> None:
    assert command("greet").stdout == "hello\n"
    assert command("bench", "wind").stdout == "calm\n"
    with pytest.warns(UserWarning, match="a-plugin"):  # of the two that are broken
        listed = command("--help").stdout
    assert "Say hello." in listed
    assert "broken" not in listed
    assert "Measure the wind." in command("bench", "--help").stdout


def test_commands_of_sterna_come_first() -> None:
    assert "generate" in COMMANDS
    assert "Say hello." not in command("generate", "--help").stdout


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "No module named 'a_plugin_that_is_not_there'"),
        ("wrong", "must be a click.Command, but is int"),
    ],
)
def test_a_broken_plugin_is_a_warning(name: str, why: str) -> None:
    with pytest.warns(UserWarning, match=f"^a-plugin: cannot load the command '{name}': .*{why}"):
        failed(command(name), f"No such command '{name}'")


def test_what_is_not_there() -> None:
    assert plugins.load("nothing") is None
    assert isinstance(plugins.load("wind", "bench"), click.Command)
