package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

const (
	// peopleAtOnce is how many commands of people may be with one server: a grant waits for no more
	// of them. They have connections of their own, so that people never use up those of grants.
	peopleAtOnce = 4
	// peoplePatience is how long people wait for one of those, unless their request ends before.
	peoplePatience = 5 * time.Second
	// fewCommands is how many commands of people go to a server in one piece: a server runs what
	// comes in one piece without a look at others.
	fewCommands = 8
)

// forPeople makes the client for what people ask.
func (l *location) forPeople() redis.UniversalClient {
	few := *l
	options := *l.options
	options.PoolSize, options.PoolTimeout = peopleAtOnce, peoplePatience
	few.options = &options
	return few.client()
}

// lanes has people's commands made by a client of their own.
type lanes struct{ people redis.UniversalClient }

// DialHook implements redis.Hook, and changes nothing.
func (lanes) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (l lanes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if !access.IsForPeople(ctx) {
			return next(ctx, command)
		}
		defer access.Pause(ctx)()
		return l.people.Process(ctx, command)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (l lanes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) (failed error) {
		if !access.IsForPeople(ctx) {
			return next(ctx, commands)
		}
		defer access.Pause(ctx)()
		for len(commands) > 0 {
			few := commands[:min(len(commands), fewCommands)]
			commands = commands[len(few):]
			pipe := l.people.Pipeline()
			for _, c := range few {
				_ = pipe.Process(ctx, c) // It is sent below.
			}
			if _, err := pipe.Exec(ctx); err != nil && failed == nil {
				failed = err
			}
		}
		return failed
	}
}
