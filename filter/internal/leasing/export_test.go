package leasing

// Buckets is the number of buckets that a client remembers.
func (c *Client) Buckets() int { return len(c.queue.lines) }
