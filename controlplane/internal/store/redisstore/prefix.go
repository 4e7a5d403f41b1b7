package redisstore

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// plainPrefix begins all keys of a deployment whose URL sets no prefix.
const plainPrefix = "weir"

// sanePrefix matches a valid prefix: it has no character of hash tags or patterns.
var sanePrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// errPrefix describes a valid prefix.
var errPrefix = errors.New("the Redis URL's parameter prefix must have 1 to 64 letters, digits, dots, hyphens " +
	"and underscores")

// prefixed is a hook that replaces the prefix of all keys, so that several deployments can share a
// Redis. The slots of a cluster stay the same, because they depend on the hash tag alone.
type prefixed struct{ prefix string }

// DialHook implements redis.Hook, and changes nothing.
func (prefixed) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (p prefixed) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		p.prefixKeys(command.Args())
		return next(ctx, command)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (p prefixed) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		for _, c := range commands {
			p.prefixKeys(c.Args())
		}
		return next(ctx, commands)
	}
}

// prefixKeys changes the keys of a command, which are its first arguments. Keys that are changed
// already stay as they are, for instance if a script is sent a second time.
func (p prefixed) prefixKeys(args []any) {
	if len(args) < 2 {
		return
	}
	keys := args[1:2]
	if name, _ := args[0].(string); strings.HasPrefix(strings.ToLower(name), "eval") {
		n, ok := args[2].(int)
		if !ok || n > len(args)-3 {
			return
		}
		keys = args[3 : 3+n]
	}
	for i := range keys {
		if key, ok := keys[i].(string); ok && strings.HasPrefix(key, plainPrefix+":{") {
			keys[i] = p.prefix + strings.TrimPrefix(key, plainPrefix)
		}
	}
}
