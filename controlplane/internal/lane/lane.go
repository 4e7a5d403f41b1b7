// Package lane keeps apart the way of people's requests to the store and that of grants. A request
// of people carries a place, of which there are few: it holds it while it computes and gives it up
// while it waits for the store.
package lane

import (
	"context"
	"sync"
)

type contextKey struct{}

// Place is the permission to compute. Make one with Take. It is safe for concurrent use.
type Place struct {
	enter func(context.Context) (leave func(), err error)

	mu sync.Mutex
	// leave gives the place up; nil while it is not held.
	leave func()
	// waits are the calls to the store that are under way.
	waits int
	given bool
}

// Take waits for a place and returns it with a context that carries it. Enter waits for room, and
// leave makes room. After an error, which is that of enter, there is no place.
func Take(
	ctx context.Context, enter func(context.Context) (leave func(), err error),
) (context.Context, *Place, error) {
	leave, err := enter(ctx)
	if err != nil {
		return ctx, nil, err
	}
	p := &Place{enter: enter, leave: leave}
	return context.WithValue(ctx, contextKey{}, p), p, nil
}

// Give gives the place up for good. It may be called more than once, and of nil.
func (p *Place) Give() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given = true
	p.away()
}

// away gives the place up if it is held. The lock is held.
func (p *Place) away() {
	if p.leave != nil {
		p.leave()
		p.leave = nil
	}
}

// ForPeople marks a context as that of people without giving it a place.
func ForPeople(ctx context.Context) context.Context {
	return context.WithValue(ctx, contextKey{}, (*Place)(nil))
}

// ForGrants returns the context of a call that people and nodes share.
func ForGrants(ctx context.Context) context.Context {
	if !People(ctx) {
		return ctx
	}
	return context.WithValue(ctx, contextKey{}, nil)
}

// People reports whether a call to the store is made for people.
func People(ctx context.Context) bool {
	_, ok := ctx.Value(contextKey{}).(*Place)
	return ok
}

// Wait gives the place of a context up, if it has one, while a call to the store is under way, and
// returns how to wait for it again afterwards. If the context ends meanwhile its owner goes on
// without, since it has nothing left to do.
func Wait(ctx context.Context) (back func()) {
	p, _ := ctx.Value(contextKey{}).(*Place)
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits++
	p.away()
	return func() { p.back(ctx) }
}

// back waits for the place again once no call is under way any more.
func (p *Place) back(ctx context.Context) {
	p.mu.Lock()
	p.waits--
	held := p.leave != nil || p.waits > 0 || p.given
	p.mu.Unlock()
	if held {
		return
	}
	leave, err := p.enter(ctx)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leave != nil || p.waits > 0 || p.given { // Another call has begun, or has brought it back.
		leave()
		return
	}
	p.leave = leave
}
