"""The store: runs in folders; reading several stores as one, and merging them."""
