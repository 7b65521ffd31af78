"""Speed, measured side by side with baselines: `make bench`. A benchmark, not a test."""
