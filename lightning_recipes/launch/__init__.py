"""Starting a training on several processes and machines, and what its parts know of that."""
