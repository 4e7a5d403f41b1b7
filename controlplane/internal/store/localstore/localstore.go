// Package localstore is the embedded store of a single control plane: policy versions and the
// secret in a file, counters in memory and saved to the same file every second and at shutdown,
// nodes and refusals in memory alone.
package localstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	fileName  = "weir.db"
	lockWait  = time.Second
	saveEvery = time.Second
)

var (
	metaBucket     = []byte("meta")
	versionsBucket = []byte("versions") // big-endian number → version without document, JSON
	docsBucket     = []byte("documents")
	ledgersBucket  = []byte("ledgers") // bucket hash → ledger

	secretKey  = []byte("secret")
	clockKey   = []byte("clock")   // the store's time at the last save: it never runs behind it
	runningKey = []byte("running") // present while a process has the store open: found at the start, there was a crash
	lostKey    = []byte("lost")    // the store's time at which the last crash was found
	// protocolKey holds the wire.Protocol of the build that has written the file.
	protocolKey = []byte("protocol")
)

// Store is the embedded store. Make one with Open. It is safe for concurrent use.
type Store struct {
	db    *bolt.DB
	log   *slog.Logger
	clock *clock
	// doubt: the counters in the file were not as they were saved.
	doubt bool

	ledgers  ledgers
	nodes    nodeMap
	refusals refusals
	slots    slots

	// writing has room for the one transaction that changes the file.
	writing chan struct{}
	// nextSums is from when on sums may be made again. The writer has it.
	nextSums time.Time

	stop chan struct{}
	done sync.WaitGroup
	once sync.Once

	mu    sync.Mutex
	saved time.Time // when counters were last saved
	fails error     // why they cannot be, as of the last try
	now   func() time.Time
	// bound is how many buckets there may be of each kind. warned is what Refused was at warnedAt,
	// when the log last said that there were more.
	bound    int
	warned   int64
	warnedAt time.Time
}

// Options vary a store. The zero value is for production.
type Options struct {
	// Now is the wall clock, time.Now by default.
	Now func() time.Time
	// MaxBuckets is how many buckets are kept at most, 500 000 by default. When all are in use, a
	// new bucket is granted nothing.
	MaxBuckets int
	// LostFill is the share of its burst, in percent, with which a bucket starts after its state
	// was lost; nil for leases.LostFill.
	LostFill *int64
	// SaveByHand leaves out the save every second.
	SaveByHand bool
}

// Open opens or creates the store in dir, which must exist. It fails if another process has it
// open.
func Open(dir string, log *slog.Logger, o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxBuckets == 0 {
		o.MaxBuckets = maxBuckets
	}
	path := filepath.Join(dir, fileName)
	info, err := os.Stat(path)
	if err == nil && info.Size() == 0 {
		log.Warn("the file of the store was empty, and a new store begins: "+
			"if there were policies, stop and restore a backup", "file", path)
	}
	changed, err := inspect(path)
	var db *bolt.DB
	if err == nil {
		db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait})
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s is in use by another process: stop it, or choose another data directory", path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the store: %w", err)
	}
	s := &Store{
		db: db, log: log, writing: make(chan struct{}, 1), stop: make(chan struct{}), saved: o.Now(), now: o.Now,
		bound: o.MaxBuckets,
	}
	s.ledgers.init(o.MaxBuckets)
	s.ledgers.fill = leases.LostFill
	if o.LostFill != nil {
		s.ledgers.fill = *o.LostFill
	}
	s.nodes.init(o.Now)
	for _, list := range changed {
		log.Error("a part of the store's file is not as it was saved, as where a disk has changed a bit: "+
			"what is wrong there is not known; restore a backup if it matters", "file", path, "part", list)
	}
	s.doubt = slices.Contains(changed, string(ledgersBucket))
	if err := s.loadSafely(path, o.Now); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read %s: %w", path, err), db.Close())
	}
	if !o.SaveByHand {
		s.done.Add(1)
		go s.saveRegularly()
	}
	return s, nil
}

// load reads the counters and marks the store as running.
func (s *Store) load(now func() time.Time) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		lists := [][]byte{
			metaBucket, versionsBucket, docsBucket, ledgersBucket,
		}
		for _, t := range docs.Topics {
			lists = append(lists, recordLists(t)...)
		}
		for _, name := range lists {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		for _, list := range auditLists {
			if _, err := tx.CreateBucketIfNotExists([]byte(auditPrefix + list)); err != nil {
				return err
			}
		}
		meta := tx.Bucket(metaBucket)
		if err := meta.Put(protocolKey, summed(protocolKey, []byte{wire.Protocol})); err != nil {
			return err
		}
		s.clock = newClock(instant(unsummed(clockKey, meta.Get(clockKey))), now)
		s.ledgers.lost = instant(meta.Get(lostKey))
		s.ledgers.opened = s.clock.now()
		crashed := meta.Get(runningKey) != nil
		if crashed {
			s.log.Warn("the last run did not end cleanly: "+
				"buckets that may have been in use start with less than their burst",
				"fill_percent", s.ledgers.fill)
		}
		if crashed || s.doubt {
			s.ledgers.lost = s.clock.now()
			if err := meta.Put(lostKey, putInstant(s.ledgers.lost)); err != nil {
				return err
			}
		}
		damaged := s.ledgers.load(tx.Bucket(ledgersBucket))
		if damaged > 0 {
			s.log.Warn("saved buckets cannot be read and start with less than their burst", "buckets", damaged,
				"fill_percent", s.ledgers.fill)
		}
		return errors.Join(meta.Put(runningKey, []byte{1}), meta.Delete(sumKey), noteChange(tx))
	})
}

func (s *Store) saveRegularly() {
	defer s.done.Done()
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		err := s.Save()
		if err != nil && !failing {
			s.log.Error("the counters cannot be saved; a crash now would refill them to the share of --lost-fill",
				"disk_full", errors.Is(err, syscall.ENOSPC), "error", err)
		}
		if err == nil && failing {
			s.log.Info("the counters are saved again")
		}
		failing = err != nil
	}
}

// Save writes what has changed since the last save.
func (s *Store) Save() error { return s.save(false) }

// Saved returns how long ago the counters were saved, and why the last try failed, nil if it did
// not.
func (s *Store) Saved() (ago time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.saved), s.fails
}

func (s *Store) save(last bool) error {
	s.warnIfFull()
	changes := s.ledgers.changes(s.clock.now())
	_, err := transact(context.Background(), s, func(tx *bolt.Tx) (none struct{}, err error) {
		return none, s.saveIn(tx, changes, last)
	})
	if err != nil {
		s.ledgers.dirtyAgain(changes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
	if err == nil {
		s.saved = s.now()
	}
	return err
}

// saveIn puts what has changed of the counters into the file.
func (s *Store) saveIn(tx *bolt.Tx, changes []change, last bool) error {
	saved := tx.Bucket(ledgersBucket)
	for _, c := range changes {
		if err := c.apply(saved); err != nil {
			return err
		}
	}
	meta := tx.Bucket(metaBucket)
	if err := meta.Put(clockKey, summed(clockKey, putInstant(s.clock.now()))); err != nil {
		return err
	}
	if !last {
		return s.sealOpen(tx)
	}
	return errors.Join(meta.Delete(runningKey), seal(tx, ofAll, uint64(tx.ID())))
}

// Close saves everything and closes the file. It may be called more than once.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		s.done.Wait()
		err = errors.Join(s.save(true), s.closeFile())
	})
	return err
}
