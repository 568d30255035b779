"""Object stores (S3, GCS, Azure), by pyarrow's file systems."""
