"""Workers' operations on images: identify, check, choose access, prefetch, pack."""
