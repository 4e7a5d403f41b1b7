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
	clockKey   = []byte("clock")   // the store's time at the last save; the clock never goes below it
	runningKey = []byte("running") // present while the store is open; if it is there at the start, there was a crash
	lostKey    = []byte("lost")    // the store's time at which the last crash was found
	// protocolKey holds the wire.Protocol of the build that has written the file.
	protocolKey = []byte("protocol")
)

// Store is the embedded store. Make a Store with Open. It is safe for concurrent use.
type Store struct {
	db    *bolt.DB
	log   *slog.Logger
	clock *clock
	// doubt is true if the saved counters have changed since they were saved.
	doubt bool

	ledgers  ledgers
	nodes    nodeMap
	refusals refusals
	slots    slots

	// writing has room for one transaction: only one changes the file at a time.
	writing chan struct{}
	// nextSums is the time from which sums may be computed again. Only the writer uses it.
	nextSums time.Time

	stop chan struct{}
	done sync.WaitGroup
	once sync.Once

	mu    sync.Mutex
	saved time.Time // when counters were last saved
	fails error     // error of the last save; nil after a success
	now   func() time.Time
	// bound is the maximum number of buckets of each kind. warned is the value of Refused at
	// warnedAt, the time of the last warning that the store is full.
	bound    int
	warned   int64
	warnedAt time.Time
}

// Options configure a store. The zero value is for production.
type Options struct {
	// Now is the wall clock; nil for time.Now.
	Now func() time.Time
	// MaxBuckets is the maximum number of buckets; 0 for 500 000. If all are in use, a new bucket
	// is granted nothing.
	MaxBuckets int
	// LostFill is the initial fill of a bucket whose state was lost, in percent of its burst; nil
	// for leases.LostFill.
	LostFill *int64
	// SaveByHand turns off the save every second.
	SaveByHand bool
}

// Open opens or creates the store in dir, which must exist. It fails if another process has the
// store open.
func Open(dir string, log *slog.Logger, o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxBuckets == 0 {
		o.MaxBuckets = maxBuckets
	}
	// Check the file, then open it.
	path := filepath.Join(dir, fileName)
	info, err := os.Stat(path)
	if err == nil && info.Size() == 0 {
		log.Warn("the file of the store was empty, and a new store begins: "+
			"if there were policies, stop and restore a backup", "file", path)
	}
	changed, err := inspectFile(path)
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
	// Make the store, with the counters of the file.
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
		log.Error("a part of the store's file has changed since it was saved, perhaps by a fault of the disk: "+
			"the change is not known; restore a backup if that part matters", "file", path, "part", list)
	}
	s.doubt = slices.Contains(changed, string(ledgersBucket))
	if err := s.loadSafely(path, o.Now); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read %s: %w", path, err), db.Close())
	}
	// Save every second from now on.
	if !o.SaveByHand {
		s.done.Add(1)
		go s.saveRegularly()
	}
	return s, nil
}

// loadFile reads the counters and marks the store as running.
func (s *Store) loadFile(now func() time.Time) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		// Create the lists that are missing.
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
		// Read the clock and the marks of the last run.
		meta := tx.Bucket(metaBucket)
		if err := meta.Put(protocolKey, addSum(protocolKey, []byte{wire.Protocol})); err != nil {
			return err
		}
		s.clock = newClock(readInstant(checkSum(clockKey, meta.Get(clockKey))), now)
		s.ledgers.lost = readInstant(meta.Get(lostKey))
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
		// Read the counters, and mark the store as running.
		damaged := s.ledgers.load(tx.Bucket(ledgersBucket))
		if damaged > 0 {
			s.log.Warn("cannot read saved buckets; they start with less than their burst", "buckets", damaged,
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
			s.log.Error("cannot save the counters; a crash now would refill them to the share of --lost-fill",
				"disk_full", errors.Is(err, syscall.ENOSPC), "error", err)
		}
		if err == nil && failing {
			s.log.Info("the counters are saved again")
		}
		failing = err != nil
	}
}

// Save writes the changes since the last save.
func (s *Store) Save() error { return s.saveFile(false) }

// Saved returns the time since the counters were last saved, and the error of the last save; nil if
// it succeeded.
func (s *Store) Saved() (ago time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.saved), s.fails
}

func (s *Store) saveFile(last bool) error {
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

// saveIn writes changes of the counters to the file.
func (s *Store) saveIn(tx *bolt.Tx, changes []change, last bool) error {
	saved := tx.Bucket(ledgersBucket)
	for _, c := range changes {
		if err := c.apply(saved); err != nil {
			return err
		}
	}
	meta := tx.Bucket(metaBucket)
	if err := meta.Put(clockKey, addSum(clockKey, putInstant(s.clock.now()))); err != nil {
		return err
	}
	if !last {
		return s.storeSumsOpen(tx)
	}
	return errors.Join(meta.Delete(runningKey), storeSums(tx, ofAll, uint64(tx.ID())))
}

// Close saves everything and closes the file. It may be called more than once.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		s.done.Wait()
		err = errors.Join(s.saveFile(true), s.closeFile())
	})
	return err
}
