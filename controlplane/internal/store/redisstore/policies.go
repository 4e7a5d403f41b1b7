package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
)

// stateOf decodes the state that poll.lua returns.
func stateOf(reply []string) (state policies.State, err error) {
	if len(reply) != 6 {
		return state, fmt.Errorf("cannot read the state: it has %d values", len(reply))
	}
	for _, c := range []struct {
		number *uint64
		text   string
	}{{&state.Current, reply[0]}, {&state.Revision, reply[1]}, {&state.Newest, reply[3]}} {
		*c.number, err = strconv.ParseUint(c.text, 10, 64)
		if err != nil {
			return state, err
		}
	}
	state.Newest, state.Digest = max(state.Newest, state.Current), reply[4]
	if reply[2] == "" {
		return state, nil
	}
	var rollout policies.Rollout
	err = json.Unmarshal([]byte(reply[2]), &rollout)
	if err != nil {
		return state, fmt.Errorf("the rollout is damaged: %w", err)
	}
	// Otherwise a control plane that does not know the rollout has replaced its base.
	if rollout.Base == state.Current {
		state.Rollout, state.DraftDigest = &rollout, reply[5]
	}
	return state, nil
}

// Load implements policies.Store.
func (s *Store) Load(ctx context.Context, number uint64) (policies.Version, error) {
	field := strconv.FormatUint(number, 10)
	raw, err := s.client.HGet(ctx, keyVersions, field).Bytes()
	if err != nil {
		return policies.Version{}, notFound(err)
	}
	v, err := decodeVersion(field, raw)
	if err != nil {
		return policies.Version{}, err
	}
	v.Document, err = s.client.HGet(ctx, keyDocuments, field).Bytes()
	return v, notFound(err)
}

// Append implements policies.Store.
func (s *Store) Append(ctx context.Context, expected uint64, v policies.Version, e audit.Entry) error {
	return s.takeStep(ctx, policies.Step{
		From: policies.State{Current: expected}, To: policies.State{Current: v.Number},
		Versions: []policies.Version{v}, Entry: e,
	}, "")
}

// Roll implements policies.Store.
func (s *Store) Roll(ctx context.Context, step policies.Step) error {
	return s.takeStep(ctx, step, strconv.FormatUint(step.From.Revision, 10))
}

func (s *Store) takeStep(ctx context.Context, step policies.Step, revision string) error {
	// Encode the entry, the rollout and the versions.
	entry, err := step.Entry.Encode()
	if err != nil {
		return err
	}
	rollout, draft := []byte{}, uint64(0)
	if r := step.To.Rollout; r != nil {
		draft = r.Version
		rollout, err = json.Marshal(r)
		if err != nil {
			return err
		}
	}
	args := []any{
		step.From.Current, revision, step.To.Current, step.To.Revision, rollout, draft,
		policies.Kept, entry, audit.Kept,
	}
	for _, v := range step.Versions {
		raw, err := v.Encode()
		if err != nil {
			return err
		}
		args = append(args, v.Number, raw, v.Document)
	}
	// Make the step, unless another revision is stored.
	keys := []string{keyVersion, keyVersions, keyDocuments, keyMetaAudit, keyRollout}
	done, err := appendVersion.Run(ctx, s.client, keys, args...).Int()
	if err == nil && done != 1 {
		err = errs.Conflict
	}
	return err
}

// List implements policies.Store.
func (s *Store) List(ctx context.Context, before uint64, limit int) ([]policies.Version, error) {
	// Find the newest numbers.
	fields, err := s.client.HKeys(ctx, keyVersions).Result()
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, f := range fields {
		if n, err := strconv.ParseUint(f, 10, 64); err == nil && (before == 0 || n < before) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	numbers = numbers[:min(len(numbers), limit)]
	if len(numbers) == 0 {
		return nil, nil
	}
	// Read and decode the versions.
	fields = fields[:0]
	for _, n := range numbers {
		fields = append(fields, strconv.FormatUint(n, 10))
	}
	values, err := s.client.HMGet(ctx, keyVersions, fields...).Result()
	if err != nil {
		return nil, err
	}
	out := make([]policies.Version, 0, len(values))
	for i, value := range values {
		text, ok := value.(string)
		if !ok { // The version was deleted in between.
			continue
		}
		v, err := decodeVersion(fields[i], []byte(text))
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func decodeVersion(number string, raw []byte) (v policies.Version, err error) {
	v, err = policies.DecodeVersion(raw)
	if err != nil {
		err = fmt.Errorf("version %s is damaged: %w", number, err)
	}
	return v, err
}

func notFound(err error) error {
	if errors.Is(err, redis.Nil) {
		return policies.ErrNotFound
	}
	return err
}
