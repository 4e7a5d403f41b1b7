package quota

// Algorithm says how a limit counts. Its number travels in snapshots: never renumber.
type Algorithm uint8

// The algorithms. Params and State decide the first two, Windows and History the others.
const (
	TokenBucket Algorithm = iota
	LeakyBucket
	FixedWindow
	SlidingWindow
	SlidingWindowCounter
	SlidingLog
)

// Algorithms are the names in the policy language, by number.
var Algorithms = [...]string{
	TokenBucket: "token_bucket", LeakyBucket: "leaky_bucket", FixedWindow: "fixed_window",
	SlidingWindow: "sliding_window", SlidingWindowCounter: "sliding_window_counter", SlidingLog: "sliding_log",
}

// String is the algorithm's name in the policy language.
func (a Algorithm) String() string { return Algorithms[a] }

// Windowed reports whether the algorithm counts recent admissions in Windows, and not tokens.
func (a Algorithm) Windowed() bool { return a >= FixedWindow && a <= SlidingLog }
