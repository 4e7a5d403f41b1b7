package lane_test

import (
	"context"
	"errors"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/lane"
)

// room is a place for one.
type room chan struct{}

func (r room) enter(ctx context.Context) (func(), error) {
	select {
	case r <- struct{}{}:
		return func() { <-r }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r room) taken() bool { return len(r) == 1 }

// A place is free while its owner waits for the store, also in several calls at once, and from its
// end on.
func TestAPlaceIsFreeWhileItsOwnerWaits(t *testing.T) {
	r := make(room, 1)
	ctx, p, err := lane.Take(t.Context(), r.enter)
	if err != nil || !r.taken() {
		t.Fatalf("no place: %v", err)
	}
	first, second := lane.Wait(ctx), lane.Wait(ctx)
	if r.taken() {
		t.Error("the place is taken during two calls")
	}
	first()
	if r.taken() {
		t.Error("the place is taken during one call")
	}
	second()
	if !r.taken() {
		t.Error("the place is not taken again")
	}
	late := lane.Wait(ctx)
	p.Give()
	late()
	if r.taken() {
		t.Error("the place is taken after it was given up")
	}
	p.Give()
	lane.Wait(t.Context())()
	lane.Wait(lane.ForPeople(t.Context()))()
}

// Whose request ends while another has the place goes on without.
func TestAnEndedRequestWaitsForNoPlace(t *testing.T) {
	r := make(room, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ctx, p, err := lane.Take(ctx, r.enter)
	if err != nil {
		t.Fatal(err)
	}
	back := lane.Wait(ctx)
	_, other, err := lane.Take(t.Context(), r.enter)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	back()
	p.Give()
	if !r.taken() {
		t.Error("another's place was given up")
	}
	other.Give()
	if _, _, err := lane.Take(ctx, func(ctx context.Context) (func(), error) { return nil, ctx.Err() }); !errors.Is(err,
		context.Canceled) {
		t.Errorf("a place after the end: %v", err)
	}
}
