"""Commands of a chat, and their help texts."""

from __future__ import annotations

from sterna.cli.sampling_options import SETTINGS

__all__ = ["COMMANDS"]

COMMANDS = {
    "/help": "show this list",
    "/reset": "forget the conversation; the system prompt stays",
    "/system [TEXT]": "show the system prompt, or change it; - removes it",
    "/image PATH": "show the model an image with the next message; or drop a file into the line",
    "/undo": "take the latest exchange back",
    "/retry": "answer the latest message again",
    "/set [NAME VALUE]": f"show or change {', '.join(SETTINGS)}; - for the default",
    "/settings": "show every setting and where it comes from",
    "/stats": "show speed and size of the latest answer",
    "/save FILE": "write the conversation to a JSON file",
    "/load FILE": "continue a saved conversation",
    "/exit": "leave, like Ctrl-D",
}
