package policy

// IfSeveral decides about a request with several different values of a header, cookie or query
// parameter that identifies its caller.
type IfSeveral uint8

// SeveralDeny refuses it, SeveralFirst uses the first value, SeveralJoined uses all values together
// as an identity of its own.
const (
	SeveralDeny IfSeveral = iota
	SeveralFirst
	SeveralJoined
)
