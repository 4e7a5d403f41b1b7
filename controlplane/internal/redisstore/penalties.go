package redisstore

import (
	"context"
	_ "embed" // for the scripts
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/docs"
	"github.com/weir-proxy/weir/controlplane/internal/penalties"
	"github.com/weir-proxy/weir/shared/keyhash"
)

//go:embed scripts/offer.lua
var offerScript string

//go:embed scripts/pardon.lua
var pardonScript string

//go:embed scripts/penalties.lua
var penaltiesScript string

var (
	offerPenalties  = redis.NewScript(auditScript + offerScript)
	pardonPenalties = redis.NewScript(auditScript + pardonScript)
	readPenalties   = redis.NewScript(penaltiesScript)
)

// The keys of penalties share a tag, since a change touches them all.
const (
	keyPenalties    = "weir:{penalties}:records" // hash: caller → penalties.Record
	keyPenaltyOrder = "weir:{penalties}:order"   // sorted set: caller by revision
	keyPenaltyEnds  = "weir:{penalties}:ends"    // sorted set: caller by when it is forgotten
	keyPenaltyState = "weir:{penalties}:state"   // hash: how far changes have come
)

var penaltyKeys = []string{
	keyPenalties, keyPenaltyOrder, keyPenaltyEnds, keyPenaltyState, auditKey("penalties"),
}

// PenaltyState implements penalties.Store.
func (s *Store) PenaltyState(ctx context.Context) (penalties.State, error) {
	texts, err := s.readParts(ctx, s.client, []reading{readHead(&docs.Penalties)})
	if err != nil {
		return penalties.State{}, err
	}
	return penaltyState(texts[0])
}

func penaltyState(texts []string) (penalties.State, error) {
	numbers, err := uints(texts)
	if err == nil && len(numbers) != 3 {
		err = fmt.Errorf("it has %d values", len(numbers))
	}
	if err != nil {
		return penalties.State{}, fmt.Errorf("%s is damaged: %w", keyPenaltyState, err)
	}
	return penalties.State{First: numbers[0], Revision: numbers[1], Cleared: numbers[2]}, nil
}

// Penalties implements penalties.Store.
func (s *Store) Penalties(
	ctx context.Context, after uint64, limit int,
) (list []penalties.Record, state penalties.State, err error) {
	reply, err := readPenalties.Run(ctx, s.client, penaltyKeys, after, limit).StringSlice()
	if err != nil {
		return nil, state, err
	}
	const head = 3
	if len(reply) < head || len(reply)%2 != head%2 {
		return nil, state, fmt.Errorf("the script answered with %d values", len(reply))
	}
	state, err = penaltyState(reply[:head])
	for at := head; err == nil && at < len(reply); at += 2 {
		if reply[at+1] == "" {
			continue // The record was lost alone.
		}
		var r penalties.Record
		r.Key, err = keyhash.Parse(reply[at])
		if err == nil {
			r, err = penalties.Decode(r.Key, reply[at+1])
		}
		list = append(list, r)
	}
	return list, state, err
}

// OfferPenalties implements penalties.Store.
func (s *Store) OfferPenalties(ctx context.Context, o penalties.Offer) (done penalties.Outcome, err error) {
	entry, err := optional(o.Entry)
	if err != nil {
		return done, err
	}
	args := append(make([]any, 0, 3+6*len(o.Records)), penalties.Kept, audit.Kept, entry)
	for i := range o.Records {
		r := &o.Records[i]
		facts, err := r.Facts.Encode()
		if err != nil {
			return done, err
		}
		args = append(args, r.Key.String(), strconv.FormatUint(r.At, 10), r.Level, r.Until, r.Forgotten, facts)
	}
	err = s.guarded(ctx, keyPenalties, func() error {
		reply, err := offerPenalties.Run(ctx, s.client, penaltyKeys, args...).Int64Slice()
		if err == nil && len(reply) != 2 {
			err = fmt.Errorf("the script answered with %d values", len(reply))
		}
		if err == nil {
			done = penalties.Outcome{Taken: int(reply[0]), Full: int(reply[1])}
		}
		return err
	})
	return done, err
}

// PardonPenalties implements penalties.Store.
func (s *Store) PardonPenalties(ctx context.Context, keys []keyhash.Key, entry audit.Entry) (int, error) {
	return s.pardon(ctx, 0, keys, entry)
}

// ClearPenalties implements penalties.Store.
func (s *Store) ClearPenalties(ctx context.Context, entry audit.Entry) (int, error) {
	return s.pardon(ctx, 1, nil, entry)
}

func (s *Store) pardon(ctx context.Context, all int, keys []keyhash.Key, e audit.Entry) (int, error) {
	entry, err := optional(e)
	if err != nil {
		return 0, err
	}
	args := []any{audit.Kept, entry, all}
	for i := range keys {
		args = append(args, keys[i].String())
	}
	return pardonPenalties.Run(ctx, s.client, penaltyKeys, args...).Int()
}

// optional is an audit entry as scripts get it, empty for none.
func optional(e audit.Entry) (string, error) {
	if e.Action == "" {
		return "", nil
	}
	return e.Encode()
}
