"""What the verbs of `penstock accesslog` share."""
