package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/wire"
)

// checkProtocol returns an error if the store has another protocol than this build. From then on
// all commands fail with that error, because this build would misread the store. checkAgain ends
// this state.
func (s *Store) checkProtocol(text string) error {
	number, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return fmt.Errorf("cannot read %s: it is not the number of a protocol", keyProtocol)
	}
	cause := wire.CheckStore(number)
	if cause == nil {
		return nil
	}
	return s.refuseStore(cause)
}

// refuseStore lets all commands fail from now on, and returns their error. The cause says which
// build has written the store.
func (s *Store) refuseStore(cause error) error {
	other := &errs.Error{
		Code: errs.StoreUnavailable, Detail: "cannot use the store: " + cause.Error(),
		Cause: fmt.Errorf("cannot use Redis: %w", cause),
	}
	s.other.Store(other)
	return other
}

// asksProtocol marks the context of the only command that may reach a store of another protocol.
type asksProtocol struct{}

// readProtocol reads the store's protocol. refusal is the reason why this build does not use the
// store. A store without a protocol is new or was emptied, unless a build from before the first
// release has written it.
func (s *Store) readProtocol(ctx context.Context) (refusal, err error) {
	ctx = context.WithValue(ctx, asksProtocol{}, true)
	number, err := s.client.Get(ctx, keyProtocol).Result()
	switch {
	case err == nil:
		return s.checkProtocol(number), nil
	case !errors.Is(err, redis.Nil):
		return nil, err
	}
	switch err := s.client.Get(ctx, keyUnreleased).Err(); {
	case err == nil:
		return s.refuseStore(wire.ErrUnreleasedStore), nil
	case !errors.Is(err, redis.Nil):
		return nil, err
	}
	return nil, nil
}

// checkAgain reads the protocol of a refused store again, since an operator may have corrected it,
// and uses the store again if the protocol fits. It also reads the protocol of a store that is not
// known yet, because the start could not read it if the store was away. Its error is the reason why
// the store is not used.
func (s *Store) checkAgain(ctx context.Context) error {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if known && s.other.Load() == nil {
		return nil
	}
	refusal, err := s.readProtocol(ctx)
	if err == nil {
		err = refusal
	}
	if err == nil {
		s.other.Store(nil)
	}
	return err
}

// only is a hook that lets no command reach a store of another protocol.
type only struct{ other *atomic.Pointer[errs.Error] }

// DialHook implements redis.Hook, and changes nothing.
func (only) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (o only) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if err := o.other.Load(); err != nil && ctx.Value(asksProtocol{}) == nil {
			command.SetErr(err)
			return err
		}
		return next(ctx, command)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (o only) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if err := o.other.Load(); err != nil {
			for _, c := range commands {
				c.SetErr(err)
			}
			return err
		}
		return next(ctx, commands)
	}
}
