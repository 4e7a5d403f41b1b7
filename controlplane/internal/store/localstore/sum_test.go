package localstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// ofEverything is a file with something in each of its lists, closed in good order, or as a crash
// leaves it that comes after a save.
func ofEverything(t *testing.T, crashed bool) []byte {
	t.Helper()
	dir, ctx := t.TempDir(), t.Context()
	s, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{SaveByHand: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	entry := audit.Entry{Action: "a", Resource: "r"}
	_, e1 := s.Heads(ctx, [16]byte{1})
	e2 := s.Append(ctx, 0, policies.Version{Number: 1, Document: []byte("version: weir/v1")}, entry)
	_, e3 := consumers.Kept{In: s}.WriteConsumers(ctx, consumers.Changes{Entry: entry, Writes: []consumers.Write{
		{Key: keyhash.Key{1}, Any: true, Record: &consumers.Record{Tier: "gold", Banned: &consumers.Mark{}}},
	}})
	e4 := enforcement.Kept{In: s}.WriteEnforcement(ctx, enforcement.Write{
		Document: enforcement.Document{Revision: 7}, Entries: []audit.Entry{entry},
	})
	_, e5 := docs.Cell{Store: s, Name: docs.Region}.Swap(ctx, 0, []byte("region"))
	_, e6 := penalties.Kept{In: s}.Offer(ctx, []penalties.Known{{Record: penalties.Record{
		Key: keyhash.Key{3}, Record: penalty.Record{Level: 1, Until: 1 << 50}, Forgotten: 1 << 50,
	}}})
	p := perHour(t, 100)
	ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}
	claim := inflight.Claim{Node: inflight.Node{ID: "n"}, Seq: 1, Need: 1, Limit: 10, Nodes: 1}
	windows := ask
	windows.Windows = quota.Windows{Algorithm: quota.SlidingLog, Quota: 100, Length: quota.Hour, Grain: 1}
	_, e7 := s.Grant(ctx, []leases.Item{
		{Bucket: keyhash.Key{1}, Ask: ask}, {Bucket: keyhash.Key{2}, Kind: wire.KindClaim, Claim: claim},
		{Bucket: keyhash.Key{3}, Ask: windows},
	})
	end := s.Close
	if crashed {
		end = s.Save
	}
	if err := errors.Join(e1, e2, e3, e4, e5, e6, e7, end()); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, "weir.db"))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// entries returns all entries of a file, by their lists, except for entries that a start changes.
func entries(t *testing.T, file []byte) map[string]string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.db")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all := map[string]string{}
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			all[string(name)] = ""
			return b.ForEach(func(k, v []byte) error {
				all[fmt.Sprintf("%s %q", name, k)] = string(k) + string(v) // As they lie in the file.
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// If a bit flips in any key or value of any list, while no process has the file open, the start is
// refused with the remedy, and the file stays as it is. In the audit, and among the counters, it is
// only reported. That is so after an orderly end and after a crash.
func TestAFlippedBitIsNoticed(t *testing.T) {
	t.Run("closed", func(t *testing.T) { flippedBitsAreNoticed(t, ofEverything(t, false), "level=ERROR") })
	// Counters that are damaged are so each for itself then, since all of them are in doubt.
	const each = "cannot read saved buckets"
	t.Run("crashed", func(t *testing.T) { flippedBitsAreNoticed(t, ofEverything(t, true), each) })
}

func flippedBitsAreNoticed(t *testing.T, file []byte, ofCounters string) {
	if err, _ := opened(t, file); err != nil {
		t.Fatalf("a sound file: %v", err)
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	lists, all := map[string]bool{}, entries(t, file)
	for name, entry := range all {
		list, _, isEntry := strings.Cut(name, ` "`)
		lists[list] = lists[list] || isEntry
		if !isEntry {
			continue
		}
		noticed := 0
		for at := 0; ; at++ {
			next := bytes.Index(file[at:], []byte(entry))
			if next < 0 {
				break
			}
			at += next
			b := bytes.Clone(file)
			b[at+random.IntN(len(entry))] ^= 1 << random.IntN(8)
			if said := says(t, b); said != "" { // Otherwise it was in a page that is not in use.
				noticed++
				mended := list == "ledgers" || strings.HasPrefix(list, "audit")
				// A list whose keys have lost their order cannot be read on.
				refused := !mended || strings.Contains(said, "is not in its place")
				reported := strings.Contains(said, "level=ERROR")
				if list == "ledgers" {
					reported = strings.Contains(said, ofCounters)
				}
				if !isSum(name) && refused == reported {
					t.Errorf("seed %d: %s: %s", seed, name, said)
				}
			}
		}
		if noticed == 0 && !isSum(name) {
			t.Errorf("seed %d: %s: a flipped bit is not noticed", seed, name)
		}
	}
	for list, tried := range lists {
		if !tried && list != "audit penalties" {
			t.Errorf("nothing of %q was flipped", list)
		}
	}
	t.Logf("%d entries of %d lists", len(all)-len(lists), len(lists))
}

// isSum reports whether an entry belongs to the checksums: a bit that flips there changes nothing.
func isSum(name string) bool { return name == `meta "sum"` || name == `meta "changed"` }

// says opens a file with the given content, and returns why it is refused, or the errors in the
// log, and whether counters cannot be read; empty if there are none.
func says(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	only := &slog.HandlerOptions{Level: slog.LevelWarn}
	s, err := localstore.Open(filepath.Dir(path), slog.New(slog.NewTextHandler(&log, only)),
		localstore.Options{SaveByHand: true})
	if err == nil {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		const crash = "the last run did not end cleanly"
		return strings.Join(slices.DeleteFunc(strings.SplitAfter(log.String(), "\n"), func(line string) bool {
			return strings.Contains(line, crash)
		}), "")
	}
	after, e := os.ReadFile(path)
	if e != nil || !bytes.Equal(after, content) || !strings.Contains(err.Error(), "weir.db is damaged (") ||
		!strings.Contains(err.Error(), "restore a backup of the data directory") {
		t.Errorf("%v, the file has been changed: %v", err, !bytes.Equal(after, content))
	}
	return err.Error()
}

// Whatever bit flips anywhere in the file: it refuses the start, is reported, or all that the file
// holds is as it was.
func TestAFlippedBitAnywhere(t *testing.T) {
	t.Run("closed", func(t *testing.T) { flippedBitsAnywhere(t, ofEverything(t, false)) })
	t.Run("crashed", func(t *testing.T) { flippedBitsAnywhere(t, ofEverything(t, true)) })
}

func flippedBitsAnywhere(t *testing.T, file []byte) {
	before := entries(t, file)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	noticed := 0
	const pageHead, meta = 16, 64
	places := make([]int, 300)
	for i := range places {
		places[i] = random.IntN(len(file))
	}
	for i := range meta { // Two pages of meta data say where all is.
		places = append(places, pageHead+i, os.Getpagesize()+pageHead+i)
	}
	for _, at := range places {
		b := bytes.Clone(file)
		b[at] ^= 1 << random.IntN(8)
		if says(t, b) != "" {
			noticed++
			continue
		}
		after := entries(t, b)
		for name, value := range before {
			if after[name] != value && !isSum(name) && name != `meta "lost"` {
				t.Errorf("seed %d: at %d: %s was %q and is %q", seed, at, name, value, after[name])
			}
		}
	}
	if noticed == 0 {
		t.Errorf("seed %d: none of the flipped bits was noticed", seed)
	}
}
