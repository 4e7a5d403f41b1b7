package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// ProblemType is the media type of every error answer (RFC 9457).
const ProblemType = "application/problem+json"

// Problem is the body of every error answer.
type Problem struct {
	// Type names the kind of problem: urn:weir:problem: and a word that never changes.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail says why this request failed and how to continue.
	Detail string `json:"detail,omitempty"`
	// Problems are the reasons to refuse a body, by their places in it.
	Problems policy.Problems `json:"problems,omitempty"`
	// RequestID identifies the request in the control plane's log.
	RequestID string `json:"request_id,omitempty"`
}

// answers maps each code to its status and its default detail.
var answers = map[errs.Code]struct {
	status int
	// detail is for errors without their own detail.
	detail string
}{
	errs.BadRequest:           {status: http.StatusBadRequest},
	errs.Unparsable:           {status: http.StatusBadRequest},
	errs.Unauthorized:         {status: http.StatusUnauthorized},
	errs.Forbidden:            {status: http.StatusForbidden},
	errs.NotFound:             {http.StatusNotFound, "there is nothing at this path"},
	errs.NoRollout:            {status: http.StatusNotFound},
	errs.MethodNotAllowed:     {http.StatusMethodNotAllowed, "the Allow header names the methods of this path"},
	errs.LocalPolicy:          {status: http.StatusConflict},
	errs.NoConsumers:          {status: http.StatusConflict},
	errs.RolloutUnderWay:      {status: http.StatusConflict},
	errs.NothingToKeep:        {status: http.StatusConflict},
	errs.KeptInFiles:          {status: http.StatusConflict},
	errs.TooManyBans:          {status: http.StatusConflict},
	errs.UnreadableVersion:    {status: http.StatusConflict},
	errs.Conflict:             {http.StatusPreconditionFailed, policySetChanged},
	errs.TooLarge:             {status: http.StatusRequestEntityTooLarge},
	errs.UnsupportedMediaType: {status: http.StatusUnsupportedMediaType},
	errs.InvalidPolicySet: {
		http.StatusUnprocessableEntity, "the policy set is refused as a whole; nothing has been changed",
	},
	errs.InvalidConsumer:      {http.StatusUnprocessableEntity, "nothing has been changed"},
	errs.InvalidEnforcement:   {http.StatusUnprocessableEntity, "nothing has been changed"},
	errs.OtherProtocol:        {status: http.StatusUpgradeRequired},
	errs.PreconditionRequired: {status: http.StatusPreconditionRequired},
	errs.TooManyRequests:      {status: http.StatusTooManyRequests},
	errs.Unreadable:           {status: http.StatusInternalServerError},
	errs.Internal: {
		http.StatusInternalServerError, "internal error; see the log under the request id",
	},
	errs.Stopping:         {http.StatusServiceUnavailable, "the control plane is shutting down"},
	errs.StoreUnavailable: {http.StatusServiceUnavailable, "the store does not answer; try again"},
}

// The details of errs.Conflict, for each thing that If-Match can name.
const (
	policySetChanged = "the policy set has changed since the ETag in If-Match: " +
		"get it again, apply your change to the new version, and put it with the new ETag"
	rolloutChanged = "the rollout has changed since the ETag in If-Match: " +
		"get it again, and continue with the new ETag"
	consumerChanged = "the consumer has changed since the ETag in If-Match: " +
		"get it again and change the new state; a consumer without a record has the ETag \"0\""
	enforcementChanged = "the orders in force have changed since the ETag in If-Match: " +
		"get them again and change the new list; before the first order the ETag is \"0\""
)

// failure is an error with everything that its answer needs.
type failure struct {
	code   errs.Code
	detail string
	// problems are the parts of a body that are wrong.
	problems policy.Problems
	// acceptPatch is the header that names the media type of patches; empty for all other problems.
	acceptPatch string
	// wait is the time until the next try; 0 if waiting does not help.
	wait time.Duration
	// cause goes to the log, not to the client.
	cause error
	// quiet is true if the log has the cause already: the failure is not logged again.
	quiet bool
}

func (f *failure) Error() string {
	if f.cause != nil {
		return fmt.Sprintf("%s: %v", f.code, f.cause)
	}
	return string(f.code) + ": " + f.detail
}

func (f *failure) Unwrap() error { return f.cause }

func badRequest(format string, args ...any) error {
	return &failure{code: errs.BadRequest, detail: fmt.Sprintf(format, args...)}
}

// errUnreadable returns the failure for a node's message that cannot be read.
func errUnreadable(message string, cause error) error {
	if cause == wire.ErrNewer || cause == wire.ErrOlder {
		return &failure{code: errs.OtherProtocol, detail: cause.Error()}
	}
	return badRequest("the %s cannot be read: %v", message, cause)
}

// explainConflict explains errs.Conflict, and passes on any other error.
func explainConflict(err error, detail string) error {
	if errors.Is(err, errs.Conflict) {
		return &errs.Error{Code: errs.Conflict, Detail: detail, Cause: err}
	}
	return err
}

// storeFailure passes on errors that the services explain, and takes any other error for the
// store's.
func storeFailure(err error) error {
	var f *failure
	if isExplained(err) || errors.As(err, &f) {
		return err
	}
	return &failure{code: errs.StoreUnavailable, detail: storeFailureText(err) + "; try again", cause: err}
}

// unreadError returns the failure for data that the store may have and this replica lacks, because
// it cannot follow the store; nil if it can.
func (s *server) unreadError() error {
	if err := s.config.Hub.Ready(); err != nil {
		return &failure{code: errs.StoreUnavailable, detail: followError(err) + "; try again", cause: err, quiet: true}
	}
	return nil
}

// storeFailureText explains, without internals, why a call of the store failed.
func storeFailureText(err error) string {
	if isExplained(err) {
		return err.Error()
	}
	return cmp.Or(Cause(err), "the store does not answer")
}

// isExplained reports whether an error is more than that the store does not answer.
func isExplained(err error) bool {
	var syntax *policydoc.SyntaxError
	var problems policy.Problems
	if code, detail, ok := errs.CodeOf(err); ok {
		return code != errs.StoreUnavailable || detail != ""
	}
	return errors.As(err, &syntax) || errors.As(err, &problems)
}

// problem returns the answer to a failure.
func (f *failure) problem() Problem {
	answer := answers[f.code]
	kind := f.code
	if kind == errs.UnreadableVersion {
		kind = errs.Unreadable // The same kind; but the request names the version, so the fault is its own.
	}
	return Problem{
		Type: "urn:weir:problem:" + string(kind), Title: http.StatusText(answer.status), Status: answer.status,
		Detail: cmp.Or(f.detail, answer.detail), Problems: f.problems,
	}
}

// failureOf turns every error into a failure; no other place does. An error without a code is
// internal: it is logged and never shown.
func failureOf(err error) *failure {
	var (
		f        *failure
		syntax   *policydoc.SyntaxError
		problems policy.Problems
	)
	if errors.As(err, &f) {
		return f
	}
	if code, detail, ok := errs.CodeOf(err); ok { // Before the next two, which it may wrap.
		return &failure{code: code, detail: detail}
	}
	if errors.As(err, &syntax) {
		return &failure{code: errs.Unparsable, detail: unparsableText(syntax)}
	}
	if errors.As(err, &problems) {
		return &failure{code: errs.InvalidPolicySet, problems: problems}
	}
	return requestFailure(err)
}

// requestFailure turns an error of the framework into a failure.
func requestFailure(err error) *failure {
	var (
		tooLarge *http.MaxBytesError
		routing  *echo.HTTPError
	)
	if errors.As(err, &tooLarge) {
		return &failure{code: errs.TooLarge, detail: fmt.Sprintf("the body may have at most %d bytes", tooLarge.Limit)}
	}
	if !errors.As(err, &routing) {
		return &failure{code: errs.Internal}
	}
	switch routing.Code {
	case http.StatusBadRequest: // The generated code refuses parameters.
		return &failure{code: errs.BadRequest, detail: fmt.Sprint(routing.Message)}
	case http.StatusNotFound:
		return &failure{code: errs.NotFound}
	case http.StatusMethodNotAllowed:
		return &failure{code: errs.MethodNotAllowed}
	}
	return &failure{code: errs.Internal}
}

// unparsableText says where and why a body is no document.
func unparsableText(err *policydoc.SyntaxError) string {
	if strings.HasPrefix(err.Error(), "the document") {
		return err.Error()
	}
	return "the document cannot be read: " + err.Error()
}
