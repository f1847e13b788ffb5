"""Files on disk: how they are read, how they are replaced, and what JSON means. Trusts no file."""
