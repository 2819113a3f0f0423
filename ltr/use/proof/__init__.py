"""The proof of an exported ranker: what a server must compute of some texts, layer by layer."""
