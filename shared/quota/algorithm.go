package quota

// Algorithm is the way in which a limit counts. Its number travels in snapshots: never renumber.
type Algorithm uint8

// The algorithms. Params and State decide the first two, Windows and History the other algorithms.
// Only the arithmetic and the places that CONTRIBUTING.md lists name an algorithm; all other code
// asks for a property.
const (
	TokenBucket Algorithm = iota
	LeakyBucket
	FixedWindow
	SlidingWindow
	SlidingWindowCounter
	SlidingLog
)

// DefaultAlgorithm is the algorithm of a policy that names none.
const DefaultAlgorithm = TokenBucket

// AlgorithmCount is the number of algorithms; their numbers are below it.
const AlgorithmCount = len(algorithms)

// properties are the properties of an algorithm that other packages use. Each is false for a token
// bucket.
type properties struct {
	name string
	// windowed means that it counts recent admissions, in Windows and History, and not tokens.
	windowed bool
	// grid means that its windows follow each other, and that a key's windows begin at its own
	// offset.
	grid bool
	// fixed means that a window ends at one instant for all tokens in it. Such windows can follow
	// the calendar.
	fixed bool
	// divided means that a policy defines the number of parts of a window.
	divided bool
	// estimates means that it estimates a count from the times of requests. So it must see each
	// request, and none can change later.
	estimates bool
	// queues means that a request may wait for its turn, and turns are given out in order.
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

// propertiesOf returns the row of an algorithm; an unknown number has the row of the default.
func (a Algorithm) propertiesOf() *properties {
	if int(a) >= len(algorithms) {
		a = DefaultAlgorithm
	}
	return &algorithms[a]
}

// String returns the algorithm's name in the policy language.
func (a Algorithm) String() string { return a.propertiesOf().name }

// Windowed reports whether the algorithm counts recent admissions in Windows, and not tokens.
func (a Algorithm) Windowed() bool { return a.propertiesOf().windowed }

// OnGrid reports whether its windows follow each other, at an offset for each key.
func (a Algorithm) OnGrid() bool { return a.propertiesOf().grid }

// Fixed reports whether a window ends at one instant for all tokens in it. Such windows can follow
// the calendar.
func (a Algorithm) Fixed() bool { return a.propertiesOf().fixed }

// Divided reports whether a policy defines the number of parts of a window.
func (a Algorithm) Divided() bool { return a.propertiesOf().divided }

// Estimates reports whether it estimates a count from the times of requests.
func (a Algorithm) Estimates() bool { return a.propertiesOf().estimates }

// Queues reports whether requests may wait for their turn.
func (a Algorithm) Queues() bool { return a.propertiesOf().queues }

// Lends reports whether its tokens may be given out before requests need them.
func (a Algorithm) Lends() bool { return !a.Estimates() && !a.Queues() }

// PaysBack reports whether it has a rate that pays excess tokens back.
func (a Algorithm) PaysBack() bool { return !a.Windowed() && !a.Queues() }
