package quota

// Reset is when clients are told that a bucket is full. It never steps back from one answer to the next, even where several workers
// answer and one of them goes by what it knows from before: who does has it promised that all tell the same meanwhile. The zero value is
// full since ever.
type Reset struct {
	// FullAt is the latest instant at which the bucket was ever said to be full.
	FullAt Instant
	// Told is what everybody tells before Until.
	Told, Until Instant
}

// At is what clients are told at now.
func (r Reset) At(now Instant) Instant {
	if now < r.Until {
		return r.Told
	}
	return r.FullAt
}

// Raise takes in that the bucket is full at an instant and not before.
func (r Reset) Raise(full Instant) Reset {
	r.FullAt = max(r.FullAt, full)
	return r
}

// Promise lets the caller tell At(now) without looking, before the returned instant: until, or earlier if what is told changes by then.
func (r Reset) Promise(now, until Instant) (Reset, Instant) {
	if now < r.Until && r.Told != r.FullAt {
		return r, min(until, r.Until)
	}
	return Reset{FullAt: r.FullAt, Told: r.FullAt, Until: max(r.Until, until)}, until
}
