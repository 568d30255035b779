"""The lender: opens the node's block cache for one job, under the cache's account."""
