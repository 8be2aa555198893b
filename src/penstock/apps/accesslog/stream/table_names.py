"""The names of the pipeline's tables, kept apart so that commands that only read load no kernels."""

STATE = "accesslog_state"
CLOCKS = "accesslog_clocks"
COUNTS = "accesslog_counts"
LANES = "accesslog_lanes"
DECISIONS = "accesslog_decisions"
DEAD_LETTERS = "accesslog_dead_letters"
ORDERS = "accesslog_orders"
SECONDS, MINUTES, TOPS = "accesslog_seconds", "accesslog_minutes", "accesslog_tops"
ALERTS = "accesslog_alerts"
#: The settings behind the stored state: a lane is a share of the clients, so their number cannot change.
SETTINGS = "accesslog_settings"
