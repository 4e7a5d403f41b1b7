package redisstore

import (
	"context"
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/shared/lease"
)

// SpoilGrant plants a bug in the script that grants and reports whether the text to replace was
// there, once.
func (s *Store) SpoilGrant(old, new string) bool {
	script := clockScript + grantScripts()
	s.grant = redis.NewScript(strings.Replace(script, old, new, 1))
	return strings.Count(script, old) == 1
}

// OpenRetrying does the same as Open, but the client sends a command again if it gets no answer.
func OpenRetrying(url string, log *slog.Logger) (*Store, error) {
	s, err := Open(url, log)
	if err != nil {
		return nil, err
	}
	l, err := parseLocation(url)
	if err != nil {
		return nil, err
	}
	l.options.MaxRetries = 3
	_ = s.client.Close() // It has not connected yet.
	s.client = l.newClient()
	return s, nil
}

// SpoilCalls plants a bug in the calls for several requests, by its name.
func (s *Store) SpoilCalls(bug string) {
	spoiled := map[string]func(context.Context, []*portion) error{
		"swap": func(ctx context.Context, portions []*portion) error {
			err := s.callTogether(ctx, portions)
			for i := range portions[1:] {
				a, b := portions[i], portions[i+1]
				if len(a.grants) == len(b.grants) {
					a.grants, b.grants = b.grants, a.grants
				}
			}
			return err
		},
		"copy": func(ctx context.Context, portions []*portion) error {
			if len(portions) == 1 {
				return s.callTogether(ctx, portions)
			}
			last := len(portions) - 1
			err := s.callTogether(ctx, portions[:last])
			for _, p := range portions[:last] {
				if len(p.items) == len(portions[last].items) {
					portions[last].grants = p.grants
					return err
				}
			}
			return s.callTogether(ctx, portions[last:])
		},
		"repeat": func(ctx context.Context, portions []*portion) error {
			err := s.callTogether(ctx, portions)
			if err != nil && ctx.Err() == nil {
				err = s.callTogether(ctx, portions)
			}
			return err
		},
		"late": func(ctx context.Context, portions []*portion) error {
			err := s.callTogether(ctx, portions)
			if err != nil && len(portions) > 1 {
				for _, p := range portions {
					p.grants = make([]lease.Grant, len(p.items))
				}
				err = nil
			}
			return err
		},
	}[bug]
	for i := range s.lines {
		s.lines[i].Init(fullCall, gatherTime, spoiled)
	}
}
