"""What is durable: places that remember after the process is gone."""
