package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
)

// Current implements policies.Store.
func (s *Store) Current(ctx context.Context) (uint64, error) {
	number, err := s.client.Get(ctx, keyVersion).Uint64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return number, err
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
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	entry, err := e.Encode()
	if err != nil {
		return err
	}
	done, err := appendVersion.Run(ctx, s.client, []string{keyVersion, keyVersions, keyDocuments, keyMetaAudit},
		strconv.FormatUint(expected, 10), strconv.FormatUint(v.Number, 10), raw, v.Document, policies.Kept, entry, audit.Kept).Int()
	if err == nil && done != 1 {
		err = policies.ErrConflict
	}
	return err
}

// List implements policies.Store.
func (s *Store) List(ctx context.Context, before uint64, limit int) ([]policies.Version, error) {
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
		if !ok { // Dropped in between.
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
	if err = json.Unmarshal(raw, &v); err != nil {
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
