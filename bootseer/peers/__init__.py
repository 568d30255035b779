"""The nodes of a job give each other what they read: each byte leaves the store once."""
