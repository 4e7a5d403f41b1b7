package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/access"
)

const (
	// peopleAtOnce is the maximum number of people's commands at one server at the same time: a
	// grant waits for no more of them. They use connections of their own, so people never use up
	// the connections of grants.
	peopleAtOnce = 4
	// peoplePatience is the longest wait for one of these connections.
	peoplePatience = 5 * time.Second
	// fewCommands is the maximum number of people's commands in one pipeline: a server runs a whole
	// pipeline before it reads from other connections.
	fewCommands = 8
)

// newPeopleClient makes the client for the commands of people.
func (l *location) newPeopleClient() redis.UniversalClient {
	few := *l
	options := *l.options
	options.PoolSize, options.PoolTimeout = peopleAtOnce, peoplePatience
	few.options = &options
	return few.newClient()
}

// lanes is a hook that sends the commands of people through a client of their own.
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
				_ = pipe.Process(ctx, c) // Exec sends it below.
			}
			if _, err := pipe.Exec(ctx); err != nil && failed == nil {
				failed = err
			}
		}
		return failed
	}
}
