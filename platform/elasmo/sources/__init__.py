"""A dataset's contract, and its rows as they come from files, shards and databases of other makes."""
