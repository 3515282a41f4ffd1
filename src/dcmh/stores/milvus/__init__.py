"""An index in Milvus."""
