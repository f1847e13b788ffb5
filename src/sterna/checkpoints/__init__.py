"""Models on disk: readers and writers that trust no file. Nothing here knows an architecture."""
