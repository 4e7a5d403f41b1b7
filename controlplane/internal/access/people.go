package access

import (
	"context"
	"sync"
)

// turnKey is the key of the turn that a context carries.
type turnKey struct{}

// Turn is the permission to compute for people. Its owner holds it while it computes, and gives it
// up while it waits for the store. Make one with EnterForPeople. It is safe for concurrent use.
type Turn struct {
	turns  *Turns
	source string

	mu sync.Mutex
	// leave gives the turn up; nil while it is not held.
	leave func()
	// waits are the calls to the store that are under way.
	waits int
	given bool
}

// EnterForPeople is Enter for people of a source, and returns the turn with a context that carries
// it. So the way of people's requests to the store is kept apart from that of grants.
func (t *Turns) EnterForPeople(ctx context.Context, source string) (context.Context, *Turn, error) {
	leave, err := t.Enter(ctx, source, "")
	if err != nil {
		return ctx, nil, err
	}
	turn := &Turn{turns: t, source: source, leave: leave}
	return context.WithValue(ctx, turnKey{}, turn), turn, nil
}

// Give gives the turn up for good. It may be called more than once, and of nil.
func (t *Turn) Give() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.given = true
	t.away()
}

// away gives the turn up if it is held. The lock is held.
func (t *Turn) away() {
	if t.leave != nil {
		t.leave()
		t.leave = nil
	}
}

// ForPeople marks a context as that of people without giving it a turn.
func ForPeople(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnKey{}, (*Turn)(nil))
}

// ForGrants returns the context of a call that people and nodes share.
func ForGrants(ctx context.Context) context.Context {
	if !IsForPeople(ctx) {
		return ctx
	}
	return context.WithValue(ctx, turnKey{}, nil)
}

// IsForPeople reports whether a call to the store is made for people.
func IsForPeople(ctx context.Context) bool {
	_, ok := ctx.Value(turnKey{}).(*Turn)
	return ok
}

// Pause gives the turn of a context up, if it has one, while a call to the store is under way, and
// returns how to wait for it again afterwards. If the context ends meanwhile its owner goes on
// without, since it has nothing left to do.
func Pause(ctx context.Context) (back func()) {
	t, _ := ctx.Value(turnKey{}).(*Turn)
	if t == nil {
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waits++
	t.away()
	return func() { t.back(ctx) }
}

// back waits for the turn again once no call is under way any more.
func (t *Turn) back(ctx context.Context) {
	t.mu.Lock()
	t.waits--
	held := t.leave != nil || t.waits > 0 || t.given
	t.mu.Unlock()
	if held {
		return
	}
	leave, err := t.turns.Enter(ctx, t.source, "")
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leave != nil || t.waits > 0 || t.given { // Another call has begun, or has brought it back.
		leave()
		return
	}
	t.leave = leave
}
