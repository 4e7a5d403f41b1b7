package redisstore

import (
	"context"
	_ "embed" // for the script
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
)

//go:embed scripts/orders.lua
var ordersScript string

var writeOrders = redis.NewScript(auditScript + ordersScript)

// Enforcement implements enforcement.Store.
func (s *Store) Enforcement(ctx context.Context) (enforcement.Document, error) {
	held, err := s.client.HMGet(ctx, keyOrders, "rev", "value").Result()
	if err != nil || held[0] == nil {
		return enforcement.Document{}, err
	}
	revision, err := strconv.ParseUint(fmt.Sprint(held[0]), 10, 64)
	if err != nil {
		return enforcement.Document{}, fmt.Errorf("%s does not hold a revision: %w", keyOrders, err)
	}
	text, _ := held[1].(string)
	return enforcement.Decode(revision, []byte(text))
}

// EnforcementRevision implements enforcement.Store.
func (s *Store) EnforcementRevision(ctx context.Context) (uint64, error) {
	return orZero(s.client.HGet(ctx, keyOrders, "rev").Uint64())
}

// WriteEnforcement implements enforcement.Store.
func (s *Store) WriteEnforcement(ctx context.Context, w enforcement.Write) error {
	text, err := w.Document.Encode()
	if err != nil {
		return err
	}
	args := []any{strconv.FormatUint(w.Expected, 10), strconv.FormatUint(w.Document.Revision, 10), text, audit.Kept}
	for _, e := range w.Entries {
		entry, err := e.Encode()
		if err != nil {
			return err
		}
		args = append(args, entry)
	}
	done, err := writeOrders.Run(ctx, s.client, []string{keyOrders, keyMetaAudit}, args...).Int()
	if err == nil && done != 1 {
		err = errs.Conflict
	}
	return err
}
