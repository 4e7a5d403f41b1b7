package console

import (
	"net/http"
	"time"
)

// Dress gives the stack something to show: a change, an order, a caller with a limit of its own.
func (s *Stack) Dress() error {
	ends := time.Now().Add(30 * time.Minute).UTC().Format(time.RFC3339)
	for _, c := range []struct{ method, path, body string }{
		{http.MethodPatch, "/v1/policies/shorten-per-ip", `{"limit": {"quota": 80}}`},
		{http.MethodPatch, "/v1/policies/resolve-per-ip", `{"limit": {"quota": 600}}`},
		{http.MethodPut, "/v1/consumers/key-of-alice?source=header:x-api-key",
			`{"tier": "premium", "overrides": [{"policy": "shorten-per-consumer", "limit": {"quota": 5000, "window": "24h"}, "reason": "launch week"}]}`},
		{http.MethodPut, "/v1/enforcement",
			`{"orders": [{"state": "shadow", "policy": "login", "reason": "the new client retries too fast", "expires_at": "` + ends + `"}]}`},
	} {
		if _, err := s.Call(c.method, c.path, c.body); err != nil {
			return err
		}
	}
	return nil
}
