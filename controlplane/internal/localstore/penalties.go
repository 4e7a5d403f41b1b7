package localstore

import (
	"context"
	"encoding/binary"
	"errors"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/docs"
	"github.com/weir-proxy/weir/controlplane/internal/penalties"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// In the meta bucket: the revisions of penalties.State, and how many records there are.
var (
	penaltyFirstKey    = []byte("penalties: first")
	penaltyRevisionKey = []byte("penalties: revision")
	penaltyClearedKey  = []byte("penalties: cleared")
	penaltyCountKey    = []byte("penalties: count")
)

// PenaltyState implements penalties.Store.
func (s *Store) PenaltyState(context.Context) (state penalties.State, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		state = penaltyState(tx)
		return nil
	})
	return state, err
}

func penaltyState(tx *bolt.Tx) penalties.State {
	meta := tx.Bucket(metaBucket)
	return penalties.State{
		First: number(meta.Get(penaltyFirstKey)), Revision: number(meta.Get(penaltyRevisionKey)),
		Cleared: number(meta.Get(penaltyClearedKey)),
	}
}

// Penalties implements penalties.Store.
func (s *Store) Penalties(
	_ context.Context, after uint64, limit int,
) (list []penalties.Record, state penalties.State, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		state = penaltyState(tx)
		c := tx.Bucket(penaltyOrderBucket).Cursor()
		for at, key := c.Seek(versionKey(after + 1)); at != nil && len(list) < limit; at, key = c.Next() {
			r, err := penaltyOf(tx, keyhash.Key(key))
			if err != nil {
				return err
			}
			list = append(list, r)
		}
		return nil
	})
	return list, state, err
}

// penaltyOf is what is known of a caller, the zero Record for nothing.
func penaltyOf(tx *bolt.Tx, key keyhash.Key) (penalties.Record, error) {
	stored := tx.Bucket(penaltiesBucket).Get(key[:])
	if stored == nil {
		return penalties.Record{}, nil
	}
	return penalties.Decode(key, string(stored))
}

// penaltyWrites are the changes of one transaction.
type penaltyWrites struct {
	tx    *bolt.Tx
	state penalties.State
	count uint64
}

func (s *Store) beginPenalties(tx *bolt.Tx) *penaltyWrites {
	w := &penaltyWrites{tx: tx, state: penaltyState(tx), count: number(tx.Bucket(metaBucket).Get(penaltyCountKey))}
	// At least the time: a store that has lost its state goes on above what nodes have seen.
	w.state.Revision = max(w.state.Revision, uint64(s.nodes.now().UnixMilli())-1)
	return w
}

// put writes a record under a new revision in place of another.
func (w *penaltyWrites) put(r, was penalties.Record) error {
	w.state.Revision++
	r.Revision = w.state.Revision
	text, err := r.Encode()
	if was.Revision == 0 {
		w.count++
	}
	return errors.Join(err, w.forget(was),
		w.tx.Bucket(penaltiesBucket).Put(r.Key[:], []byte(text)),
		w.tx.Bucket(penaltyOrderBucket).Put(changeKey(r.Revision, r.Key), r.Key[:]),
		w.tx.Bucket(penaltyEndsBucket).Put(changeKey(uint64(r.Forgotten), r.Key), r.Key[:]))
}

// forget takes a record out of the lists.
func (w *penaltyWrites) forget(r penalties.Record) error {
	if r.Revision == 0 {
		return nil
	}
	return errors.Join(w.tx.Bucket(penaltyOrderBucket).Delete(changeKey(r.Revision, r.Key)),
		w.tx.Bucket(penaltyEndsBucket).Delete(changeKey(uint64(r.Forgotten), r.Key)))
}

// drop drops some records that are forgotten at an instant in Unix milliseconds.
func (w *penaltyWrites) drop(now uint64) error {
	var old []keyhash.Key
	c := w.tx.Bucket(penaltyEndsBucket).Cursor()
	for at, key := c.First(); at != nil && binary.BigEndian.Uint64(at) <= now; at, key = c.Next() {
		old = append(old, keyhash.Key(key))
		if len(old) == droppedAtOnce {
			break
		}
	}
	for _, key := range old {
		r, err := penaltyOf(w.tx, key)
		if err := errors.Join(err, w.forget(r), w.tx.Bucket(penaltiesBucket).Delete(key[:])); err != nil {
			return err
		}
		w.count--
	}
	return nil
}

// end stores how far changes have come.
func (w *penaltyWrites) end() error {
	if w.state.First == 0 {
		w.state.First = w.state.Revision
	}
	return putNumbers(w.tx.Bucket(metaBucket), []keyed{
		{penaltyFirstKey, w.state.First}, {penaltyRevisionKey, w.state.Revision},
		{penaltyClearedKey, w.state.Cleared}, {penaltyCountKey, w.count},
	})
}

// OfferPenalties implements penalties.Store.
func (s *Store) OfferPenalties(ctx context.Context, o penalties.Offer) (penalties.Outcome, error) {
	return write(ctx, s, func(tx *bolt.Tx) (done penalties.Outcome, err error) {
		w := s.beginPenalties(tx)
		before := w.state.Revision
		if err := w.drop(uint64(s.nodes.now().UnixMilli())); err != nil {
			return done, err
		}
		for i := range o.Records {
			offered := &o.Records[i]
			held, err := penaltyOf(tx, offered.Key)
			if err != nil {
				return done, err
			}
			switch {
			case !held.Takes(offered, w.state.Cleared):
				continue
			case held.Revision == 0 && w.count >= penalties.Kept:
				done.Full++
				continue
			}
			done.Taken++
			if err := w.put(offered.Record, held); err != nil {
				return done, err
			}
		}
		if w.state.Revision == before {
			w.state.Revision = penaltyState(tx).Revision // Nothing has changed but what is forgotten.
		}
		return done, errors.Join(w.endUnlessEmpty(), s.recordPenalties(tx, o.Entry))
	})
}

// endUnlessEmpty is end, unless there never was a change.
func (w *penaltyWrites) endUnlessEmpty() error {
	if w.state.Revision == 0 {
		return nil
	}
	return w.end()
}

// recordPenalties keeps an audit entry if there is one.
func (s *Store) recordPenalties(tx *bolt.Tx, e audit.Entry) error {
	if e.Action == "" {
		return nil
	}
	return s.record(tx, docs.Penalties.Tag, e)
}

// PardonPenalties implements penalties.Store.
func (s *Store) PardonPenalties(ctx context.Context, keys []keyhash.Key, e audit.Entry) (int, error) {
	return write(ctx, s, func(tx *bolt.Tx) (pardoned int, err error) {
		w := s.beginPenalties(tx)
		for _, key := range keys {
			held, err := penaltyOf(tx, key)
			if err == nil && held.Level > 0 {
				pardoned++
				err = w.put(held.Pardoned(), held)
			}
			if err != nil {
				return pardoned, err
			}
		}
		if pardoned == 0 {
			return 0, nil
		}
		return pardoned, errors.Join(w.end(), s.recordPenalties(tx, e))
	})
}

// ClearPenalties implements penalties.Store.
func (s *Store) ClearPenalties(ctx context.Context, e audit.Entry) (int, error) {
	return write(ctx, s, func(tx *bolt.Tx) (pardoned int, err error) {
		w := s.beginPenalties(tx)
		pardoned = int(w.count)
		for _, name := range [][]byte{penaltiesBucket, penaltyOrderBucket, penaltyEndsBucket} {
			if err := tx.DeleteBucket(name); err != nil {
				return pardoned, err
			}
			if _, err := tx.CreateBucket(name); err != nil {
				return pardoned, err
			}
		}
		w.count = 0
		w.state.Revision++
		w.state.Cleared = w.state.Revision
		return pardoned, errors.Join(w.end(), s.recordPenalties(tx, e))
	})
}

type keyed struct {
	key    []byte
	number uint64
}

func putNumbers(b *bolt.Bucket, list []keyed) error {
	for _, k := range list {
		if err := b.Put(k.key, versionKey(k.number)); err != nil {
			return err
		}
	}
	return nil
}
