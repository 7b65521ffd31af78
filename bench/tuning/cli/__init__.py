"""The commands for studies: tune, suite, list studies."""
