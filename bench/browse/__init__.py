"""What shows stored runs: `bench list runs`, `show RUN`, `diff`, `sql`; and `merge`, which puts stores together."""
