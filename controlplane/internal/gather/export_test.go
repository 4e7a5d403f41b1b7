package gather

// SetYield has something else done where a caller lets others go first.
func (l *Line[T]) SetYield(yield func()) { l.yield = yield }
