package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/shared/wire"
)

// checkProtocol returns why a store of a protocol is not used, and has all further commands fail by
// that: a build of another protocol would misread the store. Only checkAgain
// ends that.
func (s *Store) checkProtocol(text string) error {
	number, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return fmt.Errorf("%s does not hold the number of a protocol", keyLaid)
	}
	cause := wire.CheckStore(number)
	if cause == nil {
		return nil
	}
	other := &errs.Error{
		Code: errs.StoreUnavailable, Detail: "the store cannot be used: " + cause.Error(),
		Cause: fmt.Errorf("cannot use Redis: %w", cause),
	}
	s.other.Store(other)
	return other
}

// asksProtocol marks the context of the one command that a store of another protocol gets.
type asksProtocol struct{}

// checkAgain asks a store of another protocol for its protocol, since an operator may have set it
// right, and uses it again if it fits. Its error is why the store is not used.
func (s *Store) checkAgain(ctx context.Context) error {
	if s.other.Load() == nil {
		return nil
	}
	text, err := s.client.Get(context.WithValue(ctx, asksProtocol{}, true), keyLaid).Result()
	if err == nil {
		err = s.checkProtocol(text)
	} else if errors.Is(err, redis.Nil) { // It has lost everything, or was emptied.
		err = nil
	}
	if err == nil {
		s.other.Store(nil)
	}
	return err
}

// only has no command reach a store of another protocol.
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
