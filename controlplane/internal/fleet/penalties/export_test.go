package penalties

// Remembered is how many callers there are in mind.
func (e *Enforcer) Remembered() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.callers)
}
