package leasing

// Buckets is the number of buckets that a desk remembers.
func (d *Desk) Buckets() int { return len(d.buckets) }
