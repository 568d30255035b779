"""`bootseer ckpt`: transfer, compare, describe, verify, collect garbage."""
