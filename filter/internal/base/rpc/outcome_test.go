package rpc_test

import (
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/rpc"
)

func TestStatuses(t *testing.T) {
	for status, want := range map[int]rpc.Outcome{
		0: rpc.NoAnswer, 504: rpc.NoAnswer, 200: rpc.Answered, 204: rpc.Answered,
		400: rpc.Refused, 401: rpc.Refused, 429: rpc.Overloaded, 500: rpc.Unavailable, 503: rpc.Unavailable,
		100: rpc.Unreadable, 302: rpc.Unreadable,
	} {
		if got := rpc.OutcomeOf(status); got != want {
			t.Errorf("status %d is %q, want %q", status, got, want)
		}
	}
}
