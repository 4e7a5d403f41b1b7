// Package errs has the errors that callers of the control plane can act on. Each has a code, and
// the API has one status for each code. Any other error comes from the store or is a bug.
package errs

import "errors"

// Code is the kind of an error, and the type of a problem in the API. It is an error itself, for
// errors that need no more detail. errors.Is(err, code) reports whether an error has the code.
type Code string

// These are the codes.
const (
	BadRequest           Code = "bad-request"
	Unauthorized         Code = "unauthorized"
	Forbidden            Code = "forbidden"
	NotFound             Code = "not-found"
	NoRollout            Code = "no-rollout"
	MethodNotAllowed     Code = "method-not-allowed"
	LocalPolicy          Code = "local-policy"
	NoConsumers          Code = "no-consumers"
	RolloutUnderWay      Code = "rollout-under-way"
	NothingToKeep        Code = "nothing-to-keep"
	KeptInFiles          Code = "kept-in-files"
	TooManyBans          Code = "too-many-bans"
	Conflict             Code = "changed-meanwhile" // another writer has changed it first
	TooLarge             Code = "too-large"
	UnsupportedMediaType Code = "unsupported-media-type"
	Unparsable           Code = "unparsable"
	InvalidPolicySet     Code = "invalid-policy-set"
	InvalidConsumer      Code = "invalid-consumer"
	InvalidEnforcement   Code = "invalid-enforcement"
	OtherProtocol        Code = "other-protocol" // the filter or the control plane must be upgraded
	PreconditionRequired Code = "precondition-required"
	TooManyRequests      Code = "too-many-requests"
	Unreadable           Code = "unreadable"         // another version wrote the state in force
	UnreadableVersion    Code = "unreadable-version" // another version wrote the requested policy set
	Internal             Code = "internal"
	Stopping             Code = "stopping"
	StoreUnavailable     Code = "store-unavailable"
)

// Error returns the code.
func (c Code) Error() string { return string(c) }

// Error is an error with a code.
type Error struct {
	Code Code
	// Detail is for the client: the cause and the remedy. It is empty if the code says enough.
	Detail string
	// Cause is for the log; nil if Detail says enough.
	Cause error
}

// New makes an error with a text for the log and a detail for the client.
func New(code Code, text, detail string) *Error { return &Error{code, detail, errors.New(text)} }

// Error returns the text of the cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Cause.Error()
	}
	return e.Detail
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is the error's code.
func (e *Error) Is(target error) bool { return target == e.Code }

// CodeOf returns the code and the detail of the outermost error with a code; false if there is
// none.
func CodeOf(err error) (code Code, detail string, ok bool) {
	var e *Error
	if errors.As(err, &e) {
		return e.Code, e.Detail, true
	}
	ok = errors.As(err, &code)
	return code, "", ok
}
