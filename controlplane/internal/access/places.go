package access

// Places bounds how many are in at once. Nil is no bound. It is safe for concurrent use.
type Places chan struct{}

// NewPlaces makes a number of places; 0 is no bound.
func NewPlaces(most int) Places {
	if most == 0 {
		return nil
	}
	return make(Places, most)
}

// Take reports whether there was a place; then Leave must be called.
func (p Places) Take() bool {
	if p == nil {
		return true
	}
	select {
	case p <- struct{}{}:
		return true
	default:
		return false
	}
}

// Leave makes a place free.
func (p Places) Leave() {
	if p != nil {
		<-p
	}
}
