package leasing

import (
	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Tick sends what only a tick sends, looks again for tokens that other workers brought, and ends what has waited too long.
func (d *Desk) Tick(now quota.Instant) {
	d.nodes = d.sharedNodes.Load()
	d.tell(now)
	if d.waiting > 0 {
		for i := len(d.open) - 1; i >= 0; i-- { // From the end, because forget moves the last one up.
			d.tickBucket(d.open[i], now)
		}
		d.tickGroups(now)
	}
	if d.breaker.Tick(now, d.random.Jitter()) {
		d.probe(now)
	}
	if len(d.ready)+d.queued > 0 && !d.breaker.IsOpen() {
		due := now >= d.keepBy
		if due {
			d.keepBy = 0
		}
		d.flush(now, due)
	}
}

// tickBucket ends tickets whose deadline has passed, and looks after those that no call carries.
func (d *Desk) tickBucket(b *bucket, now quota.Instant) {
	wait := d.unsentFor()
	for at := 0; at < len(b.queue); {
		t := b.queue[at]
		if at < b.asked && now < t.Deadline {
			at++
			continue
		}
		if at < b.asked {
			b.asked--
			d.resolve(b, at, Failed, now)
			continue
		}
		d.spend = Spend{Need: t.Need, Now: now, Commit: true}
		err := d.store.Update(bucketstore.Leased, t.Need.Bucket, now, &d.spend)
		switch {
		case err == nil && d.spend.State == Ready:
			t.Level, t.FullAt = d.spend.Level, d.spend.FullAt
			d.resolve(b, at, Granted, d.spend.Until)
		case err == nil && d.spend.State == Exhausted && (!d.spend.KeepCall || now >= t.Deadline):
			t.FullAt = d.spend.FullAt
			d.resolve(b, at, Refused, d.spend.Until)
		case now >= t.Deadline-quota.Instant(lease.Deadline-wait):
			d.resolve(b, at, Failed, now)
		default:
			at++
		}
	}
	if len(b.queue) > 0 && b.call == nil {
		d.list(b)
	}
	d.forget(b)
}

// unsentFor is how long a request waits that no call carries: less where calls are late, since the rest of its time would be in vain.
func (d *Desk) unsentFor() quota.Span {
	switch _, away := d.Away(); {
	case away:
		return 0
	case d.room.pressed():
		return lease.Deadline / 2
	}
	return lease.Deadline
}
