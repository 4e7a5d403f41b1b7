package access

import (
	"context"
	"sync"
)

// turnKey is the context key of the turn.
type turnKey struct{}

// Turn is the permission to compute for people. Its owner holds it while it computes and releases
// it while it waits for the store. Make a Turn with EnterForPeople. It is safe for concurrent use.
type Turn struct {
	turns  *Turns
	source string

	mu sync.Mutex
	// leave releases the turn; nil while it is not held.
	leave func()
	// waits is the number of calls to the store that are under way.
	waits int
	given bool
}

// EnterForPeople waits for a turn like Enter, for people of a source. It returns the turn, and a
// context that carries it. By that context, people's requests to the store use other connections
// than grants.
func (t *Turns) EnterForPeople(ctx context.Context, source string) (context.Context, *Turn, error) {
	leave, err := t.Enter(ctx, source, "")
	if err != nil {
		return ctx, nil, err
	}
	turn := &Turn{turns: t, source: source, leave: leave}
	return context.WithValue(ctx, turnKey{}, turn), turn, nil
}

// Give releases the turn for good. It may be called more than once, and on nil.
func (t *Turn) Give() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.given = true
	t.release()
}

// release releases the turn if it is held. The caller holds the lock.
func (t *Turn) release() {
	if t.leave != nil {
		t.leave()
		t.leave = nil
	}
}

// ForPeople marks a context as one of people, without a turn.
func ForPeople(ctx context.Context) context.Context {
	return context.WithValue(ctx, turnKey{}, (*Turn)(nil))
}

// ForGrants returns the context for a call that people and nodes share.
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

// Pause releases the turn of a context, if it has a turn, for the time of a call to the store. back
// waits for the turn again. If the context ends meanwhile, back returns without the turn, because
// its owner has nothing left to do.
func Pause(ctx context.Context) (back func()) {
	t, _ := ctx.Value(turnKey{}).(*Turn)
	if t == nil {
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waits++
	t.release()
	return func() { t.enterAgain(ctx) }
}

// enterAgain waits for the turn again once no call is under way.
func (t *Turn) enterAgain(ctx context.Context) {
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
	if t.leave != nil || t.waits > 0 || t.given { // Another call has begun, or has already taken the turn.
		leave()
		return
	}
	t.leave = leave
}
