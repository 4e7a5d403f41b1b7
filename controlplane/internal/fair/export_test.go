package fair

// Waiting is how many wait, those included who gave up and were not yet passed over.
func (g *Gate) Waiting() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.queue.sources.order {
		n += s.size
	}
	return n
}
