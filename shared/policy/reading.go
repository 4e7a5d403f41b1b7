package policy

// IfSeveral says what becomes of a request that gives several different values of a header, cookie
// or query parameter that identifies its caller.
type IfSeveral uint8

// SeveralDeny refuses it, SeveralFirst takes the first of them, SeveralJoined takes all of them
// together for an identity of its own.
const (
	SeveralDeny IfSeveral = iota
	SeveralFirst
	SeveralJoined
)
