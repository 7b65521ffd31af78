"""The commands for studies: tune, suite, studies, worker."""
