"""Search for the best policy that fits a share of the full cache's bytes: trials are ordinary cells of the database."""
