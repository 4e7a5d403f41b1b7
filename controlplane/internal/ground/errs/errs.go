// Package errs has the errors that callers of the control plane can do something about. Each has a
// code, and the interface knows one status for each code; any other error is the store's or a
// fault.
package errs

import "errors"

// Code is the kind of an error, as the type of a problem names it. It is an error itself, which is
// enough where the kind says it all, and errors.Is(err, code) reports whether an error is of its
// kind.
type Code string

// The codes.
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
	Conflict             Code = "changed-meanwhile" // what was to be changed is not as expected
	TooLarge             Code = "too-large"
	UnsupportedMediaType Code = "unsupported-media-type"
	Unparsable           Code = "unparsable"
	InvalidPolicySet     Code = "invalid-policy-set"
	InvalidConsumer      Code = "invalid-consumer"
	InvalidEnforcement   Code = "invalid-enforcement"
	OtherProtocol        Code = "other-protocol" // a filter must be upgraded, or the control plane
	PreconditionRequired Code = "precondition-required"
	TooManyRequests      Code = "too-many-requests"
	Unreadable           Code = "unreadable"         // what is in force was written by another version
	UnreadableVersion    Code = "unreadable-version" // a version that a request names was
	Internal             Code = "internal"
	Stopping             Code = "stopping"
	StoreUnavailable     Code = "store-unavailable"
)

// Error returns the code.
func (c Code) Error() string { return string(c) }

// Error is an error with a code.
type Error struct {
	Code Code
	// Detail is for the client: what happened and what to do. It is empty where the code says it
	// all.
	Detail string
	// Cause is for the log; nil where Detail says it all.
	Cause error
}

// New makes an error of a text for the log and a detail for the client.
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

// CodeOf returns the code and the detail of the outermost error that has one; false if none has.
func CodeOf(err error) (code Code, detail string, ok bool) {
	var e *Error
	if errors.As(err, &e) {
		return e.Code, e.Detail, true
	}
	ok = errors.As(err, &code)
	return code, "", ok
}
