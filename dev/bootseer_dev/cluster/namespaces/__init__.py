"""The machines of a cluster as the kernel has them: namespaces, the keeper that holds them."""
