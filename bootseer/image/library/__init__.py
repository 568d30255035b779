"""Images in a store: upload, list, download, verify."""
