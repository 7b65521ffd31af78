"""Commands on stored runs: `bench list runs`, `show RUN`, `diff`, `sql` and `merge`."""
