"""Applications built on Penstock: they drive Spark as any user does, and use the lower packages directly."""
