"""What commands share: arguments, moments, tables, progress."""
