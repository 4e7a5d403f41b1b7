package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/auth"
)

const (
	requestIDHeader = "X-Request-Id"
	// storePatience bounds what a request under /v1 waits for the store altogether.
	storePatience = 5 * time.Second
)

// identify gives each request an id: the caller's if it is a sane one.
func identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(requestIDHeader)
		if !saneID(id) {
			id = rand.Text()
		}
		c.Response().Header().Set(requestIDHeader, id)
		return next(c)
	}
}

func saneID(id string) bool {
	return len(id) >= 8 && len(id) <= 64 &&
		strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

// observe counts and answers: every error becomes a problem here, so that the status is known when it is counted.
func (s *server) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := s.Now()
		if err := s.protect(next, c); err != nil {
			s.fail(err, c)
		}
		took := s.Now().Sub(start)
		s.Metrics.Request(c.Path(), c.Request().Method, c.Response().Status, took)
		s.Log.Debug("request", "id", requestID(c), "method", c.Request().Method, "path", loggedPath(c),
			"status", c.Response().Status, "micros", took.Microseconds())
		return nil
	}
}

// protect turns a panic into an error that is logged with its stack.
func (s *server) protect(next echo.HandlerFunc, c echo.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if r == http.ErrAbortHandler {
				panic(r)
			}
			s.Log.Error("panic", "id", requestID(c), "value", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return next(c)
}

// fail answers with a problem. Errors that are the control plane's own fault are logged.
func (s *server) fail(err error, c echo.Context) {
	p := problemOf(err)
	p.RequestID = requestID(c)
	switch {
	case errors.Is(err, context.Canceled) && c.Request().Context().Err() != nil:
		s.Log.Debug("the caller went away", "id", p.RequestID, "error", err.Error())
	case p.Status >= http.StatusInternalServerError:
		s.Log.Error("request failed", "id", p.RequestID, "method", c.Request().Method, "path", loggedPath(c), "error", err.Error())
	}
	if c.Response().Committed {
		return
	}
	if f := (*failure)(nil); errors.As(err, &f) && f.acceptPatch != "" {
		c.Response().Header().Set("Accept-Patch", f.acceptPatch)
	}
	body, err := json.Marshal(p)
	if err != nil {
		s.Log.Error("a problem cannot be written", "id", p.RequestID, "error", err)
		c.Response().WriteHeader(http.StatusInternalServerError)
		return
	}
	if err := c.Blob(p.Status, ProblemType, append(body, '\n')); err != nil {
		s.Log.Debug("the answer could not be sent", "id", p.RequestID, "error", err)
	}
}

// authorize finds the caller's token and whether it has the role.
func (s *server) authorize(c echo.Context, role auth.Role) (token auth.Token, err error) {
	defer func() { s.noteRefused(c, token, err) }()
	scheme, secret, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
	token, ok := s.Tokens.Find(strings.TrimSpace(secret))
	if !strings.EqualFold(scheme, "bearer") || !ok {
		c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="weir"`)
		return token, &failure{status: http.StatusUnauthorized, kind: "unauthorized",
			detail: "send a token that this control plane knows: Authorization: Bearer TOKEN"}
	}
	if !token.Role.May(role) {
		return token, &failure{status: http.StatusForbidden, kind: "forbidden",
			detail: fmt.Sprintf("this needs the role %s; the token %s has the role %s", role, token.Name, token.Role)}
	}
	return token, nil
}

// noteRefused logs that somebody may not change what they tried to. The audit is about what has happened.
func (s *server) noteRefused(c echo.Context, token auth.Token, err error) {
	if err == nil || c.Request().Method == http.MethodGet || !strings.HasPrefix(c.Path(), "/v1/") {
		return
	}
	s.Log.Warn("a change was refused", "id", requestID(c), "method", c.Request().Method, "path", loggedPath(c),
		"token", token.Name, "role", token.Role, "from", c.Request().RemoteAddr, "reason", err.Error())
}

// caller is what handlers know of a request beside what the description names.
type caller struct {
	// name and role are the token's, id is the request's.
	name string
	role auth.Role
	id   string
	// accept and contentType are the headers, which a description may not declare as parameters.
	accept, contentType string
}

type callerKey struct{}

func withCaller(ctx context.Context, who caller) context.Context {
	return context.WithValue(ctx, callerKey{}, who)
}

func callerOf(ctx context.Context) caller {
	who, _ := ctx.Value(callerKey{}).(caller)
	return who
}

// bounded ends what a request asks of the store, at the latest when the returned function is called.
func bounded(c echo.Context) context.CancelFunc {
	ctx, cancel := context.WithTimeout(c.Request().Context(), storePatience)
	c.SetRequest(c.Request().WithContext(ctx))
	return cancel
}

// loggedPath is the request's path without a consumer's value, which may be an API key.
func loggedPath(c echo.Context) string {
	path := c.Request().URL.Path
	if strings.HasPrefix(path, consumersPath) {
		return consumersPath + "…"
	}
	return path
}

func requestID(c echo.Context) string { return c.Response().Header().Get(requestIDHeader) }
