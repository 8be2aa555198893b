"""Before lines are parsed in earnest: what a sample of them says about the format that was named."""
