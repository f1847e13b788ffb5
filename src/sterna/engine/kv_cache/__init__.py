"""Keys and values of all sequences: pages, windows, prefix caches in memory and on disk."""
