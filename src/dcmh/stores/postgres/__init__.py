"""An index in PostgreSQL."""
