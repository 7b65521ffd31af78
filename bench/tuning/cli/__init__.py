"""The commands around studies: tune, suite, studies, worker."""
