"""An index in a folder: SQLite for the items, memory-mapped files for the codes."""
