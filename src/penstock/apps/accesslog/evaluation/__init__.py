"""How good the defence is: log files replayed without Spark, and decisions held against labels."""
