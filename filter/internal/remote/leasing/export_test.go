package leasing

// Buckets is the number of buckets that a client remembers.
func (c *Client) Buckets() int { return len(c.queue.lines) }

// Debts is of how many buckets something is not charged.
func (c *Client) Debts() int { return len(c.debts.all) }
