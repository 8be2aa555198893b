"""Applications: they drive Spark as any user does, and use the rooms beneath the engines directly."""
