package redisstore_test

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// Once a build of a newer protocol has the store, an older build reads and writes nothing there,
// and names the remedy: while it runs, and at the next start.
func TestAStoreOfANewerProtocolIsLeftAlone(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, server)
	candidate := [16]byte{1}
	if h, err := s.Heads(t.Context(), candidate); err != nil || h.Secret != candidate {
		t.Fatalf("%x, %v", h.Secret, err)
	}
	const key = "weir:{meta}:protocol"
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
	// An operator sets it right.
	server.Do("SET", key, strconv.Itoa(wire.Protocol))
	if h, err := s.Heads(t.Context(), candidate); err != nil || h.Secret != candidate {
		t.Errorf("afterwards: %x, %v", h.Secret, err)
	}
	if _, err := s.Load(t.Context(), 1); errors.Is(err, wire.ErrNewerStore) {
		t.Errorf("a read afterwards: %v", err)
	}
}

// A store of a build from before the first release is refused with the remedy, and stays as it is:
// at the start, and by a process that has started without a store.
func TestAStoreFromBeforeTheFirstReleaseIsRefused(t *testing.T) {
	server := redistest.Start(t)
	server.Do("SET", "weir:{meta}:laid", "1")
	server.Do("SET", "weir:{meta}:secret", "0123456789abcdef")
	discard := slog.New(slog.DiscardHandler)
	if err := openURL(t, server.URL(), discard).Inspect(t.Context()); !errors.Is(err, wire.ErrUnreleasedStore) {
		t.Errorf("a start: %v", err)
	}
	s := openURL(t, server.URL(), discard)
	for range 3 {
		if _, err := s.Heads(t.Context(), [16]byte{1}); !errors.Is(err, wire.ErrUnreleasedStore) {
			t.Errorf("a poll: %v", err)
		}
	}
	if keys := server.Do("DBSIZE"); !strings.Contains(keys, "2") {
		t.Errorf("afterwards the store has %s keys, not the 2 of the old build", keys)
	}
}

// A key of another type than its topic's stops the topic, and no other.
func TestADamagedTopicLeavesTheOthersAlone(t *testing.T) {
	for _, key := range []string{"weir:{meta}:rollout", "weir:{meta}:enforcement", "weir:{consumers}:state",
		"weir:{penalties}:state"} {
		t.Run(key, func(t *testing.T) {
			server := redistest.Start(t)
			s := open(t, server)
			if _, err := s.Heads(t.Context(), [16]byte{1}); err != nil {
				t.Fatal(err)
			}
			server.Do("SET", key, "damaged")
			h, err := s.Heads(t.Context(), [16]byte{1})
			if err != nil || h.NoSecret != nil {
				t.Fatalf("%v, %v", err, h.NoSecret)
			}
			unread := 0
			for _, missing := range []bool{
				h.Policies == nil, h.Enforcement == nil, h.Topics["consumers"] == nil, h.Topics["penalties"] == nil,
			} {
				if missing {
					unread++
				}
			}
			if unread != 1 {
				t.Errorf("%d topics are not read, want 1: %+v", unread, h)
			}
		})
	}
}
