package localstore_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
)

// stored is a file with some versions in it.
func stored(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	s, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{SaveByHand: true})
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(30) {
		v := policies.Version{Number: n + 1, Digest: fmt.Sprint(n), Document: bytes.Repeat([]byte("x"), 500)}
		if err := s.Append(t.Context(), n, v, audit.Entry{Action: "policyset.put"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, "weir.db"))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// opened opens a file with the given content. It returns the error about the file, and whether the
// file is untouched.
func opened(t *testing.T, content []byte) (err error, untouched bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := localstore.Open(filepath.Dir(path), slog.New(slog.DiscardHandler), localstore.Options{SaveByHand: true})
	after, e := os.ReadFile(path)
	if e != nil {
		t.Fatal(e)
	}
	if err == nil {
		if e := s.Close(); e != nil {
			t.Fatal(e)
		}
	}
	return err, bytes.Equal(after, content)
}

// The error names a damaged file and the remedy, and the file stays as it is.
func TestDamagedFiles(t *testing.T) {
	file := stored(t)
	pages := func(from, to int) []byte {
		b := bytes.Clone(file)
		for i := from; i < to; i++ {
			b[i] ^= 0x5a
		}
		return b
	}
	for name, content := range map[string][]byte{
		"cut off":         file[:12000],
		"cut in half":     file[:len(file)/2],
		"noise":           bytes.Repeat([]byte("noise"), 10000),
		"one letter":      []byte("x"),
		"one page":        file[:4096],
		"a page and more": file[:8191],
		"pages flipped":   pages(2*4096, len(file)),
		"a header gone":   pages(5*4096, 5*4096+16),
		"its first pages": pages(0, 2*4096),
	} {
		err, untouched := opened(t, content)
		if err == nil || !strings.Contains(err.Error(), "weir.db is damaged (") ||
			!strings.Contains(err.Error(), "restore a backup of the data directory") {
			t.Errorf("%s: %v", name, err)
		}
		if !untouched {
			t.Errorf("%s: the file has been changed", name)
		}
	}
	if err, _ := opened(t, file); err != nil {
		t.Errorf("a sound file: %v", err)
	}
}

// Pages that lead back to themselves, or to a page that has another parent, are found before the
// database follows them without end.
func TestPagesThatLeadInACircle(t *testing.T) {
	const pageSize, header, branch = 4096, 16, 1
	file := stored(t)
	for name, child := range map[string]func(page uint64, elements []byte) uint64{
		"a page is its own child": func(page uint64, _ []byte) uint64 { return page },
		"a page has the same child twice": func(_ uint64, next []byte) uint64 {
			return binary.NativeEndian.Uint64(next[24:])
		},
		"a page has a child beyond the file": func(uint64, []byte) uint64 { return 1 << 40 },
	} {
		damaged, branches := bytes.Clone(file), 0
		for at := 0; at < len(file); at += pageSize {
			page := damaged[at : at+pageSize]
			if binary.NativeEndian.Uint16(page[8:]) == branch && binary.NativeEndian.Uint16(page[10:]) > 1 {
				branches++
				id := child(uint64(at/pageSize), page[header:])
				binary.NativeEndian.PutUint64(page[header+8:], id)
			}
		}
		if branches == 0 {
			t.Fatal("no page of the file has children")
		}
		err, untouched := opened(t, damaged)
		if err == nil || !strings.Contains(err.Error(), "weir.db is damaged (") || !untouched {
			t.Errorf("%s: %v, untouched %t", name, err, untouched)
		}
	}
}

// A file that has lost all its content begins empty, like a file whose first start was cut off. The
// log says so, and names the remedy.
func TestAnEmptyFileIsReported(t *testing.T) {
	for _, c := range []struct {
		name string
		file bool
		want int
	}{{"an empty file", true, 1}, {"no file", false, 0}} {
		dir := t.TempDir()
		if c.file {
			if err := os.WriteFile(filepath.Join(dir, "weir.db"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var log bytes.Buffer
		s, err := localstore.Open(dir, slog.New(slog.NewTextHandler(&log, nil)), localstore.Options{SaveByHand: true})
		if err != nil {
			t.Fatal(c.name, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "a new store begins"); got != c.want {
			t.Errorf("%s: reported %d times: %s", c.name, got, log.String())
		}
	}
}

// A bit that flips in any entry of the audit hides no other entry, and the damaged one is shown as
// such in its place.
func TestADamagedEntryHidesNoOther(t *testing.T) {
	file := stored(t)
	entry := []byte(`"action":"policyset.put"`)
	damaged, seen := 0, 0
	for at := bytes.Index(file, entry); at >= 0 && (damaged < 10 || seen == 0); damaged++ {
		b := bytes.Clone(file)
		b[at] ^= 0x20 // The quotation mark of a field's name.
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "weir.db"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{SaveByHand: true})
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Audit(t.Context(), "", 100)
		if err != nil {
			t.Errorf("an entry hides all others: %v", err)
		}
		shown := 0
		for i, e := range all {
			if e.Action == audit.DamagedAction {
				shown++
			}
			if i > 0 && e.ID >= all[i-1].ID {
				t.Errorf("%s comes after %s", e.ID, all[i-1].ID)
			}
		}
		seen += shown
		if shown > 1 || len(all) != 30 {
			t.Errorf("%d entries, %d of them damaged, want 30 and one at most", len(all), shown)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		next := bytes.Index(file[at+1:], entry)
		if next < 0 {
			break
		}
		at += 1 + next
	}
	if seen == 0 {
		t.Errorf("none of %d flipped bits was in an entry", damaged)
	}
}

// Whatever bytes are flipped, nothing panics.
func TestNoDamagePanics(t *testing.T) {
	const seed = 7
	random := rand.New(rand.NewPCG(seed, 1))
	file := stored(t)
	refused := 0
	for range 200 {
		b := bytes.Clone(file)
		at := random.IntN(len(b))
		for i := at; i < min(len(b), at+1+random.IntN(64)); i++ {
			b[i] = byte(random.Uint32())
		}
		if err, untouched := opened(t, b); err != nil {
			refused++
			if !untouched && strings.Contains(err.Error(), "nothing was changed") {
				t.Errorf("at %d (seed %d): the file was changed: %v", at, seed, err)
			}
		}
	}
	if refused == 0 {
		t.Errorf("none of 200 damaged files was refused (seed %d)", seed)
	}
}
