package access

// Places bounds how many callers run at once. Nil means no bound. It is safe for concurrent use.
type Places chan struct{}

// NewPlaces makes most places; 0 means no bound.
func NewPlaces(most int) Places {
	if most == 0 {
		return nil
	}
	return make(Places, most)
}

// Take reports whether there was a place. If so, the caller must call Leave.
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

// Leave frees a place.
func (p Places) Leave() {
	if p != nil {
		<-p
	}
}
