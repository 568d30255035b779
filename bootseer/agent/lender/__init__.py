"""The lender: keeps the node's block cache for one job, with the rights of the cache's account."""
