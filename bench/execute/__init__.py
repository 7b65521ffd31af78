"""From wanted runs to stored results: blocks, workers, and what each of them takes."""
