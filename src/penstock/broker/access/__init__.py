"""Who may do what: keys, principals, roles."""
