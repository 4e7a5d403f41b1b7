package leasing

import "github.com/weir-proxy/weir/shared/quota"

// `Desk` is the former name of Client.
type Desk = Client

// Join asks for one bucket.
func (c *Client) Join(now quota.Instant, t *Ticket) bool { return c.Ask(now, t) }

// JoinAll asks for several buckets.
func (c *Client) JoinAll(now quota.Instant, tickets []*Ticket) bool { return c.Ask(now, tickets...) }
