"""The endpoints. Each module lists its own in ENDPOINTS, which `sterna.server.app` collects."""
