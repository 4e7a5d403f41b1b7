package gather

import "context"

// SetYield has something else done where a caller lets others go first.
func (l *Line[T]) SetYield(yield func()) { l.yield = yield }

// ContextOf is the context of a call for callers with these.
func ContextOf(callers ...context.Context) context.Context {
	b := newBatch[int]()
	for _, ctx := range callers {
		b.members = append(b.members, &member[int]{ctx: ctx})
	}
	ctx, _ := b.callContext()
	return ctx
}
