package redisstore_test

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/redistest"
)

// Once a build of a newer protocol has the store, one of before reads and writes nothing there, and
// says what to do: while it runs, and at the next start.
func TestAStoreOfANewerProtocolIsLeftAlone(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	candidate := [16]byte{1}
	if h, err := s.Heads(t.Context(), candidate); err != nil || h.Secret != candidate {
		t.Fatalf("%x, %v", h.Secret, err)
	}
	const key = "weir:{meta}:laid"
	if got := server.Do("GET", key); !strings.Contains(got, strconv.Itoa(wire.Protocol)) {
		t.Errorf("the store says protocol %q", got)
	}
	newer := strconv.Itoa(wire.Protocol + 1)
	server.Do("SET", key, newer)
	refuses := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, wire.ErrNewerStore) || !errors.Is(err, errs.StoreUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := s.Heads(t.Context(), candidate)
	refuses("a poll", err)
	_, err = s.Load(t.Context(), 1)
	refuses("a read", err)
	refuses("a start", openURL(t, server.URL(), slog.New(slog.DiscardHandler)).Inspect(t.Context()))
	if got := server.Do("GET", key); !strings.Contains(got, newer) {
		t.Errorf("the store says protocol %q", got)
	}
}
