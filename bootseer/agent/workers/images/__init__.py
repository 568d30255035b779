"""What workers do about images: identify, check, choose how to read, prefetch and pack them."""
