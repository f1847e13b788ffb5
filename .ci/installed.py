"""Checks a Sterna that is installed: `sterna generate` prints the README's sample.

    python .ci/installed.py          # with the interpreter that it is installed for

Says which kernel units run, and exits with 1 and the difference where the text is another.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
PROMPT = "def read_lines(path):"


def sterna(isa: str, *arguments: str) -> str:
    """What the installed command prints with a unit; its PATH leads to no compiler and no shell."""
    scripts = sysconfig.get_path("scripts")
    environment = {name: value for name, value in os.environ.items() if "STERNA" not in name}
    command = shutil.which("sterna", path=scripts)  # sterna.exe on Windows
    if command is None:
        sys.exit(f"no command sterna in {scripts}")
    done = subprocess.run(
        [command, *arguments],
        env=environment | {"PATH": scripts, "STERNA_CACHE": "off", "STERNA_ISA": isa},
        stdout=subprocess.PIPE, encoding="utf-8", check=True,
    )  # fmt: skip
    return done.stdout


def main() -> int:
    """0 where the text is the README's."""
    from sterna import _native

    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (sample,) = (block.rstrip() for block in blocks if block.startswith(PROMPT))
    known = [name for name, _ in _native.known_isas()]
    print("kernel units:", *known, "| run here:", *_native.isas(), flush=True)
    for isa in _native.isas():
        printed = sterna(isa, "generate", PROMPT, "--seed", "1", "--max-tokens", "56")
        text = (PROMPT + printed).rstrip()
        if text != sample:
            sys.stdout.writelines(
                difflib.unified_diff(
                    sample.splitlines(True), text.splitlines(True), str(README), f"printed by {isa}"
                )
            )
            return 1
    print("nano's text is the README's with each of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
