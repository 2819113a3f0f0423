"""What tests share: small collections, tiny models of every kind, and runs over them."""
