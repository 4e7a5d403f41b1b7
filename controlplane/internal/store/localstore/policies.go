package localstore

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
)

// rolloutKey in the meta bucket has the number of the current version, the revision and the rollout
// under way, JSON. It is absent before the first rollout: then the newest version is the current
// version.
var rolloutKey = []byte("rollout")

// State implements policies.Store.
func (s *Store) State(context.Context) (state policies.State, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		state, err = stateOf(tx)
		return err
	})
	return state, err
}

func stateOf(tx *bolt.Tx) (state policies.State, err error) {
	last := newestVersion(tx)
	state.Current = last
	if raw := tx.Bucket(metaBucket).Get(rolloutKey); raw != nil {
		err = json.Unmarshal(raw, &state)
		if err != nil {
			return state, fmt.Errorf("the rollout is damaged: %w", err)
		}
	}
	state.Newest = max(last, state.Newest)
	state.Digest, err = digestOf(tx, state.Current)
	if err != nil || state.Rollout == nil {
		return state, err
	}
	state.DraftDigest, err = digestOf(tx, state.Rollout.Version)
	return state, err
}

// digestOf returns the digest of a version; "" if there is no such version.
func digestOf(tx *bolt.Tx, number uint64) (string, error) {
	raw := tx.Bucket(versionsBucket).Get(versionKey(number))
	if raw == nil {
		return "", nil
	}
	var v policies.Version
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("version %d is damaged: %w", number, err)
	}
	return v.Digest, nil
}

// newestVersion returns the highest number of a version; 0 if there is none.
func newestVersion(tx *bolt.Tx) uint64 {
	k, _ := tx.Bucket(versionsBucket).Cursor().Last()
	if k == nil {
		return 0
	}
	return binary.BigEndian.Uint64(k)
}

// Load implements policies.Store.
func (s *Store) Load(_ context.Context, number uint64) (v policies.Version, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		raw := tx.Bucket(versionsBucket).Get(versionKey(number))
		if raw == nil {
			return policies.ErrNotFound
		}
		var err error
		if v, err = policies.DecodeVersion(raw); err != nil {
			return fmt.Errorf("version %d is damaged: %w", number, err)
		}
		v.Document = append([]byte{}, tx.Bucket(docsBucket).Get(versionKey(number))...)
		return nil
	})
	return v, err
}

// Append implements policies.Store.
func (s *Store) Append(ctx context.Context, expected uint64, v policies.Version, e audit.Entry) error {
	return s.updateFile(ctx, func(tx *bolt.Tx) error {
		state, err := stateOf(tx)
		if err != nil {
			return err
		}
		if state.Current != expected || state.Rollout != nil {
			return errs.Conflict
		}
		to := state
		to.Current = v.Number
		return s.takeStep(tx, policies.Step{From: state, To: to, Versions: []policies.Version{v}, Entry: e})
	})
}

// Roll implements policies.Store.
func (s *Store) Roll(ctx context.Context, step policies.Step) error {
	return s.updateFile(ctx, func(tx *bolt.Tx) error {
		state, err := stateOf(tx)
		if err != nil {
			return err
		}
		if state.Current != step.From.Current || state.Revision != step.From.Revision {
			return errs.Conflict
		}
		return s.takeStep(tx, step)
	})
}

// takeStep makes the changes of a step.
func (s *Store) takeStep(tx *bolt.Tx, step policies.Step) error {
	state, err := stateOf(tx)
	if err != nil {
		return err
	}
	versions, docs := tx.Bucket(versionsBucket), tx.Bucket(docsBucket)
	step.To.Newest = state.Newest
	// Store the versions; a new document must have a new number.
	for _, v := range step.Versions {
		raw, err := v.Encode()
		if err != nil {
			return err
		}
		if v.Document != nil {
			if v.Number <= step.To.Newest {
				return errs.Conflict
			}
			step.To.Newest = v.Number
			if err := docs.Put(versionKey(v.Number), v.Document); err != nil {
				return err
			}
		}
		if err := versions.Put(versionKey(v.Number), raw); err != nil {
			return err
		}
	}
	// Store the rollout, drop old versions, and store the audit entry.
	raw, err := json.Marshal(step.To)
	if err != nil {
		return err
	}
	if err := tx.Bucket(metaBucket).Put(rolloutKey, raw); err != nil {
		return err
	}
	if err := dropVersions(versions, docs, step.To); err != nil {
		return err
	}
	return s.recordEntry(tx, auditMeta, step.Entry)
}

// dropVersions deletes versions that are too old and not in force.
func dropVersions(versions, docs *bolt.Bucket, state policies.State) error {
	var old [][]byte
	c := versions.Cursor()
	for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k)+policies.Kept <= state.Newest; k, _ = c.Next() {
		n := binary.BigEndian.Uint64(k)
		if n != state.Current && (state.Rollout == nil || n != state.Rollout.Version) {
			old = append(old, append([]byte{}, k...))
		}
	}
	for _, k := range old {
		if err := versions.Delete(k); err != nil {
			return err
		}
		if err := docs.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// List implements policies.Store.
func (s *Store) List(_ context.Context, before uint64, limit int) (out []policies.Version, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(versionsBucket).Cursor()
		k, raw := c.Last()
		if before > 0 {
			k, _ = c.Seek(versionKey(before))
			if k == nil {
				k, raw = c.Last()
			} else {
				k, raw = c.Prev()
			}
		}
		for ; k != nil && len(out) < limit; k, raw = c.Prev() {
			var v policies.Version
			if err := json.Unmarshal(raw, &v); err != nil {
				return fmt.Errorf("version %d is damaged: %w", binary.BigEndian.Uint64(k), err)
			}
			out = append(out, v)
		}
		return nil
	})
	return out, err
}

// Heads implements push.Store.
func (s *Store) Heads(ctx context.Context, candidate [16]byte) (h push.Heads, err error) {
	h.Secret, err = s.readSecret(ctx, candidate)
	if err != nil {
		return h, err
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		if state, err := stateOf(tx); err == nil {
			h.Policies = &state
		}
		revision := docOf(tx, docs.Enforcement).Revision
		h.Enforcement, h.Topics = &revision, map[string]*docs.Head{}
		for _, t := range docs.Topics {
			head := storedState(tx, t).Head
			h.Topics[t.Tag] = &head
		}
		return nil
	})
	return h, err
}

// readSecret returns the deployment's secret. If there is none, candidate becomes the secret.
func (s *Store) readSecret(ctx context.Context, candidate [16]byte) (secret [16]byte, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		copy(secret[:], tx.Bucket(metaBucket).Get(secretKey))
		return nil
	})
	if err != nil || secret != [16]byte{} {
		return secret, err
	}
	return writeChange(ctx, s, func(tx *bolt.Tx) (secret [16]byte, err error) {
		meta := tx.Bucket(metaBucket)
		if meta.Get(secretKey) == nil {
			if err := meta.Put(secretKey, candidate[:]); err != nil {
				return secret, err
			}
		}
		copy(secret[:], meta.Get(secretKey))
		return secret, nil
	})
}

func versionKey(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }
