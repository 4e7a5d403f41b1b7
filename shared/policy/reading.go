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

// PathParameters are what a segment of a path has behind a semicolon, like /login;x=1.
type PathParameters uint8

// KeepParameters has them be a part of the path. CutParameters leaves them out, as upstreams do
// that route by the rest.
const (
	KeepParameters PathParameters = iota
	CutParameters
)
