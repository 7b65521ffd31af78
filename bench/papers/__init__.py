"""`bench reproduce`: the experiments of papers, and their claims tested."""
