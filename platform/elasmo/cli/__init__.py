"""The `elasmo` command: one verb a file, each a thin shell over the library."""
