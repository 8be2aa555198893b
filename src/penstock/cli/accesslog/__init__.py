"""Parts that several verbs of `penstock accesslog` share."""
