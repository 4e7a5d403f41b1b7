package access

// Waiting is how many wait, those included who gave up and were not yet passed over.
func (t *Turns) Waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.queue.sources.order {
		n += s.size
	}
	return n
}
