package quota

// Algorithm says how a limit counts. Its number travels in snapshots: never renumber.
type Algorithm uint8

// The algorithms. Params and State decide the first two, Windows and History the others. Only the
// arithmetic and the places that CONTRIBUTING.md lists name one; all others ask for a property.
const (
	TokenBucket Algorithm = iota
	LeakyBucket
	FixedWindow
	SlidingWindow
	SlidingWindowCounter
	SlidingLog
)

// DefaultAlgorithm is that of a policy that names none.
const DefaultAlgorithm = TokenBucket

// AlgorithmCount is how many algorithms there are; their numbers are below it.
const AlgorithmCount = len(algorithms)

// properties are what the other packages ask of an algorithm. Each is false for a token bucket.
type properties struct {
	name string
	// windowed: it counts recent admissions, in Windows and History, and not tokens.
	windowed bool
	// grid: its windows follow one another, and those of a key begin at an offset of its own.
	grid bool
	// fixed: a window ends at one instant for all that it counts. Such windows can follow the
	// calendar.
	fixed bool
	// divided: a policy says into how many parts a window is divided.
	divided bool
	// estimates: it estimates what it counts by when requests came. So it must see each of them,
	// and none can change later.
	estimates bool
	// queues: a request may wait for its turn, and turns are given out in order.
	queues bool
}

var algorithms = [...]properties{
	TokenBucket:          {name: "token_bucket"},
	LeakyBucket:          {name: "leaky_bucket", queues: true},
	FixedWindow:          {name: "fixed_window", windowed: true, grid: true, fixed: true},
	SlidingWindow:        {name: "sliding_window", windowed: true, divided: true},
	SlidingWindowCounter: {name: "sliding_window_counter", windowed: true, grid: true, estimates: true},
	SlidingLog:           {name: "sliding_log", windowed: true},
}

// of returns the row of an algorithm; a number that is none has that of the default.
func (a Algorithm) of() *properties {
	if int(a) >= len(algorithms) {
		a = DefaultAlgorithm
	}
	return &algorithms[a]
}

// String is the algorithm's name in the policy language.
func (a Algorithm) String() string { return a.of().name }

// Windowed reports whether the algorithm counts recent admissions in Windows, and not tokens.
func (a Algorithm) Windowed() bool { return a.of().windowed }

// OnGrid reports whether its windows follow one another, at an offset for each key.
func (a Algorithm) OnGrid() bool { return a.of().grid }

// Fixed reports whether a window ends at one instant for all that it counts. Such windows can
// follow the calendar.
func (a Algorithm) Fixed() bool { return a.of().fixed }

// Divided reports whether a policy says into how many parts a window is divided.
func (a Algorithm) Divided() bool { return a.of().divided }

// Estimates reports whether it estimates what it counts by when requests came.
func (a Algorithm) Estimates() bool { return a.of().estimates }

// Queues reports whether requests may wait for their turn.
func (a Algorithm) Queues() bool { return a.of().queues }

// Lends reports whether its tokens may be given out before requests need them.
func (a Algorithm) Lends() bool { return !a.Estimates() && !a.Queues() }

// PaysBack reports whether it has a rate out of which tokens are paid back that were used too much.
func (a Algorithm) PaysBack() bool { return !a.Windowed() && !a.Queues() }
