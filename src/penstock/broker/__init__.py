"""What messages mean, free of any protocol: topics, publishing, subscriptions, groups, access."""
