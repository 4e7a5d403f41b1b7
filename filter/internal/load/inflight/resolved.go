package inflight

// Resolved are the streams of requests that do not wait any more, until their caller takes them.
type Resolved []uint32

// Take returns the first streams, at most so many. The slice is good until the next one is added.
func (r *Resolved) Take(most int) []uint32 {
	n := min(most, len(*r))
	streams := (*r)[:n]
	*r = (*r)[n:]
	if len(*r) == 0 && cap(*r) < 64 { // What was taken is room that append cannot use.
		*r = make(Resolved, 0, 256)
	}
	return streams
}
