"""What a machine with a GPU can show, in parts that fit into a few minutes each."""
