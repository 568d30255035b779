"""Read striped files: fetch, read ahead, record and prefetch."""
