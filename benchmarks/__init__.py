"""Speed, measured side by side with what it is compared to: `make bench`. A benchmark, not a test."""
