package calls

import (
	"context"
	"math"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/wire"
)

// lookupTime is the longest wait of a call for the record of its consumer.
const lookupTime = 10 * time.Millisecond

// Records are the records of consumers. *consumers.Service implements it.
type Records interface {
	// Exceptions reports whether any consumer has more than a tier, and the highest known revision
	// of these records.
	Exceptions() (some bool, revision uint64)
	Known(ctx context.Context, keys []keyhash.Key) (map[keyhash.Key]consumers.Knowledge, error)
}

// Knowing returns the function by which a service looks up the consumers of its calls. If a record
// cannot be read in time, this replica does not know the consumer yet.
func Knowing(records Records, now func() time.Time) func(ctx context.Context) match.Consumers {
	return func(ctx context.Context) match.Consumers { return finder{records, now, ctx} }
}

// finder looks consumers up for one call.
type finder struct {
	records Records
	now     func() time.Time
	ctx     context.Context
}

// Exceptions implements match.Consumers.
func (f finder) Exceptions() (some bool, revision uint64) { return f.records.Exceptions() }

// Find implements match.Consumers.
func (f finder) Find(c *match.Consumer) {
	now := f.now()
	c.Now = now.UnixMilli()
	ctx, cancel := context.WithTimeout(f.ctx, lookupTime)
	defer cancel()
	known, err := f.records.Known(ctx, []keyhash.Key{c.Key})
	if err != nil {
		return
	}
	record := known[c.Key].Record
	c.Sure, c.Tier = true, []byte(record.Tier)
	c.Exceptions = wire.AppendExceptions(nil, record.Special(now))
	c.Banned, c.Bypass = !record.Banned.Ends(now), !record.Bypass.Ends(now)
	if _, ends := record.Ends(); c.Banned && ends != math.MaxInt64 {
		c.BanEnds = ends
	}
}
