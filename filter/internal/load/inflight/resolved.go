package inflight

// Resolved are the streams of requests that wait no longer, until their caller takes them.
type Resolved []uint32

// Take returns the first streams, at most most. The slice is good until the next stream is added.
func (r *Resolved) Take(most int) []uint32 {
	n := min(most, len(*r))
	streams := (*r)[:n]
	*r = (*r)[n:]
	if len(*r) == 0 && cap(*r) < 64 { // append cannot use the taken front of the slice.
		*r = make(Resolved, 0, 256)
	}
	return streams
}
