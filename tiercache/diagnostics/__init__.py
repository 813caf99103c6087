"""What a policy did to a sequence, measured against the full cache and without touching the run.

A probe (`trace`) notes which tier held each token after each step. When the sequence has ended, a full-cache pass over
the same tokens (`shadow`) says what attention would have wanted. Each number has its own small file; `diagnose` puts
them together. Importing this package imports no torch.
"""
