package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/shared/policy"
)

const (
	// RequestIDHeader is on every answer. The log names the request by this id.
	RequestIDHeader = "X-Request-Id"
	// storePatience bounds the total time that a request under /v1 waits for the store.
	storePatience = 5 * time.Second
)

// identifyRequest gives each request an id: the caller's id if it is sane.
func identifyRequest(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(RequestIDHeader)
		if !saneID(id) {
			id = rand.Text()
		}
		c.Response().Header().Set(RequestIDHeader, id)
		return next(c)
	}
}

func saneID(id string) bool {
	return len(id) >= 8 && len(id) <= 64 &&
		strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

// withHead answers HEAD as GET (RFC 9110, 9.1); the server leaves out the body by the request that
// it has read.
type withHead struct{ *echo.Echo }

// ServeHTTP implements http.Handler.
func (h withHead) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		asked := *r
		asked.Method = http.MethodGet
		r = &asked
	}
	h.Echo.ServeHTTP(w, r)
}

// bare lets a browser do nothing with an answer but show it.
const bare = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// setSafeHeaders keeps browsers from taking an answer for another type, and other sites from
// reading it.
func (s *server) setSafeHeaders(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		for i := range hardening {
			h[hardening[i].name] = hardening[i].value[:]
		}
		if warning := s.clockWarning(); warning != "" { // Programs compute the end of a ban from Date.
			h.Set("Date", s.config.Now().UTC().Format(http.TimeFormat))
			h.Set(ClockHeader, warning)
		}
		return next(c)
	}
}

// hardening are the headers of every answer, in the form that net/http keeps them: no request makes
// them anew.
var hardening = [...]struct {
	name  string
	value [1]string
}{
	{"Content-Security-Policy", [1]string{bare}},
	{"X-Content-Type-Options", [1]string{"nosniff"}},
	{"Referrer-Policy", [1]string{"no-referrer"}},
	{"Cross-Origin-Resource-Policy", [1]string{"same-origin"}},
	{"Cross-Origin-Opener-Policy", [1]string{"same-origin"}},
}

// observeRequest counts, traces and answers: every error becomes a problem here, so that the status
// is known when it is counted. Logs and traces have the route in place of the path, in which an API
// key may stand.
func (s *server) observeRequest(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := s.config.Wall()
		ctx, span := s.config.Tracing.Serve(c.Request(), c.Path())
		if ctx != c.Request().Context() {
			c.SetRequest(c.Request().WithContext(ctx))
		}
		defer func() { span.End(c.Response().Status) }()
		if err := s.catchPanic(next, c); err != nil {
			s.answerError(err, c)
		}
		took := s.config.Wall().Sub(start)
		s.config.Metrics.Request(c.Path(), c.Request().Method, c.Response().Status, took)
		if s.config.Log.Enabled(ctx, slog.LevelDebug) {
			s.config.Log.Debug("request", "id", requestID(c), "method", c.Request().Method, "route", c.Path(),
				"status", c.Response().Status, "micros", took.Microseconds())
		}
		return nil
	}
}

// catchPanic turns a panic into an error that is logged with its stack.
func (s *server) catchPanic(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if r == http.ErrAbortHandler {
				panic(r)
			}
			s.config.Log.Error("panic", "id", requestID(c), "value", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return next(c)
}

// hintFor names the path that a mistyped path probably means, or the methods of a path.
func hintFor(c echo.Context, code errs.Code) string {
	switch code {
	case errs.MethodNotAllowed:
		return ": " + c.Response().Header().Get(echo.HeaderAllow)
	case errs.NotFound:
		const longest = 100 // A guess takes time with the square of the length.
		asked := strings.Split(c.Request().URL.Path, "/")
		if len(c.Request().URL.Path) > longest {
			return ""
		}
		var near []string
		for _, route := range c.Echo().Routes() { // Named parts get the path's values.
			path := strings.Split(route.Path, "/")
			for i := range path {
				if i < len(asked) && strings.HasPrefix(path[i], ":") {
					path[i] = asked[i]
				}
			}
			near = append(near, strings.Join(path, "/"))
		}
		if guess := policy.Guess(c.Request().URL.Path, near); guess != "" {
			return ": did you mean " + guess + "?"
		}
	}
	return ""
}

// answerError answers with a problem. Errors that are the control plane's own fault are logged.
func (s *server) answerError(err error, c echo.Context) {
	f := failureOf(err)
	p := f.problem()
	if f.detail == "" {
		p.Detail += hintFor(c, f.code)
	}
	p.RequestID = requestID(c)
	switch {
	case errors.Is(err, context.Canceled) && c.Request().Context().Err() != nil:
		s.config.Log.Debug("the caller went away", "id", p.RequestID, "error", err.Error())
	case f.quiet: // The log has it already.
	case p.Status >= http.StatusInternalServerError:
		s.config.Log.Error("request failed", "id", p.RequestID, "method", c.Request().Method, "route", c.Path(),
			"error", err.Error())
	}
	if c.Response().Committed {
		return
	}
	if f.acceptPatch != "" {
		c.Response().Header().Set("Accept-Patch", f.acceptPatch)
	}
	if f.wait > 0 {
		seconds := int64((f.wait + time.Second - 1) / time.Second)
		c.Response().Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	body, err := json.Marshal(p)
	if err != nil {
		s.config.Log.Error("cannot write the problem", "id", p.RequestID, "error", err)
		c.Response().WriteHeader(http.StatusInternalServerError)
		return
	}
	if err := c.Blob(p.Status, ProblemType, append(body, '\n')); err != nil {
		s.config.Log.Debug("the answer could not be sent", "id", p.RequestID, "error", err)
	}
}

// caller has the facts about a request that handlers need and the description does not name.
type caller struct {
	// name and role are the token's, id is the request's.
	name string
	role auth.Role
	id   string
	// from is the source of the request.
	from string
	// accept and contentType are the headers, which a description may not declare as parameters.
	accept, contentType string
	// answer are the headers of the answer.
	answer http.Header
	// header has all headers: the policy set names the header by which callers identify themselves.
	header http.Header
}

// ClockHeader says on an answer that the control plane's clock is wrong.
const ClockHeader = "Weir-Clock"

// HeldHeader says that the store is away and that the answer comes from this replica's memory.
const HeldHeader = "Weir-Held"

// noteHeld sets HeldHeader if the store is away, with the age of the copy and the reason.
func (s *server) noteHeld(ctx context.Context, away error, since time.Time) {
	answer := callerOf(ctx).answer
	if away == nil || answer == nil {
		return
	}
	age := ""
	if !since.IsZero() {
		age = fmt.Sprintf(", as of %s ago", max(s.config.Now().Sub(since), 0).Truncate(time.Second))
	}
	answer.Set(HeldHeader, "this is the copy in the memory of this control plane"+age+": "+followError(away))
}

// noteAway calls noteHeld for an answer that always comes from memory.
func (s *server) noteAway(ctx context.Context) {
	s.noteHeld(ctx, s.config.Hub.Ready(), s.config.Hub.Followed())
}

// atHand bounds how long a question waits for a store that is known to be away.
func (s *server) atHand(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.config.Hub.Ready() == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, touchPatience)
}

// OrdersHeader says on each answer to an operator which orders are in force, so that no
// kill switch is left on unseen.
const OrdersHeader = "Weir-Orders"

// noteOrders sets OrdersHeader if orders change the enforcement. It names an order to enforce only
// if a policy, in force or in a set that comes into force, is not enforced by itself.
func (s *server) noteOrders(answer http.Header, coming ...*policy.Set) {
	coming = append(coming, s.setsInForce()...)
	var texts []string
	for _, o := range s.ordersInForce() {
		if o.State == enforcement.Enforce && !overridesPolicy(o, coming) {
			continue
		}
		text := "off for " + o.Scope()
		switch o.State {
		case enforcement.Shadow:
			text = "in shadow for " + o.Scope()
		case enforcement.Enforce: // A set that is applied meanwhile, to watch it in shadow, refuses.
			text = "enforced for " + o.Scope() + " whatever the policy set says"
		}
		if o.Percent < 100 {
			text += fmt.Sprintf(", %d %% of the keys", o.Percent)
		}
		if o.Expires == nil {
			text += ", without an end"
		} else {
			text += " until " + o.Expires.UTC().Format(time.RFC3339)
		}
		texts = append(texts, text)
	}
	if len(texts) > 0 {
		answer.Set(OrdersHeader, strings.Join(texts, "; "))
	}
}

// overridesPolicy reports whether an order is about a policy that is not enforced by itself.
func overridesPolicy(o enforcement.Order, sets []*policy.Set) bool {
	return slices.ContainsFunc(sets, func(set *policy.Set) bool {
		return set != nil && slices.ContainsFunc(set.Policies, func(p policy.Policy) bool {
			return (o.Policy == "" || o.Policy == p.Name) && p.Enforced != policy.EnforcedAll
		})
	})
}

// RolloutHeader says on each answer to an operator that a version is rolled out to a part of the
// nodes: an answer about the other version is not true for callers at these nodes.
const RolloutHeader = "Weir-Rollout"

// noteRollout sets RolloutHeader while there is a rollout.
func (s *server) noteRollout(answer http.Header) {
	if active, _ := s.config.Policies.Active(); active.Draft != nil {
		answer.Set(RolloutHeader, fmt.Sprintf(
			"version %d is rolled out to %d %% of the nodes, version %d to the other nodes",
			active.Draft.Version.Number, active.State.Rollout.Nodes, active.Current.Version.Number))
	}
}

type callerKey struct{}

func withCaller(ctx context.Context, who caller) context.Context {
	return context.WithValue(ctx, callerKey{}, who)
}

func callerOf(ctx context.Context) caller {
	who, _ := ctx.Value(callerKey{}).(caller)
	return who
}

// boundStoreTime limits the time that a request has for the store. The returned function ends the
// request's calls.
func boundStoreTime(c echo.Context) context.CancelFunc {
	ctx, cancel := context.WithTimeout(c.Request().Context(), storePatience)
	c.SetRequest(c.Request().WithContext(ctx))
	return cancel
}

func requestID(c echo.Context) string { return c.Response().Header().Get(RequestIDHeader) }
