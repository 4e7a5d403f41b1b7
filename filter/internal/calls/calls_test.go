package calls_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/calls"
)

func TestStatuses(t *testing.T) {
	for status, want := range map[int]calls.Outcome{
		0: calls.NoAnswer, 504: calls.NoAnswer, 200: calls.Answered, 204: calls.Answered,
		400: calls.Refused, 401: calls.Refused, 429: calls.Overloaded, 500: calls.Unavailable, 503: calls.Unavailable,
		100: calls.Unreadable, 302: calls.Unreadable,
	} {
		if got := calls.Of(status); got != want {
			t.Errorf("status %d is %q, want %q", status, got, want)
		}
	}
}
