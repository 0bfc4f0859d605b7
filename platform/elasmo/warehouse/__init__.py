"""Facts and dimensions proposed for the tables of a lake or a database."""
