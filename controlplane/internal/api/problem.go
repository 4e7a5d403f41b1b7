package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/leases"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/push"
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
	// Detail says what happened this time and what to do.
	Detail string `json:"detail,omitempty"`
	// Problems are the reasons to refuse a body, by their places in it.
	Problems policy.Problems `json:"problems,omitempty"`
	// RequestID is what the control plane's log has about it.
	RequestID string `json:"request_id,omitempty"`
}

// failure is an error with everything that its answer needs.
type failure struct {
	status int
	kind   string
	detail string
	// problems are the parts of a body that are wrong.
	problems policy.Problems
	// acceptPatch is the header that names the media type of patches; empty for all other problems.
	acceptPatch string
	// wait is when to try again; 0 for all problems that waiting does not help with.
	wait time.Duration
	// cause goes to the log, not to the client.
	cause error
	// quiet: the log has the cause already, once, and does without each call.
	quiet bool
}

func (f *failure) Error() string {
	if f.cause != nil {
		return fmt.Sprintf("%s: %v", f.kind, f.cause)
	}
	return f.kind + ": " + f.detail
}

func (f *failure) Unwrap() error { return f.cause }

func badRequest(format string, args ...any) error {
	return &failure{status: http.StatusBadRequest, kind: "bad-request", detail: fmt.Sprintf(format, args...)}
}

// storeFailure passes on what the services say, and takes any other error for the store's.
func storeFailure(err error) error {
	if known(err) {
		return err
	}
	detail := "the store does not answer; try again"
	if said := Cause(err); said != "" {
		detail = said + "; try again"
	}
	return &failure{status: http.StatusServiceUnavailable, kind: "store-unavailable", detail: detail, cause: err}
}

func known(err error) bool {
	var syntax *policydoc.SyntaxError
	var problems policy.Problems
	if _, ok := rolloutFailure(err); ok {
		return true
	}
	return errors.As(err, &syntax) || errors.As(err, &problems) ||
		errors.Is(err, consumers.ErrConflict) || errors.Is(err, consumers.ErrNotFound) ||
		errors.Is(err, enforcement.ErrConflict) || errors.Is(err, enforcement.ErrUnknown) || errors.Is(err, enforcement.ErrTooMany) ||
		errors.Is(err, enforcement.ErrNotBanned) ||
		errors.Is(err, policydoc.ErrNoPolicy) || errors.Is(err, policies.ErrConflict) || errors.Is(err, policies.ErrNotFound) || errors.Is(err, policies.ErrUnreadable)
}

// problemOf is the one place where errors become answers. What it does not know is internal: logged, never shown.
func problemOf(err error) Problem {
	var (
		f        *failure
		syntax   *policydoc.SyntaxError
		problems policy.Problems
		tooLarge *http.MaxBytesError
		routing  *echo.HTTPError
	)
	if p, ok := rolloutFailure(err); ok {
		return p
	}
	switch {
	case errors.As(err, &f):
		p := newProblem(f.status, f.kind, f.detail)
		p.Problems = f.problems
		return p
	case errors.Is(err, policies.ErrUnreadable): // which wraps one of the next two
		return newProblem(http.StatusInternalServerError, "unreadable", "the stored policy set was written by another version of weir and this one cannot read it")
	case errors.As(err, &syntax):
		return newProblem(http.StatusBadRequest, "unparsable", unparsable(syntax))
	case errors.As(err, &problems):
		p := newProblem(http.StatusUnprocessableEntity, "invalid-policy-set", "the policy set is refused as a whole; nothing has been changed")
		p.Problems = problems
		return p
	case errors.Is(err, policies.ErrConflict):
		return newProblem(http.StatusPreconditionFailed, "changed-meanwhile",
			"the policy set is no longer the version that If-Match names: get it again, apply your change to that, and put it with its ETag")
	case errors.Is(err, policydoc.ErrNoPolicy):
		return newProblem(http.StatusNotFound, "not-found", "the policy set has no policy of this name: weir get policies lists them; PUT adds one")
	case errors.Is(err, policies.ErrNotFound):
		return newProblem(http.StatusNotFound, "not-found", "there is no such version, or it has been dropped: the newest are kept")
	case errors.Is(err, consumers.ErrConflict):
		return newProblem(http.StatusPreconditionFailed, "changed-meanwhile",
			"the consumer is no longer what If-Match names: get it again and change that; nothing assigned has the ETag \"0\"")
	case errors.Is(err, consumers.ErrNotFound):
		return newProblem(http.StatusNotFound, "not-found", "nothing is assigned to this consumer: it has the tier that its requests say, or the default tier")
	case errors.Is(err, enforcement.ErrConflict):
		return newProblem(http.StatusPreconditionFailed, "changed-meanwhile",
			"the orders in force are no longer those that If-Match names: get them again, and change those; before the first order the ETag is \"0\"")
	case errors.Is(err, enforcement.ErrUnknown):
		return newProblem(http.StatusServiceUnavailable, "store-unavailable",
			"the store has not been reached since the start, so what is in force is not known here: try again, or replace whatever there is with If-Match: *")
	case errors.Is(err, enforcement.ErrTooMany):
		return newProblem(http.StatusConflict, "too-many-bans",
			fmt.Sprintf("there are %d bans, which is as many as there may be: lift one, or ban addresses in the policy set", wire.MaxBans))
	case errors.Is(err, enforcement.ErrNotBanned):
		return newProblem(http.StatusNotFound, "not-found", "this key is not banned")
	case errors.Is(err, leases.ErrUnavailable), errors.Is(err, push.ErrNotReady):
		return newProblem(http.StatusServiceUnavailable, "store-unavailable", "the store does not answer; try again")
	case errors.As(err, &tooLarge):
		return newProblem(http.StatusRequestEntityTooLarge, "too-large", fmt.Sprintf("the body may have at most %d bytes", tooLarge.Limit))
	case errors.As(err, &routing) && routing.Code == http.StatusBadRequest: // of the generated code
		return newProblem(http.StatusBadRequest, "bad-request", fmt.Sprint(routing.Message))
	case errors.As(err, &routing) && routing.Code == http.StatusNotFound:
		return newProblem(http.StatusNotFound, "not-found", "there is nothing at this path")
	case errors.As(err, &routing) && routing.Code == http.StatusMethodNotAllowed:
		return newProblem(http.StatusMethodNotAllowed, "method-not-allowed", "the Allow header names the methods of this path")
	}
	return newProblem(http.StatusInternalServerError, "internal", "something went wrong here; the log has more under the request id")
}

// unparsable says where and why a body is no document.
func unparsable(err *policydoc.SyntaxError) string {
	if strings.HasPrefix(err.Error(), "the document") {
		return err.Error()
	}
	return "the document cannot be read: " + err.Error()
}

func newProblem(status int, kind, detail string) Problem {
	return Problem{Type: "urn:weir:problem:" + kind, Title: http.StatusText(status), Status: status, Detail: detail}
}
