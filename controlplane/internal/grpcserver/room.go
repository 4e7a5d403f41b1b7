package grpcserver

// room is how many may be in at once. The zero value has no bound.
type room chan struct{}

// newRoom makes a room for so many; 0 is no bound.
func newRoom(most int) room {
	if most == 0 {
		return nil
	}
	return make(room, most)
}

// enter reports whether there was room; then leave must be called.
func (r room) enter() bool {
	if r == nil {
		return true
	}
	select {
	case r <- struct{}{}:
		return true
	default:
		return false
	}
}

func (r room) leave() {
	if r != nil {
		<-r
	}
}
