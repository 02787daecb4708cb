"""What must not be lost: the file that turns are written to first, and the batcher that brings it to Postgres."""
