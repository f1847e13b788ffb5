"""The endpoints. Each module lists its own in ENDPOINTS; `sterna.server.app` finds them."""
