package redisstore

import (
	"context"
	_ "embed" // for the script
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/each.lua
var eachScript string

var runEach = redis.NewScript(eachScript)

// runForEach runs a command for each key and returns the list of texts of each answer. A single
// server is called once; in a cluster there is one call for each key.
func (s *Store) runForEach(ctx context.Context, keys []string, command string, args ...any) ([][]string, error) {
	answers := make([]any, len(keys))
	// In a cluster each key may be on another server: send a command for each key.
	if s.cluster {
		asked, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				p.Do(ctx, append([]any{command, key}, args...)...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for i := range asked {
			answers[i] = asked[i].(*redis.Cmd).Val()
		}
	} else {
		reply, err := runEach.Run(ctx, s.client, keys, append([]any{command}, args...)...).Slice()
		if err == nil && len(reply) != len(keys) {
			err = errors.New("cannot read the answer of the script that runs a command for each key: it is too short")
		}
		if err != nil {
			return nil, err
		}
		answers = reply
	}
	// Convert the answers to texts.
	found := make([][]string, len(keys))
	for i, answer := range answers {
		found[i] = textsOf(answer)
	}
	return found, nil
}

// textOf returns a text, or a number as a text.
func textOf(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// textsOf returns the texts of a list, or the names and values of a map.
func textsOf(answer any) (texts []string) {
	switch of := answer.(type) {
	case []any:
		for _, one := range of {
			if pair, ok := one.([]any); ok { // In RESP3 a member and its score are a pair.
				texts = append(texts, textsOf(pair)...)
			} else {
				texts = append(texts, textOf(one))
			}
		}
	case map[any]any:
		for name, value := range of {
			texts = append(texts, textOf(name), textOf(value))
		}
	}
	return texts
}
