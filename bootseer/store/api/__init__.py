"""The store protocol: roles, names, rules for writers."""
