"""Worker processes, which handle a user's data with that user's rights."""
