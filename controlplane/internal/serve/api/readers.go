package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
)

// separatePeople keeps the requests of people from slowing down the requests of nodes. People have
// their own way to the store, and readers take turns for the processors. A turn lasts while the
// answer is made. It does not include the call of the store or the sending of the answer, which a
// reader can delay. Requests that change something, or that wait for changes, take no turn.
func (s *server) separatePeople(c echo.Context, op *operation, next echo.HandlerFunc) error {
	r := c.Request()
	switch {
	case op.forNodes() || op.waits || !op.checked && op.path != metricsPath:
		return next(c)
	case r.Method != http.MethodGet:
		c.SetRequest(r.WithContext(access.ForPeople(r.Context())))
		return next(c)
	}
	from := cmp.Or(callerOf(r.Context()).name, callerOf(r.Context()).from)
	ctx, turn, err := s.bounds.readers.EnterForPeople(r.Context(), from)
	switch {
	case errors.Is(err, access.ErrFull) || errors.Is(err, context.DeadlineExceeded):
		s.config.Metrics.Throttled(metrics.BoundReaders)
		return tooMany(0, "too many requests of this source wait already")
	case err != nil:
		return err
	}
	defer turn.Give()
	c.SetRequest(r.WithContext(ctx))
	answer := c.Response()
	held := &heldAnswer{ResponseWriter: answer.Writer}
	answer.Writer = held
	defer func() { answer.Writer = held.ResponseWriter }()
	if err := next(c); err != nil {
		answer.Committed, answer.Status, answer.Size = false, 0, 0 // Nothing was sent: the error is the answer.
		return err
	}
	turn.Give()
	return held.send()
}

// metricsPath is the path of the metrics. They are expensive to compute and need no token.
const metricsPath = "/metrics"

// heldAnswer keeps an answer until it is whole.
type heldAnswer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (h *heldAnswer) WriteHeader(status int) {
	if h.status == 0 {
		h.status = status
	}
}

// Write implements http.ResponseWriter.
func (h *heldAnswer) Write(b []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	return h.body.Write(b)
}

// send sends the answer, unless the handler wrote nothing.
func (h *heldAnswer) send() error {
	if h.status == 0 {
		return nil
	}
	h.ResponseWriter.WriteHeader(h.status)
	_, err := h.ResponseWriter.Write(h.body.Bytes())
	return err
}
