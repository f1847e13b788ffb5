from typing import Any

#: A capsule, which sterna._native.add_layouts takes.
layouts: Any
