package access_test

import (
	"context"
	"errors"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

// forOne lets one in at once.
func forOne() *access.Turns { return access.NewTurns(1, 10) }

// taken reports whether the one turn is taken.
func taken(turns *access.Turns) bool {
	leave, free := turns.EnterNow()
	if free {
		leave()
	}
	return !free
}

// A turn is free while its owner waits for the store, also in several calls at once, and from its
// end on.
func TestATurnIsFreeWhileItsOwnerWaits(t *testing.T) {
	turns := forOne()
	ctx, turn, err := turns.EnterForPeople(t.Context(), "A")
	if err != nil || !taken(turns) {
		t.Fatalf("no turn: %v", err)
	}
	first, second := access.Pause(ctx), access.Pause(ctx)
	if taken(turns) {
		t.Error("the turn is taken during two calls")
	}
	first()
	if taken(turns) {
		t.Error("the turn is taken during one call")
	}
	second()
	if !taken(turns) {
		t.Error("the turn is not taken again")
	}
	late := access.Pause(ctx)
	turn.Give()
	late()
	if taken(turns) {
		t.Error("the turn is taken after it was given up")
	}
	turn.Give()
	access.Pause(t.Context())()
	access.Pause(access.ForPeople(t.Context()))()
}

// Whose request ends while another has the turn goes on without.
func TestAnEndedRequestWaitsForNoTurn(t *testing.T) {
	turns := forOne()
	ctx, cancel := context.WithCancel(t.Context())
	ctx, turn, err := turns.EnterForPeople(ctx, "A")
	if err != nil {
		t.Fatal(err)
	}
	back := access.Pause(ctx)
	_, other, err := turns.EnterForPeople(t.Context(), "B")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	back()
	turn.Give()
	if !taken(turns) {
		t.Error("another's turn was given up")
	}
	if _, _, err := turns.EnterForPeople(ctx, "A"); !errors.Is(err, context.Canceled) {
		t.Errorf("a turn after the end: %v", err)
	}
	other.Give()
}
