"""A first look at log lines, before anything acts on them: does the format fit, who are the clients?"""
