"""Dense retrieval: encode texts into a memory map, index the embeddings, search them."""
